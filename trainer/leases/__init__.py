"""Who may write a run folder: at most one start at a time."""

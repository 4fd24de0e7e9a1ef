"""What lies in a run folder: its record, its checkpoints, and the command that goes on with it."""

"""The chapters of a run: from its preparation to what comes of it."""

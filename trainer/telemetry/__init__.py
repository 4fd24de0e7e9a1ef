"""Measurements of what a run really does."""

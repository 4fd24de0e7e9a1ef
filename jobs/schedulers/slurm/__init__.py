"""Slurm: its scripts, commands, queue, and what a site may set."""

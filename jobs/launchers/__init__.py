"""Launchers of ranks: one file each."""

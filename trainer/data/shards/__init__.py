"""Shard sets: their format, written, read and verified."""

"""Measures what a network costs on the devices of all ranks, operation by operation, and their links."""

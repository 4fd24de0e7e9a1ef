"""Stages: a network cut into ordered partitions, whose micro-batches follow each other over devices. Pure."""

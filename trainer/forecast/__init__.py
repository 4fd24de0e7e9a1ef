"""Measures what `cingulum profile` tells, on every rank, and compares what `cingulum plan` tells."""

"""Measures what `cingulum profile` tells: operations, update and links, on every rank."""

"""Prepare a raw scan: correct its bias field, register it linearly to the average brain, find its brain."""

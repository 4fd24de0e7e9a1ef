"""Measure a scaling study: cells on this host, on emulated hosts or in an allocation."""

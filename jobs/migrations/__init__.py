"""Formats of the store, a file each; `jobs.migrating` runs them."""

"""Formats of the store, a file each; `jobs.store.tables` runs them."""

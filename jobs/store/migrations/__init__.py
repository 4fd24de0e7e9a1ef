"""Formats of the store, a file each; `jobs.store.migrating` runs them."""

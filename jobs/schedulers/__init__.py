"""Schedulers: the contract of a launcher, which launchers exist, and a folder for each scheduler."""

"""Readers of other packages; `registering` has what each is called, and each imports what it needs."""

"""How ranks are started: one file per launcher."""

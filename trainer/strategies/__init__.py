"""How one training step is divided over ranks: one file per strategy."""

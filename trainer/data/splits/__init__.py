"""Which subjects train, which choose the best epoch, which are held out."""

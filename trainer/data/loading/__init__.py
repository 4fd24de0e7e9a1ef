"""Make batches of shards: the order of samples, caches, reading threads."""

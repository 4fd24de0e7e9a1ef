"""From shards to batches: the order of samples, caches, threads that read."""

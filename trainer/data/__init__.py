"""From images to the batches of a training run: import, shards, sample order, tensors."""

"""From a folder of images to a shard set."""

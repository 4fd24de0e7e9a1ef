"""Import a folder of images into a shard set."""

"""Read one image, check it, and prepare the array for a network."""

"""What a finished network makes of raw images: windows, ensembles, and the way back to the image's space."""

"""Parameter server, asynchronous: each gradient is applied as it comes."""

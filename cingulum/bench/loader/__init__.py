"""Compare the loader with other readers and with the limit of the machine."""

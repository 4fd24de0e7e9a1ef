"""Networks divided over ranks: reading a Keras network, computing parts of its layers, playing task lists."""

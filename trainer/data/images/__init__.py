"""One image: read, judged, and made into the array that a network sees."""

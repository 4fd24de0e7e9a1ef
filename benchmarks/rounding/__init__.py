"""Parts of benchmarks/rounding_growth.py: networks in float64, their training, and what came of it."""

"""The report of a run: figures, tables, one HTML file."""

"""Placements that nobody designs: a network as a hypergraph, divided into parts. Pure."""

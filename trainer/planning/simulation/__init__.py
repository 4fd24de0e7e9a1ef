"""A run on a cluster that is not there: cluster files, contention, collectives, epochs. Pure."""

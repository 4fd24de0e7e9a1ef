"""The command line of Cingulum: it knows `trainer` and `jobs`, which do not know it."""

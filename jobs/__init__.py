"""From a run configuration to a running job."""

"""Emulated hosts on one Linux machine, with a real Slurm cluster and ssh between them."""

from jobs.testbed.testbed import Testbed

__all__ = ["Testbed"]

"""Submits one job to the stand-in: `python submit_once.py CLUSTER`; the store is in CINGULUM_HOME."""

from __future__ import annotations

import sys
from pathlib import Path

from stand_in_cluster import StandInCluster

from jobs.requests.submission import submit
from jobs.sites import HERE
from jobs.spec import JobSpec
from jobs.store.store import Store

if __name__ == "__main__":
    spec = JobSpec("killed", "train", (("true",), ("false",)), "/")
    submit(Store(), StandInCluster(Path(sys.argv[1])), spec, HERE)

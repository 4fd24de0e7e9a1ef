"""A service whose cluster is a file: `python service_on_stand_in.py FILE SOCKET`."""

from __future__ import annotations

import sys
from pathlib import Path

from served import checks
from stand_in_cluster import StandInCluster

from cingulum.service import listening
from cingulum.service.app import create_app
from cingulum.service.callers import AtSocket
from cingulum.service.jobs_now import JobsNow
from jobs.schedulers import registry
from jobs.store.store import Store

if __name__ == "__main__":
    cluster = StandInCluster(Path(sys.argv[1]))
    registry.named = lambda name: cluster
    with listening.at_socket(Path(sys.argv[2])) as listener:
        print("listening", flush=True)
        app = create_app(JobsNow(Store()), AtSocket("ada"), looks=checks())
        listening.server(app).run(sockets=[listener])

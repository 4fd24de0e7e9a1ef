"""Submits jobs to a real Slurm for users to act on: `python jobs_to_act_on.py FOLDER` on one of its hosts.

Prints their ids by name as JSON. Some wait for an hour; `runs` is asked to save before it ends, and `failed`
ends at once.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from jobs.requests.submission import submit
from jobs.schedulers.slurm.launcher import Slurm
from jobs.sites import Site
from jobs.spec import JobSpec
from jobs.store.store import Store

SAVER = Path(__file__).parents[1] / "cluster" / "programs" / "saver.py"
WAITING = ("to hold", "to release", "to put last", "to cancel")


def main(folder: Path) -> None:
    store, launcher = Store(), Slurm()
    now, later = Site(), Site(options=("--begin=now+1hour",))

    def made(name: str, *command: str, site: Site = now) -> str:
        inside = folder / name.replace(" ", "-")
        inside.mkdir(parents=True)
        spec = JobSpec(name, "command", (command,), str(inside), parallel=False, requeues=0)
        return submit(store, launcher, spec, site, who="me").label

    found = {name: made(name, "true", site=later) for name in WAITING}
    saves = sys.executable, str(SAVER)
    found["runs"] = made("runs", *saves, str(folder / "runs"))
    found["to end"] = made("to end", *saves, str(folder / "to-end"))
    found["failed"] = made("failed", "sh", "-c", "exit 3")
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

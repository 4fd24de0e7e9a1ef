"""Starts a job with the mpirun launcher from a host of the testbed: `python start_on_hosts.py SPEC SITE`.

SPEC is JSON as `JobSpec.to_json` writes it; SITE is JSON of a site profile. Prints the job's folder.
"""

from __future__ import annotations

import sys

from jobs import home
from jobs.local.mpirun import Mpirun
from jobs.sites import Site
from jobs.spec import JobSpec
from trainer.errors import CingulumError

spec, site, launcher = JobSpec.from_json(sys.argv[1]), Site.model_validate_json(sys.argv[2]), Mpirun()
try:
    launcher.preflight(spec, site)
    token = home.new_token()
    folder = home.job_folder(token)
    print(launcher.start(launcher.plan(spec, site, folder, token), folder, ()))
except CingulumError as error:
    sys.exit(f"error: {error}")

"""`python3 FOLDER` and `python -m jobs.schedulers.slurm.supervisor`."""

import sys

from jobs.schedulers.slurm.supervisor.main import main

sys.exit(main(sys.argv[1:]))

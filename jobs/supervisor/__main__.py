"""`python3 FOLDER` and `python -m jobs.supervisor`."""

import sys

from jobs.supervisor.main import main

sys.exit(main(sys.argv[1:]))

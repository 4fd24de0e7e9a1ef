"""`cingulum` with any arguments, for mpirun: `python command.py evaluate RUN ...`."""

from __future__ import annotations

from cingulum.cli.app import main

main()

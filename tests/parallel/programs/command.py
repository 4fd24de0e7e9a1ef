"""`cingulum` with any arguments, for mpirun: `python command.py evaluate RUN ...`."""

from __future__ import annotations

from trainer.cli import main

main()

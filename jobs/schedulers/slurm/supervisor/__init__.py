"""Supervisor of one start of a job under Slurm, on the host of its batch script.

`cingulum submit` copies these files into the job's folder, and with them those of jobs/supervisor, which they
build on. The host's own python3 runs them, outside any container: the standard library alone, and no syntax
newer than Python 3.6. docs/decisions/0044-supervisor.md has the reasons.
"""

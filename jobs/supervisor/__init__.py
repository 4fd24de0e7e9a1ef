"""What looks after a start of a job, whatever starts it: why it failed, what follows, its files and progress.

Copied into the folders of jobs, where the host's own python3 runs it: the standard library alone, and no
syntax newer than Python 3.6.
"""

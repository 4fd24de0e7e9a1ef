"""What `cingulum bench loader` reads and how: `worker` (the process of one reader), `readers` (one file per
reader), `figures` (from times to ratios); `cingulum.bench.loader` starts the processes.

Readers of other packages run in an environment of their own, so nothing here that they import may need
TensorFlow: `job`, `checking`, `worker`, `readers`.
"""

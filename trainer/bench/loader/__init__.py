"""How fast the loader is: beside the readers people use otherwise, and beside what the machine allows.

Read in this order: `measure` (the whole benchmark), `worker` (the process of one reader), `readers` (one file
per reader), `figures` (from times to ratios). Readers of other packages run in an environment of their own,
so that nothing here that they import may need TensorFlow: `job`, `checking`, `worker`, `readers`.
"""

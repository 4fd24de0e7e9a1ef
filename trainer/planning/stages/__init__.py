"""Which device computes which part of a network, in a pipeline of micro-batches. Pure: NumPy and SciPy only.

`problem` is what is known of partitions, devices and links; `schedule` says in which order micro-batches are
computed; `steps` predicts the seconds of a step, for many assignments at once. `gabra` searches with a
genetic algorithm; `greedy`, `dynamic`, `milp` and `exhaustive` are what it is compared with; `bounds` proves
how fast no assignment can be. `planners` is the way in; `cutting` makes the partitions.
"""

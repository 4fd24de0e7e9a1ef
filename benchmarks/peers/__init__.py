"""Other systems with the same networks and volumes, timed as ours are, in the same run.

`ddp` is PyTorch's DistributedDataParallel over Gloo, `multiworker` and `tf-parameter-server` are two
strategies of tf.distribute, each a module that is a process; `starting` starts them. `readers` are loaders of
other packages. One compute thread per rank everywhere. docs/results/peers.md says what is equal and what
is not. Nothing of the product imports this: `benchmarks/beside_peers.py` registers it.
"""

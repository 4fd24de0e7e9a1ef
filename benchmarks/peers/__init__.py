"""Other frameworks with the same networks, timed as ours is: what a scaling study compares with.

`ddp` is PyTorch's DistributedDataParallel over Gloo, `multiworker` and `tf-parameter-server` are two
strategies of tf.distribute. Each module is a process; `cingulum.bench.peers` starts them. One compute thread
per rank everywhere. docs/explanation/peers.md says what is equal and what is not.
"""

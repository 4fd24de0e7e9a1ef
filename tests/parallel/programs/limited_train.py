"""`cingulum train` in a process that gets so many bytes of address space more, once TensorFlow is loaded.

python limited_train.py BYTES CONFIG [arguments of cingulum train ...]
"""

from __future__ import annotations

import resource
import sys

import psutil


def main() -> int:
    from cingulum import cli
    from trainer import quiet

    quiet.leave_out_what_keras_can_do_without()
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    most = psutil.Process().memory_info().vms + int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    return cli.run(["train", *sys.argv[2:]])


if __name__ == "__main__":
    sys.exit(main())

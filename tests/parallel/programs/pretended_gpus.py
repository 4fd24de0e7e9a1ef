"""Which GPU each process is given, of two that are pretended: `pretended_gpus.py FOLDER SERVERS`.

A stand-in for GPUs, which this project's machines do not have: TensorFlow's CPU stands for both of them. Like
a GPU's memory, its division can be set only before TensorFlow starts, which refuses it afterwards.
"""

import tensorflow_first  # noqa: F401  # isort: skip

import json
import os
import sys
from pathlib import Path

import tensorflow as tf

from trainer.ranks import starting
from trainer.ranks.members import Members

folder, servers = Path(sys.argv[1]), int(sys.argv[2])
cpu = tf.config.list_physical_devices("CPU")[0]
listed = tf.config.list_physical_devices
given = []


def list_physical_devices(kind=None):
    return [cpu, "second"] if kind == "GPU" else listed(kind)


def set_visible_devices(devices, kind):
    assert kind == "GPU"
    given.extend("first" if one == cpu else one for one in devices)
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()])


tf.config.list_physical_devices, tf.config.set_visible_devices = list_physical_devices, set_visible_devices
tf.config.experimental.set_memory_growth = lambda gpu, on: None
if os.environ.get("COMPUTES_BEFORE"):
    tf.constant(1.0)
world = starting.init(members=Members(servers=servers, placement="separate") if servers else None)
number = os.environ.get("OMPI_COMM_WORLD_RANK", "0")
(folder / f"{number}.json").write_text(json.dumps(given))
world.shutdown()

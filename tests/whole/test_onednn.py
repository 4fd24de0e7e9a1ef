"""TensorFlow itself, in processes of its own: does it compute with what `trainer.processor` says?"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from trainer import processor

CONVOLVE = (
    "import dataclasses, json, sys; import {first}, {second}; import tensorflow as tf, trainer\n"
    "tf.nn.conv3d(tf.ones((1, 8, 8, 8, 4)), tf.ones((3, 3, 3, 4, 4)), [1] * 5, 'SAME')\n"
    "trainer.init(); from trainer import processor\n"
    "sys.stdout.flush(); print('here', json.dumps(dataclasses.asdict(processor.here())))"
)


def ran(first, second, **environment):
    env = {k: v for k, v in os.environ.items() if k not in (processor.ONEDNN, "TF_CPP_MIN_LOG_LEVEL")}
    program = CONVOLVE.format(first=first, second=second)
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**env, **environment},
    )


def here(process):
    line = next(line for line in process.stdout.splitlines() if line.startswith("here "))
    return processor.HostProcessor(**json.loads(line.removeprefix("here ")))


def test_tensorflow_computes_with_onednn_on_a_processor_of_avx2_once_trainer_is_imported():
    masked = ran(
        "trainer", "tensorflow", ONEDNN_MAX_CPU_ISA="AVX2", ONEDNN_VERBOSE="1", TF_CPP_MIN_LOG_LEVEL="0"
    )
    assert here(masked).onednn and here(masked).instructions == "AVX2"
    assert "oneDNN custom operations are on" in masked.stderr
    assert "cpu,isa:Intel AVX2" in masked.stdout and ",convolution," in masked.stdout


def test_a_user_who_switches_onednn_off_gets_it_off():
    off = ran("trainer", "tensorflow", TF_ENABLE_ONEDNN_OPTS="0", ONEDNN_VERBOSE="1")
    assert here(off).onednn is False and ",convolution," not in off.stdout


def test_where_tensorflow_was_imported_first_it_is_as_it_says_and_who_loses_by_it_is_told():
    late = ran("tensorflow", "trainer", ONEDNN_VERBOSE="1")
    assert here(late).onednn == (",convolution," in late.stdout)
    assert ("Import trainer first" in late.stderr) == (not here(late).onednn)

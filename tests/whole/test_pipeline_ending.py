"""A process that reads batches can end whenever it likes."""

from __future__ import annotations

import concurrent.futures
import subprocess
import sys

from shard_sets import make_shard_set

ENDS_EARLY = """
import sys
import numpy as np
from trainer.config import RunConfig
from trainer.data.loading.pipeline import Samples, training_batches
from trainer.data.shards.shards import ShardSet
config = RunConfig.model_validate({
    "name": "test", "train": {"global_batch": 4},
    "data": {"shards": sys.argv[1], "augment": {}, "reader_threads": 4, "prefetch": 8},
})
samples = Samples(ShardSet.open(sys.argv[1]), range(10), np.zeros(10, np.int32))
kept = iter(training_batches(samples, config, range(10**6)))
next(kept), next(kept)
sys.exit(7)
"""


def test_a_process_can_end_in_the_middle_of_an_epoch(tmp_path):
    """With threads of tf.data it waited for ever, at this size in two of three exits."""
    make_shard_set(tmp_path, shape=(64, 64, 64, 1))

    def exit_code(_: int) -> int:
        command = [sys.executable, "-c", ENDS_EARLY, str(tmp_path)]
        return subprocess.run(command, timeout=250, check=False).returncode

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        assert list(pool.map(exit_code, range(3))) == [7, 7, 7]


STUCK = """
import sys, threading
import numpy as np
from trainer.data.loading.batch_reader import Batches, signature
def fill(number, places):
    if number == 3:
        threading.Event().wait()
    places[0][...] = number
kept = iter(Batches(fill, 9, signature(1, ((4,), np.float32)), threads=2, ahead=4))
next(kept)
sys.exit(7)
"""


def test_a_read_that_hangs_does_not_keep_a_process_from_ending():
    done = subprocess.run([sys.executable, "-c", STUCK], timeout=250, check=False)
    assert done.returncode == 7

"""TFRecord files and tf.data, as nobrainer (neuronets/nobrainer) writes and reads its volumes.

It writes float32; here they have the same precision as every other reader's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from trainer.bench.loader.checking import Source
from trainer.bench.loader.job import LoaderJob
from trainer.quiet import import_tensorflow

tf = import_tensorflow()

PER_FILE = 8
# Converting what has no condition changes nothing, and leaves bytecode in the folder for temporary files.
as_it_is = tf.autograph.experimental.do_not_convert


class Reader:
    """`kind` is TensorFlow's name of the compression: GZIP, or nothing."""

    def __init__(self, job: LoaderJob, kind: str) -> None:
        self._job, self._compression = job, kind
        self._folder = job.path(f"tfrecord{kind.lower()}")

    def prepare(self) -> None:
        """Write files of a few volumes each."""
        self._folder.mkdir(exist_ok=True)
        source = Source(self._job)
        for path, first in zip(self.files(), range(0, self._job.volumes, PER_FILE), strict=True):
            with tf.io.TFRecordWriter(str(path), self._compression) as writer:
                for row in range(first, min(first + PER_FILE, self._job.volumes)):
                    writer.write(_example(source.volume(row).tobytes()))

    def files(self) -> list[Path]:
        """Return the record files."""
        count = -(-self._job.volumes // PER_FILE)
        return [self._folder / f"volumes-{number:05d}.tfrecord" for number in range(count)]

    def open(self) -> None:
        """Build the pipeline: several files at once, shuffled, parsed in threads, batched, read ahead."""
        job = self._job
        files = tf.data.Dataset.from_tensor_slices([str(path) for path in self.files()])
        records = files.shuffle(len(self.files()), seed=job.seed).interleave(
            as_it_is(lambda path: tf.data.TFRecordDataset(path, self._compression)),
            cycle_length=job.threads,
            num_parallel_calls=job.threads,
            deterministic=False,
        )
        volumes = records.shuffle(4 * job.batch, seed=job.seed).map(
            as_it_is(self._parsed), num_parallel_calls=job.threads, deterministic=False
        )
        options = tf.data.Options()
        options.threading.private_threadpool_size = job.threads
        self._batches = volumes.batch(job.batch).prefetch(2).with_options(options)

    def epoch(self, number: int) -> Iterable[Any]:
        """Yield batches; the shuffles continue from epoch to epoch."""
        return _arrays(self._batches)

    def _parsed(self, record: Any) -> Any:
        feature = tf.io.FixedLenFeature([], tf.string)
        raw = tf.io.parse_single_example(record, {"volume": feature})["volume"]
        return tf.reshape(tf.cast(tf.io.decode_raw(raw, self._job.dtype), tf.float32), self._job.shape)


def _arrays(batches: Any) -> Iterator[Any]:
    for batch in batches:
        yield batch.numpy()


def _example(raw: bytes) -> bytes:
    value = tf.train.Feature(bytes_list=tf.train.BytesList(value=[raw]))
    serialised: bytes = tf.train.Example(
        features=tf.train.Features(feature={"volume": value})
    ).SerializeToString()
    return serialised

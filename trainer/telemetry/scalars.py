"""The numbers of an epoch as TensorBoard scalars."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer.telemetry.records import HostEpoch
from trainer.transient import TransientErrors


def tensorboard(folder: Path, start: int) -> Callable[[Mapping[str, Any], Sequence[HostEpoch]], None]:
    """Return what writes rows of metrics.jsonl, and what hosts did in that epoch, as events into a folder.

    An epoch whose events cannot be written is missing there, and the training goes on.

    Args:
        folder: where each start writes a file of its own.
        start: its number, which the file's name ends with.
    """
    import tensorflow as tf

    errors = TransientErrors(f"{folder}: events could not be written", kinds=(OSError, tf.errors.OpError))
    writer: Any = None

    def scalars(row: Mapping[str, Any], hosts: Sequence[HostEpoch]) -> None:
        nonlocal writer
        with errors.survived():
            if writer is None:  # not earlier: this writes, too
                writer = tf.summary.create_file_writer(str(folder), filename_suffix=f".start-{start}")
            with writer.as_default(step=row["step"]):
                for name, value in (of_row(row) | of_hosts(hosts)).items():
                    tf.summary.scalar(name, value)
            writer.flush()

    return scalars


def of_row(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the row's own numbers, and each part of its timeline as `timeline/PART`."""
    own = {name: value for name, value in row.items() if isinstance(value, float)}
    return own | {f"timeline/{part}": seconds for part, seconds in row.get("timeline", {}).items()}


def of_hosts(hosts: Sequence[HostEpoch]) -> dict[str, float]:
    """Return each host's processor, memory, interfaces and GPUs, as `hosts/HOST/...`."""
    scalars: dict[str, float] = {}
    for host in hosts:
        scalars[f"hosts/{host.host}/cpu_percent"] = host.cpu_percent
        scalars[f"hosts/{host.host}/rss_bytes"] = float(host.rss_bytes)
        for name, moved in host.interfaces.items():
            for way, size in moved.items():
                scalars[f"hosts/{host.host}/{name}/{way}_bytes"] = float(size)
        for number, gpu in enumerate(host.gpus):
            for key, value in gpu.items():
                if isinstance(value, int | float):
                    scalars[f"hosts/{host.host}/gpu_{number}/{key}"] = float(value)
    return scalars

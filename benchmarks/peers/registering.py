"""Add the peers to what the product's benchmarks measure."""

from __future__ import annotations

from benchmarks.peers import beside_step, cells
from benchmarks.peers.starting import ENVIRONMENT, INSTALL, MODULES, TITLES
from cingulum.bench import step
from trainer.bench.loader import readers
from trainer.bench.loader.readers import ReaderKind
from trainer.bench.scaling.variants import OTHERS, OtherSystem

_READERS = "benchmarks.peers.readers"
_PYTHON = {"python": str(ENVIRONMENT / "bin" / "python"), "install": INSTALL}

_KINDS = {
    "tfrecord_gzip": ReaderKind(
        "TFRecord (gzip) + tf.data", f"{_READERS}.tfrecord", "GZIP", written_by=("tfrecord_gzip",)
    ),
    "tfrecord": ReaderKind(
        "TFRecord (not compressed) + tf.data", f"{_READERS}.tfrecord", written_by=("tfrecord",)
    ),
    "monai_persistent": ReaderKind(
        "MONAI PersistentDataset",
        f"{_READERS}.monai_sets",
        "persistent",
        rounds=True,
        written_by=("nibabel", "monai_persistent"),
        **_PYTHON,
    ),
    "monai_cache": ReaderKind(
        "MONAI CacheDataset",
        f"{_READERS}.monai_sets",
        "cache",
        memory=True,
        rounds=True,
        written_by=("nibabel",),
        **_PYTHON,
    ),
    "mosaic": ReaderKind(
        "MosaicML Streaming", f"{_READERS}.mosaic_streaming", written_by=("mosaic",), **_PYTHON
    ),
    "zarr": ReaderKind("Zarr (Blosc lz4)", f"{_READERS}.zarr_array", written_by=("zarr",), **_PYTHON),
}


def register() -> None:
    """Let `cingulum bench step`, `scaling` and `loader` of this process measure the peers, too."""
    if beside_step.Peers not in step.OTHERS:
        step.OTHERS.append(beside_step.Peers)
    for name in MODULES:
        has_servers = name == "tf-parameter-server"
        OTHERS[f"{cells.PREFIX}{name}"] = OtherSystem(TITLES[name], has_servers, cells.job_of, cells.measure)
    readers.KINDS.update(_KINDS)

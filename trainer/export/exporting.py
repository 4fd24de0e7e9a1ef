"""Export of one run: every file is loaded back and compared with the network before it gets its name."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from trainer import atomic
from trainer.errors import CingulumError, RunError
from trainer.export import card
from trainer.export.formats import FORMATS, Format
from trainer.inference.saved_model import load_model
from trainer.run_folder import resuming
from trainer.run_folder.record import write_json

# Kernels of other programs add in another order, which makes about 1e-6 of the largest output in float32; a
# conversion that went wrong makes something of its own size.
LARGEST_DIFFERENCE = 1e-3


def export(
    path: Path,
    formats: Sequence[str],
    out: Path,
    licence: str | None = None,
    code: Sequence[Path] = (),
) -> dict[str, Any]:
    """Write a finished run's network in some formats, with a model card.

    Args:
        path: run folder.
        formats: names in `FORMATS`; 'keras' is always among what is written.
        out: folder; made where it is not there.
        licence: of the weights, for the card; None: it says that none is stated.
        code: as for `saved_model.load_model`.

    Returns:
        What model_card.json says.

    Raises:
        RunError: the run is not finished or damaged; a format is unknown or its programs are not installed.
        CingulumError: what was written says something else than the network; it is removed.
    """
    wanted = [_format(name) for name in dict.fromkeys(["keras", *formats])]
    folder = resuming.open_finished(path)
    if out.exists() and not out.is_dir():
        raise RunError(f"{out}: is a file.", cure="Name a folder, such as exported", path=out)
    name = path.resolve().name
    for one in wanted:
        _check_place(out / f"{name}{one.ending}")
    model = load_model(folder, code)
    inputs = [_random(tensor.shape) for tensor in model.inputs]
    expected = np.asarray(model(inputs if len(inputs) > 1 else inputs[0], training=False))
    out.mkdir(parents=True, exist_ok=True)
    aside = out / ".export.partial"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    try:
        written = {
            one.name: _written(one, model, folder.model, aside / f"{name}{one.ending}", inputs, expected)
            for one in wanted
        }
        said = card.facts(folder, model, written, licence)
        text = card.markdown(said)
        for one in wanted:
            _put(aside / f"{name}{one.ending}", out / f"{name}{one.ending}")
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    write_json(out / "model_card.json", said)
    atomic.write_text(out / "MODEL_CARD.md", text)
    return said


def _format(name: str) -> Format:
    if name not in FORMATS:
        raise RunError(f"--format {name}: there is no such format.", cure=f"Known: {', '.join(FORMATS)}.")
    return FORMATS[name]


def _random(shape: Sequence[int | None]) -> np.ndarray:
    """Two samples of what networks see: mean 0, standard deviation 1."""
    random = np.random.default_rng(0)
    return random.standard_normal((2, *(int(n or 1) for n in shape[1:]))).astype(np.float32)


def _written(
    one: Format,
    model: keras.Model,
    stored: Path,
    path: Path,
    inputs: Sequence[np.ndarray],
    expected: np.ndarray,
) -> dict[str, Any]:
    one.write(model, stored, path)
    found = one.load(path)(inputs)
    if found.shape != expected.shape:
        raise CingulumError(
            f"{path.name}: loaded back it gives {found.shape} where the network gives {expected.shape}; "
            "it was removed.",
            path=path,
        )
    scale = float(np.abs(expected).max()) or 1.0
    difference = float(np.abs(found.astype(np.float64) - expected).max()) / scale
    if not difference <= LARGEST_DIFFERENCE:  # NaN is none either
        raise CingulumError(
            f"{path.name}: loaded back it differs from the network by {difference:.2g} of the largest "
            "output on a random volume; it was removed.",
            cure="Export without this format, and report it with the run's config.yaml.",
            path=path,
        )
    return {"file": path.name, "difference": difference, "bytes": _size(path)}


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def _check_place(target: Path) -> None:
    """Only what an earlier export left may be replaced."""
    if target.is_dir() and not (target / "saved_model.pb").is_file():
        raise RunError(
            f"{target}: is a folder, and no SavedModel.", cure="Name another --out folder.", path=target
        )


def _put(source: Path, target: Path) -> None:
    """Give a file or folder its name; one of an earlier export makes way."""
    if target.is_dir():
        shutil.rmtree(target)
    for file in source.rglob("*") if source.is_dir() else [source]:
        atomic.sync(file)
    source.replace(target)
    atomic.sync(target.parent)

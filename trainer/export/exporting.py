"""Export of one run: every file is loaded back and compared with the network before it gets its name."""

from __future__ import annotations

import importlib.util
import shutil
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

from trainer import atomic
from trainer.attempts import attempt
from trainer.errors import CingulumError, RunError, typed
from trainer.export import card
from trainer.inference.saved_model import load_model, open_file
from trainer.run_folder import resuming
from trainer.run_folder.record import write_json
from trainer.telling import tell

Ask = Callable[[Sequence[np.ndarray]], np.ndarray]


@dataclass(frozen=True)
class Format:
    """One way to keep a network.

    Attributes:
        name: as on the command line.
        ending: of the file or folder, after the run's name.
        write: from the network, its file in the run folder, and the new path.
        load: from the path to a function from inputs (float32 arrays in the network's order) to the output;
            it must use nothing but what was written.
        takes_mixed: whether a network that computes in mixed precision can be written so; if not, its copy in
            float32 is, of the same weights.
    """

    name: str
    ending: str
    write: Callable[[keras.Model, Path, Path], None]
    load: Callable[[Path], Ask]
    takes_mixed: bool = True


def _copy(model: keras.Model, stored: Path, path: Path) -> None:
    shutil.copyfile(stored, path)


def _load_keras(path: Path) -> Ask:
    model: Any = open_file(path)
    return lambda inputs: np.asarray(model(_one_or_all(inputs), training=False))


def _write_saved_model(model: keras.Model, stored: Path, path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TensorFlow's, about its own later versions
        model.export(path, format="tf_saved_model", verbose=False)


def _load_saved_model(path: Path) -> Ask:
    import tensorflow as tf

    model = tf.saved_model.load(str(path))
    return lambda inputs: model.serve(_one_or_all([tf.constant(x) for x in inputs])).numpy()


def _write_onnx(model: keras.Model, stored: Path, path: Path) -> None:
    missing = [name for name in ("tf2onnx", "onnx", "onnxruntime") if importlib.util.find_spec(name) is None]
    if missing:
        raise RunError(
            f"ONNX: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed.",
            cure="pip install -e '.[onnx]'",
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras' patch of tf2onnx looks for names that NumPy 2 dropped
        model.export(path, format="onnx", verbose=False)


def _load_onnx(path: Path) -> Ask:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    return lambda inputs: np.asarray(session.run(None, dict(zip(names, inputs, strict=True)))[0])


def _in_float32(model: keras.Model) -> keras.Model:
    """A copy that computes in float32, of the same weights, which mixed precision keeps in float32, too.

    Raises:
        RunError: a layer computes in another type, whatever it is told.
    """
    if all(layer.compute_dtype == "float32" for layer in model.layers):
        return model
    copy = keras.models.clone_model(
        model,
        clone_function=lambda layer: type(layer).from_config({**layer.get_config(), "dtype": "float32"}),
    )
    copy.set_weights(model.get_weights())
    narrow = next((layer for layer in copy.layers if layer.compute_dtype != "float32"), None)
    if narrow is not None:
        raise RunError(
            f"ONNX: layer {narrow.name} computes in {narrow.compute_dtype}, which Keras' exporter does not "
            "take.",
            cure="Export it as savedmodel or keras; or train with train.precision=float32.",
        )
    return copy


def _one_or_all(inputs: Sequence[Any]) -> Any:
    return list(inputs) if len(inputs) > 1 else inputs[0]


FORMATS = {
    one.name: one
    for one in (
        Format("keras", ".keras", _copy, _load_keras),
        Format("savedmodel", "-savedmodel", _write_saved_model, _load_saved_model),
        # Keras' exporter refuses mixed precision.
        Format("onnx", ".onnx", _write_onnx, _load_onnx, takes_mixed=False),
    )
}


# Kernels of other programs add in another order, which makes about 1e-6 of the largest output in float32; a
# conversion that went wrong makes something of its own size.
LARGEST_DIFFERENCE = 1e-3


def export(
    path: Path, formats: Sequence[str], out: Path, licence: str | None = None, code: Sequence[Path] = ()
) -> dict[str, Any]:
    """Write a finished run's network in some formats, with a model card.

    Args:
        path: run folder.
        formats: names in `FORMATS`; 'keras' is always among what is written.
        out: folder; made where it is not there.
        licence: of the weights, for the card; None: it says that none is stated.
        code: as for `saved_model.load_model`.

    Returns:
        What model_card.json says; `formats` alone where there could be no card.

    Raises:
        RunError: the run is not finished or damaged; a format is unknown or its programs are not installed.
        CingulumError: outputs of a written file differ from the network's; the file is removed.
    """
    targets = [_format(name) for name in dict.fromkeys(["keras", *formats])]
    folder = resuming.open_finished(path)
    if out.exists() and not out.is_dir():
        raise RunError(f"{out}: is a file.", cure="Name a folder, such as exported", path=out)
    name = path.resolve().name
    for target in targets:
        _check_place(out / f"{name}{target.ending}")
    model = load_model(folder, code)
    inputs = [_random(tensor.shape) for tensor in model.inputs]
    sources = {target.name: model if target.takes_mixed else _in_float32(model) for target in targets}
    out.mkdir(parents=True, exist_ok=True)
    aside = out / ".export.partial"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    try:
        written = {
            target.name: _written(
                target, sources[target.name], folder.model, aside / f"{name}{target.ending}", inputs
            )
            for target in targets
        }
        for target in targets:
            _put(aside / f"{name}{target.ending}", out / f"{name}{target.ending}")
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    content: dict[str, Any] = {
        "formats": {format_name: dict(about) for format_name, about in written.items()}
    }

    def write_card() -> None:
        for old in ("model_card.json", "MODEL_CARD.md"):
            (out / old).unlink(missing_ok=True)  # of weights that lie here no longer
        content.update(card.facts(folder, model, written, licence))
        write_json(out / "model_card.json", content)
        atomic.write_text(out / "MODEL_CARD.md", card.markdown(content))

    remedy = f"cingulum export {typed(path)} --out {typed(out)}, as before"
    attempt(f"{out / 'MODEL_CARD.md'}", write_card, remedy=remedy, note=tell)
    return content


def _format(name: str) -> Format:
    if name not in FORMATS:
        raise RunError(f"--format {name}: unknown format.", cure=f"Known: {', '.join(FORMATS)}.")
    return FORMATS[name]


def _random(shape: Sequence[int | None]) -> np.ndarray:
    """Two samples of what networks see: mean 0, standard deviation 1."""
    random = np.random.default_rng(0)
    return random.standard_normal((2, *(int(n or 1) for n in shape[1:]))).astype(np.float32)


def _written(
    target: Format,
    model: keras.Model,
    stored: Path,
    path: Path,
    inputs: Sequence[np.ndarray],
) -> dict[str, Any]:
    expected = np.asarray(model(_one_or_all(inputs), training=False))
    target.write(model, stored, path)
    outputs = target.load(path)(inputs)
    if outputs.shape != expected.shape:
        raise CingulumError(
            f"{path.name}: its outputs have shape {outputs.shape}, those of the network {expected.shape}; "
            "it was removed.",
            path=path,
        )
    scale = float(np.abs(expected).max()) or 1.0
    difference = float(np.abs(outputs.astype(np.float64) - expected).max()) / scale
    if not difference <= LARGEST_DIFFERENCE:  # NaN is none either
        raise CingulumError(
            f"{path.name}: its outputs differ from the network's by {difference:.2g} of the largest "
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
            f"{target}: is a folder, but not a SavedModel.", cure="Name another --out folder.", path=target
        )


def _put(source: Path, target: Path) -> None:
    """Give a file or folder its name; one of an earlier export makes way."""
    if target.is_dir():
        shutil.rmtree(target)
    for file in source.rglob("*") if source.is_dir() else [source]:
        atomic.sync(file)
    source.replace(target)
    atomic.sync(target.parent)

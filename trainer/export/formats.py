"""The formats a network can be exported to: how each is written, and how it is asked afterwards."""

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

from trainer.errors import RunError
from trainer.inference.saved_model import open_file

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
    """

    name: str
    ending: str
    write: Callable[[keras.Model, Path, Path], None]
    load: Callable[[Path], Ask]


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
            cure="pip install 'cingulum[onnx]'",
        )
    if any(layer.compute_dtype != "float32" for layer in model.layers):
        raise RunError(
            "ONNX: the network computes in mixed precision, which Keras' exporter does not take.",
            cure="Export it as savedmodel or keras; or train with train.precision=float32.",
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras' patch of tf2onnx looks for names that NumPy 2 dropped
        model.export(path, format="onnx", verbose=False)


def _load_onnx(path: Path) -> Ask:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    return lambda inputs: np.asarray(session.run(None, dict(zip(names, inputs, strict=True)))[0])


def _one_or_all(inputs: Sequence[Any]) -> Any:
    return list(inputs) if len(inputs) > 1 else inputs[0]


FORMATS = {
    one.name: one
    for one in (
        Format("keras", ".keras", _copy, _load_keras),
        Format("savedmodel", "-savedmodel", _write_saved_model, _load_saved_model),
        Format("onnx", ".onnx", _write_onnx, _load_onnx),
    )
}

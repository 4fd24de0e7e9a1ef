"""Starting from weights that were learned elsewhere: which are taken, which stay as they are."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Sequence
from pathlib import Path

import keras

from trainer import published_weights
from trainer.config import TransferConfig
from trainer.data.shards.shards import ShardSet
from trainer.data.splits.splits import Split
from trainer.errors import ConfigError, LeakError, RunError, ShardError
from trainer.inference.saved_model import load_model, open_file
from trainer.run_folder import resuming
from trainer.run_folder.run_record import RunRecord

# Training runs the file that its own configuration names, and with it come the layers in it.
_OPTION = "Where you trust it: let this run's model.name be a network of that file (FILE:function)"


def freeze(model: keras.Model, config: TransferConfig) -> None:
    """Exclude layers from training; a frozen batch norm keeps its moving statistics too.

    Raises:
        ConfigError: a pattern fits no layer, or nothing is left to train.
    """
    for pattern in config.freeze:
        for layer in _layers(model, pattern, "train.transfer.freeze"):
            layer.trainable = False
    if not model.trainable_variables:
        raise ConfigError(
            "train.transfer.freeze: leaves nothing to train.",
            cure=f"Leave some layers out of it, such as {model.layers[-1].name}.",
            key="train.transfer.freeze",
        )


def rate_factors(model: keras.Model, config: TransferConfig) -> dict[str, float]:
    """Return the factor of the learning rate of each trainable variable, by the variable's path.

    Raises:
        ConfigError: a pattern fits no layer.
    """
    factors: dict[str, float] = {}
    for pattern, factor in config.rate_factors.items():
        for layer in _layers(model, pattern, "train.transfer.rate_factors"):
            for variable in layer.trainable_variables:
                factors.setdefault(variable.path, factor)
    return factors


def start(model: keras.Model, path: Path) -> str:
    """Put the weights of another run into a network, wherever name and shapes of a layer agree.

    Args:
        model: the network to start; changed in place.
        path: folder of a finished run, a `.keras` file, or published weights in safetensors.

    Returns:
        For people: how many layers were taken, and which were not.

    Raises:
        RunError: there is no such run or file, or no layer fits.
    """
    if path.suffix == published_weights.SUFFIX:
        taken, left = published_weights.start(model, path)
    else:
        taken, left = _copied(model, path)
    new = f"; new: {', '.join(left[:5])}{' and others' if len(left) > 5 else ''}" if left else ""
    return f"started from {path}: {len(taken)} of {len(taken) + len(left)} layers{new}"


def _copied(model: keras.Model, path: Path) -> tuple[list[str], list[str]]:
    """Copy layers whose name and shapes agree; returns names of those that were, and that were not."""
    source = _source(path)
    stored = {layer.name: layer.get_weights() for layer in source.layers}
    taken, left = [], []
    for layer in model.layers:
        mine = layer.get_weights()
        if not mine:
            continue
        theirs = stored.get(layer.name, [])
        if [w.shape for w in theirs] == [w.shape for w in mine]:
            layer.set_weights(theirs)
            taken.append(layer.name)
        else:
            left.append(layer.name)
    if not taken:
        raise RunError(
            f"{path}: no layer has the name and the shape of a layer of this network.",
            cure="Start from a run of the same network, width and number of contrasts.",
            path=path,
        )
    return taken, left


def check_unseen(path: Path, shards: ShardSet, split: Split, *, stop: bool) -> str | None:
    """Look for held-out subjects on which the weights to start from were trained.

    Args:
        path: as for `start`.
        shards: of the run that starts from it.
        split: of that run.
        stop: whether to raise when there are any.

    Returns:
        A warning for people, or None where all is well.

    Raises:
        LeakError: `stop` is set, and there are some; they are named.
    """
    if path.suffix in (".keras", published_weights.SUFFIX):
        return f"{path}: does not record its training subjects; check that this run holds out none of them."
    ran = RunRecord.read(resuming.open_finished(path).run)
    try:
        theirs = ShardSet.open(Path(ran.shards.path)).volumes
    except ShardError as error:
        return f"{path}: cannot check whether it was trained on held-out subjects: {error.message}"
    seen = {theirs[row].subject for name in ("train", "validation") for row in ran.split[name]}
    mine = {shards.volumes[row].subject for row in (*split.validation, *split.test)}
    both = sorted(seen & mine)
    if not both:
        return None
    named = ", ".join(both[:5]) + (" and others" if len(both) > 5 else "")
    message = f"{path}: was trained on {len(both)} subjects that this run holds out: {named}."
    if not stop:
        return f"warning: {message}"
    raise LeakError(
        message,
        cure="Use the same shard set, data.classes and data.split as that run, or leave these subjects out. "
        "To go on all the same: data.leaks=warn.",
        path=path,
    )


def _source(path: Path) -> keras.Model:
    if path.suffix != ".keras":
        return load_model(resuming.open_finished(path), option=_OPTION)
    if not path.is_file():
        raise RunError(
            f"{path}: there is no such file.",
            cure="Give a run folder, a .keras file or a .safetensors file.",
            path=path,
        )
    return open_file(path)


def _layers(model: keras.Model, pattern: str, key: str) -> Sequence[keras.Layer]:
    found = [layer for layer in model.layers if fnmatch.fnmatchcase(layer.name, pattern)]
    if found:
        return found
    names = [layer.name for layer in model.layers if layer.weights]
    close = difflib.get_close_matches(pattern.strip("*"), names, n=1, cutoff=0.4)
    raise ConfigError(
        f"{key}: no layer is named {pattern!r}." + (f" Did you mean {close[0]!r}?" if close else ""),
        cure=f"The network's layers are: {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}",
        key=key,
    )

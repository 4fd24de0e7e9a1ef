"""`.keras` files made by a stranger: nothing in them runs, and what they would do is named."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import keras
import pytest
from saved_runs import classifier
from wording import fails_with

from trainer import models
from trainer.errors import RunError
from trainer.inference import saved_model
from trainer.inference.saved_model import open_file


@pytest.fixture
def saved(tmp_path) -> Path:
    classifier().save(tmp_path / "model.keras")
    return tmp_path / "model.keras"


def rewrite(path: Path, *, config: Any = None, extra: dict[str, bytes] | None = None) -> Path:
    """The same file with another config.json, which `config` makes of what it says, or further members."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    if config is not None:
        members["config.json"] = json.dumps(config(json.loads(members["config.json"]))).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {**members, **(extra or {})}.items():
            archive.writestr(name, content)
    return path


def lambda_file(path: Path) -> Path:
    """A Lambda layer whose function writes a file in the current folder, as Keras itself saves it."""
    volume = keras.Input((4,))
    layer = keras.layers.Lambda(lambda x: (open("marker", "w").close(), x)[1])  # noqa: PTH123
    keras.Model(volume, layer(volume)).save(path)
    Path("marker").unlink()
    return path


def first_layer(tree: dict, **changes: Any) -> dict:
    """The tree with other entries in the layer after the input."""
    tree["config"]["layers"][1].update(changes)
    return tree


def activated_by(config: dict, function: dict) -> dict:
    """The tree with another activation of the first layer that has one."""
    for layer in config["config"]["layers"]:
        if "activation" in layer["config"]:
            layer["config"]["activation"] = function
            return config
    raise AssertionError("no layer has an activation")


def function(module: str, name: str) -> dict:
    return {"module": module, "class_name": "function", "config": name, "registered_name": name}


def class_(module: str | None, name: str, config: dict | None = None, **more: Any) -> dict:
    return {"module": module, "class_name": name, "config": config or {}, "registered_name": None, **more}


REFUSED = {
    "keras.utils.get_file": lambda c: activated_by(c, function("keras.utils", "get_file")),
    "keras.config.enable_unsafe_deserialization": lambda c: activated_by(
        c, function("keras.config", "enable_unsafe_deserialization")
    ),
    "keras.saving.load_model": lambda c: activated_by(c, function("keras.saving", "load_model")),
    "keras.src.utils.file_utils.get_file": lambda c: activated_by(
        c, function("keras.src.utils.file_utils", "get_file")
    ),
    "keras.layers.Lambda": lambda c: first_layer(c, class_name="Lambda"),
    "keras.layers.TFSMLayer": lambda c: first_layer(c, class_name="TFSMLayer", config={"filepath": "evil"}),
    "keras.layers.TorchModuleWrapper": lambda c: first_layer(c, class_name="TorchModuleWrapper"),
    "keras.layers.StringLookup": lambda c: first_layer(
        c, class_name="StringLookup", config={"vocabulary": "/etc/passwd"}
    ),
    "keras.src.layers.core.lambda_layer.Lambda": lambda c: first_layer(
        c, module="keras.src.layers.core.lambda_layer", class_name="Lambda"
    ),
    "'__lambda__'": lambda c: activated_by(c, {"class_name": "__lambda__", "config": {"value": "x"}}),
    "'__typespec__'": lambda c: activated_by(c, {"class_name": "__typespec__", "config": []}),
    "keras.callbacks.BackupAndRestore": lambda c: first_layer(
        c, build_config=class_("keras.callbacks", "BackupAndRestore", {"backup_dir": "x"})
    ),
    "'Dense'": lambda c: first_layer(c, module=None, class_name="Dense"),
    "a function without a name": lambda c: activated_by(c, {"class_name": "function", "config": {}}),
    "['Dense']": lambda c: first_layer(c, class_name=["Dense"]),
}
OWN = {
    "'system'": lambda c: first_layer(c, module="os", class_name="system", config={"command": "touch x"}),
    "'popen'": lambda c: activated_by(c, function("os", "popen")),
    "'evil>Layer'": lambda c: first_layer(c, module="evil", class_name="Layer", registered_name="evil>Layer"),
    "'cingulum>Evil'": lambda c: first_layer(
        c, module="trainer", class_name="E", registered_name="cingulum>Evil"
    ),
    "'evil>swish'": lambda c: activated_by(c, function("builtins", "evil>swish")),
    "'KerasTensor'": lambda c: first_layer(c, module="keras_hub.src.utils", class_name="KerasTensor"),
}


@pytest.mark.parametrize("what", [*REFUSED, *OWN])
def test_what_is_no_part_of_a_network_is_refused_by_name(saved, monkeypatch, what):
    rewrite(saved, config={**REFUSED, **OWN}[what])

    def opened(*_: object, **__: object) -> None:
        raise AssertionError("Keras was asked to open it")

    monkeypatch.setattr(keras.saving, "load_model", opened)
    with pytest.raises(RunError) as error:
        open_file(saved)
    assert what in error.value.message and len(str(error.value)) < 600


def test_a_lambda_layer_as_keras_saves_it_is_never_called(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path, marker = lambda_file(tmp_path / "lambda.keras"), tmp_path / "marker"
    keras.saving.load_model(path, safe_mode=False)
    assert marker.exists(), "the file does what it is for where nothing stops it"
    marker.unlink()
    with fails_with(RunError):
        open_file(path)
    assert not marker.exists()


def test_a_lambda_in_the_compilation_of_an_inner_network_is_found(saved):
    lost = class_(
        "keras.losses", "Poisson", compile_config={"loss": {"class_name": "__lambda__", "config": {}}}
    )
    rewrite(saved, config=lambda c: first_layer(c, **lost))
    with fails_with(RunError):
        open_file(saved)


def test_members_outside_bombs_and_what_is_no_archive_are_refused(saved, tmp_path):
    genuine = saved.read_bytes()
    for name in ("../evil", "/etc/evil", "assets/../../evil", "assets\\evil"):
        saved.write_bytes(genuine)
        with fails_with(RunError):
            open_file(rewrite(saved, extra={name: b"x"}))
    saved.write_bytes(genuine)
    with zipfile.ZipFile(saved, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("assets/zeros", bytes(40 << 20))
    with fails_with(RunError):
        open_file(saved)
    saved.write_bytes(genuine)
    with zipfile.ZipFile(saved, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("config.json", "{}")
    with fails_with(RunError):
        open_file(saved)
    for content in (b"", b"no zip", genuine[:1000], genuine[len(genuine) // 2 :]):
        saved.write_bytes(content)
        with fails_with(RunError):
            open_file(saved)
    fifo = tmp_path / "fifo.keras"
    os.mkfifo(fifo)
    with fails_with(RunError):
        open_file(fifo)


def test_trees_of_the_wrong_kind_or_too_deep_are_refused(saved):
    for text in ("[" * 100_000, "{}", "[]", "null", '{"class_name": "Functional"}', '"x"'):
        rewrite(saved, extra={"config.json": text.encode()})
        with pytest.raises(RunError):
            open_file(saved)


def test_networks_of_ours_and_of_keras_own_pieces_open(tmp_path):
    path = tmp_path / "all.keras"
    models.build("resattnet18", (16, 16, 16, 1), 2, width=4).save(path)
    assert saved_model.own_classes(path) == ("cingulum>AttentionSum",)
    assert open_file(path).count_params()
    volume = keras.Input((4, 4, 1))
    x = keras.layers.Conv2D(
        2, 1, activation="gelu", kernel_regularizer="l2", kernel_constraint="max_norm", dtype="mixed_float16"
    )(volume)
    x = 2 * x[:, 0] + keras.ops.mean(x, axis=2)
    x = keras.layers.Bidirectional(keras.layers.GRU(2))(x)
    inner = keras.Model(volume, keras.layers.Dense(2, activation=keras.ops.relu)(x))
    model = keras.Sequential([keras.Input((4, 4, 1)), inner])
    model.compile(keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.1, 10)), "mse")
    model.save(path)
    assert saved_model.own_classes(path) == ()
    assert open_file(path).count_params() == model.count_params()

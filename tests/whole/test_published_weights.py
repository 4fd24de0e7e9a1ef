"""Weights published for PyTorch, in networks of ours: the same features, and errors where they do not fit."""

from __future__ import annotations

import re
import subprocess

import keras
import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import save_file
from wording import fails_with

from benchmarks.peers import starting
from trainer import models, published_weights, transfer
from trainer.errors import ModelError, RunError

WIDTH = 4
SHORTCUTS = {"resnet10": "B", "resnet18": "A", "resnet50": "B"}


def network(name, edge=(21, 24, 28), **options):
    medicalnet = {"medicalnet": SHORTCUTS[name]} if name in SHORTCUTS else {}
    return models.build(name, (*edge, 1), 2, width=WIDTH, **{**medicalnet, **options})


def theirs(blocks, is_bottleneck, kind, seed=0):
    """A state dictionary with the names and shapes of MedicalNet's, of another width."""
    random, state = np.random.default_rng(seed), {}

    def convolution(name, given, made, kernel):
        shape = (made, given, *(kernel,) * 3)
        state[f"{name}.weight"] = random.normal(0, (given * kernel**3) ** -0.5, shape).astype(np.float32)

    def norm(name, channels):
        for part, low, high in (("weight", 0.5, 1.5), ("bias", -0.3, 0.3), ("running_mean", -0.3, 0.3)):
            state[f"{name}.{part}"] = random.uniform(low, high, channels).astype(np.float32)
        state[f"{name}.running_var"] = random.uniform(0.5, 2, channels).astype(np.float32)
        state[f"{name}.num_batches_tracked"] = np.array(9)

    convolution("conv1", 1, WIDTH, 7)
    norm("bn1", WIDTH)
    given = WIDTH
    for stage, count in enumerate(blocks, start=1):
        width = WIDTH * 2 ** (stage - 1)
        made = width * (4 if is_bottleneck else 1)
        for block in range(count):
            place = f"layer{stage}.{block}"
            sizes = [(given, width, 1), (width, width, 3), (width, made, 1)]
            for number, size in enumerate(
                sizes if is_bottleneck else [(given, width, 3), (width, width, 3)], 1
            ):
                convolution(f"{place}.conv{number}", *size)
                norm(f"{place}.bn{number}", size[1])
            if kind == "B" and not block and (stage == 2 or given != made):
                convolution(f"{place}.downsample.0", given, made, 1)
                norm(f"{place}.downsample.1", made)
            given = made
    state["conv_seg.0.weight"] = np.zeros((2, 2), np.float32)
    return state


def features(state, blocks, x):
    """What MedicalNet makes of `(b, d, h, w, 1)` before its head, with PyTorch's borders written out."""

    def convolution(x, name, stride=1, dilation=1):
        kernel = state[f"{name}.weight"].transpose(2, 3, 4, 1, 0)
        border = dilation * (kernel.shape[0] // 2)
        x = np.pad(x, [(0, 0), *[(border, border)] * 3, (0, 0)])
        return tf.nn.convolution(x, kernel, [stride] * 3, "VALID", dilations=[dilation] * 3).numpy()

    def norm(x, name):
        scale = state[f"{name}.weight"] / np.sqrt(state[f"{name}.running_var"] + 1e-5)
        return (x - state[f"{name}.running_mean"]) * scale + state[f"{name}.bias"]

    x = np.maximum(norm(convolution(x, "conv1", 2), "bn1"), 0)
    x = np.pad(x, [(0, 0), *[(1, 1)] * 3, (0, 0)], constant_values=-np.inf)
    x = tf.nn.max_pool3d(x, 3, 2, "VALID").numpy()
    for stage, count in enumerate(blocks, start=1):
        dilation = {3: 2, 4: 4}.get(stage, 1)
        for block in range(count):
            place, stride = f"layer{stage}.{block}", 2 if stage == 2 and not block else 1
            numbers = [n for n in (1, 2, 3) if f"{place}.conv{n}.weight" in state]
            wide = 2 if len(numbers) == 3 else 1  # which of them has the stride
            y = x
            for number in numbers:
                is_wide = state[f"{place}.conv{number}.weight"].shape[-1] == 3
                y = convolution(
                    y, f"{place}.conv{number}", stride if number == wide else 1, dilation if is_wide else 1
                )
                y = norm(y, f"{place}.bn{number}")
                y = y if number == numbers[-1] else np.maximum(y, 0)
            if f"{place}.downsample.0.weight" in state:
                x = norm(convolution(x, f"{place}.downsample.0", stride), f"{place}.downsample.1")
            else:
                x = x[:, ::stride, ::stride, ::stride]
                x = np.pad(x, [(0, 0)] * 4 + [(0, y.shape[-1] - x.shape[-1])])
            x = np.maximum(x + y, 0)
    return x


def before_head(model):
    return keras.Model(model.inputs[0], model.get_layer("head_pool").input)


@pytest.mark.parametrize(
    ("name", "blocks", "is_bottleneck"),
    [("resnet10", (1,) * 4, False), ("resnet18", (2,) * 4, False), ("resnet50", (3, 4, 6, 3), True)],
)
def test_features_are_those_of_pytorchs_borders_and_dilations(tmp_path, name, blocks, is_bottleneck):
    state = theirs(blocks, is_bottleneck, SHORTCUTS[name])
    path = tmp_path / "weights.safetensors"
    save_file({f"module.{key}": value for key, value in state.items()}, path)
    model = network(name)
    said = transfer.start(model, path)
    assert said.endswith("new: head_logits")
    x = np.random.default_rng(1).normal(size=(2, 21, 24, 28, 1)).astype(np.float32)
    mine = before_head(model)(x, training=False).numpy()
    expected = features(state, blocks, x)
    assert mine.shape == expected.shape
    np.testing.assert_allclose(mine, expected, atol=1e-5 * np.abs(expected).max())


def sfcn_state(seed=0):
    random, state, given = np.random.default_rng(seed), {}, 1
    for number, widths in enumerate((1, 2, 4, 8, 8, 2)):
        place, made, kernel = f"feature_extractor.conv_{number}", widths * WIDTH, 1 if number == 5 else 3
        state[f"{place}.0.weight"] = random.normal(0, 0.1, (made, given, *(kernel,) * 3)).astype(np.float32)
        for part in ("0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var"):
            state[f"{place}.{part}"] = random.uniform(0.5, 1.5, made).astype(np.float32)
        given = made
    state["classifier.conv_6.weight"] = np.zeros((40, given, 1, 1, 1), np.float32)
    return state


def test_sfcns_biases_before_a_normalisation_are_in_its_mean(tmp_path):
    state = sfcn_state()
    save_file(state, tmp_path / "w.safetensors")
    model = network("sfcn", (32, 32, 32))
    taken, left = published_weights.start(model, tmp_path / "w.safetensors")
    assert (len(taken), left) == (12, ["head_logits"])
    first = keras.Model(model.inputs[0], model.get_layer("block1_norm").output)
    x = np.random.default_rng(1).normal(size=(1, 32, 32, 32, 1)).astype(np.float32)
    place = "feature_extractor.conv_0"
    y = tf.nn.convolution(x, state[f"{place}.0.weight"].transpose(2, 3, 4, 1, 0), padding="SAME").numpy()
    y = y + state[f"{place}.0.bias"] - state[f"{place}.1.running_mean"]
    y = y / np.sqrt(state[f"{place}.1.running_var"] + 1e-5) * state[f"{place}.1.weight"]
    np.testing.assert_allclose(first(x, training=False), y + state[f"{place}.1.bias"], atol=1e-5)


def written(tmp_path, state):
    path = tmp_path / "weights.safetensors"
    save_file(state, path)
    return path


B = theirs((1,) * 4, False, "B")


@pytest.mark.parametrize(
    ("state", "name", "options"),
    [
        ({"a.weight": np.zeros(3, np.float32)}, "resnet10", {}),
        (B, "resnet18", {}),
        (B, "resnet10", {"medicalnet": "A"}),
        (theirs((1,) * 4, False, "A"), "resnet10", {}),
        (B, "resnet10", {"width": 8}),
        (B, "sfcn", {}),
        (
            {name: array for name, array in B.items() if "layer3.0.bn2.running_var" not in name},
            "resnet10",
            {},
        ),
        ({**B, "conv1.weight": np.zeros((WIDTH, 3, 7, 7), np.float32)}, "resnet10", {}),
    ],
    ids=[
        "neither",
        "other depth",
        "shortcuts B",
        "shortcuts A",
        "width",
        "other network",
        "lacks one",
        "images",
    ],
)
def test_what_does_not_fit_is_said(tmp_path, state, name, options):
    edge = (32, 32, 32)
    path = written(tmp_path, state)
    medicalnet = {"medicalnet": SHORTCUTS[name]} if name in SHORTCUTS else {}
    model = models.build(name, (*edge, 1), 2, **{"width": WIDTH, **medicalnet, **options})
    before = model.get_weights()
    with fails_with(RunError):
        transfer.start(model, path)
    assert all(map(np.array_equal, before, model.get_weights()))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 a pickle", b"\xff" * 100])
def test_another_file_is_refused(tmp_path, content):
    path = tmp_path / "weights.safetensors"
    path.write_bytes(content)
    with pytest.raises(RunError, match="is no safetensors file"):
        transfer.start(network("resnet10"), path)


def test_a_file_that_is_missing_is_named(tmp_path):
    with pytest.raises(RunError, match=re.escape("gone.safetensors")):
        transfer.start(network("resnet10"), tmp_path / "gone.safetensors")


def test_unknown_shortcuts_are_refused():
    with fails_with(ModelError):
        network("resnet10", medicalnet="C")


@pytest.mark.deep
@pytest.mark.parametrize("name", ["resnet10", "resnet18", "resnet34", "resnet50", "sfcn"])
def test_pytorch_gives_the_same_features(tmp_path, name):
    if reason := starting.missing("ddp"):
        pytest.skip(reason)
    program = starting.CHECKOUT / "benchmarks" / "peers" / "published_networks.py"
    python = starting.ENVIRONMENT / "bin" / "python"
    subprocess.run([python, program, name, tmp_path], check=True, timeout=300)
    told = np.load(tmp_path / "features.npz")
    options = {} if name == "sfcn" else {"medicalnet": "A" if name in ("resnet18", "resnet34") else "B"}
    model = models.build(name, told["x"].shape[1:], 2, **options)
    published_weights.start(model, tmp_path / "weights.safetensors")
    mine = before_head(model)(told["x"], training=False).numpy()
    np.testing.assert_allclose(mine, told["features"], atol=1e-4)

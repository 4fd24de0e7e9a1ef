"""The registry, networks of the user's own, and the parts that the networks share."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from wording import fails_with

from trainer import models
from trainer.errors import ModelError
from trainer.models import layers
from trainer.models.batch_norm import SyncBatchNormalization


def test_layer_names_are_the_same_in_every_build():
    first, second = (models.build("resattnet34", (16, 16, 16, 1), 2, width=2) for _ in range(2))
    assert [layer.name for layer in first.layers] == [layer.name for layer in second.layers]
    assert not [layer.name for layer in first.layers if layer.name[-1].isdigit() and "pool" not in layer.name]


@pytest.mark.parametrize(("channels", "groups"), [(4, 1), (8, 2), (12, 3), (64, 16), (512, 32), (7, 1)])
def test_groups_divide_the_channels_and_hold_at_least_four(channels, groups):
    assert layers.normalisation("group", channels, name="n").groups == groups


def test_a_residual_block_starts_as_the_identity_of_its_shortcut():
    x = keras.Input((4, 4, 4, 8))
    block = keras.Model(x, layers.residual_block(x, 8, norm="batch", name="b"))
    volume = np.random.default_rng(0).uniform(0, 1, (1, 4, 4, 4, 8)).astype("float32")
    np.testing.assert_array_equal(np.asarray(block(volume)), volume)


def test_dropout_acts_in_training_only():
    model = models.build("tiny", (16, 16, 16, 1), 2, dropout=0.5)
    x = np.random.default_rng(0).normal(size=(1, 16, 16, 16, 1)).astype("float32")
    still = [np.asarray(model(x, training=False)) for _ in range(2)]
    assert np.array_equal(*still)
    assert model.get_layer("head_dropout").rate == 0.5


def test_only_a_head_without_pooling_sees_where_something_is():
    """A mark in one corner of the volume or in the other: a mean over the last feature map is the same."""
    here = np.zeros((1, 32, 32, 32, 1), "float32")
    here[0, 10:13, 10:13, 10:13] = 1
    there = np.roll(here, 8, axis=(1, 2, 3))  # by the product of the strides, far from the edges
    for pool, differs in (("mean", False), ("none", True)):
        keras.utils.set_random_seed(0)
        model = models.build("tiny", (32, 32, 32, 1), 2, normalisation="none", pool=pool)
        told = [np.asarray(model(x)) for x in (here, there)]
        assert np.allclose(*told, atol=1e-5) != differs
        assert model.get_layer("head_logits").kernel.shape[0] == {"mean": 32, "none": 32 * 4**3}[pool]


def test_all_weights_learn():
    keras.utils.set_random_seed(0)
    model = models.build("resattnet18", (16, 16, 16, 1), 2, width=4)
    before = [v.numpy() for v in model.trainable_variables]
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x = np.random.default_rng(0).normal(size=(4, 16, 16, 16, 1)).astype("float32")
    for _ in range(4):  # gammas that start at 0 hold back what lies behind them for a step or two
        model.train_on_batch(x, np.array([0, 1, 0, 1]))
    still = [
        v.path
        for v, old in zip(model.trainable_variables, before, strict=True)
        if np.array_equal(v.numpy(), old)
    ]
    # At one voxel the softmax is over one key, so f and g of that stage cannot matter.
    assert not [path for path in still if "attention_f" not in path and "attention_g" not in path]


class TestBadInput:
    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (("resatnet18", (32, 32, 32, 1), 2), "Did you mean 'resattnet18'"),
            (("nothing-like-it", (32, 32, 32, 1), 2), "Known: alexnet, conv2, densenet121, "),
            (("tiny", (32, 15, 32, 1), 2), "32x15x32 voxels are too small"),
            (("tiny", (32, 32, 32), 2), "a volume needs depth, height, width and channels"),
            (("tiny", (32, 32, 32, 0), 2), "a volume needs depth, height, width and channels"),
            (("tiny", (32, 32, 32, 1), 0), "0 outputs: must be at least 1"),
            (("no.such.module:net", (32, 32, 32, 1), 2), "There is no module 'no.such.module'"),
            (("trainer.models.tiny:tini", (32, 32, 32, 1), 2), "Did you mean 'tiny'"),
            (("nowhere/net.py:build", (32, 32, 32, 1), 2), "no such Python file"),
        ],
    )
    def test_is_named(self, arguments, says):
        with pytest.raises(ModelError) as caught:
            models.build(*arguments)
        assert says in str(caught.value)

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ({"droput": 0.5}, "Did you mean 'dropout'"),
            ({"dropout": 1.0}, "below 1"),
            ({"width": 0}, "at least 1"),
            ({"width": 2.5}, "whole number"),
            ({"pool": "max"}, "Known: mean, none"),
            ({"normalisation": "instanse"}, "Known: batch, sync, group, instance, layer, none"),
        ],
    )
    def test_in_an_option_is_named(self, options, says):
        with pytest.raises(ModelError) as caught:
            models.build("tiny", (32, 32, 32, 1), 2, **options)
        assert says in str(caught.value)


OWN = """
import keras

def build(input_shape, classes, *, hidden=4):
    x = volume = keras.Input(input_shape)
    x = keras.layers.Conv3D(hidden, 3, name="own_conv")(x)
    x = keras.layers.BatchNormalization(name="own_norm")(x)
    x = keras.layers.GlobalAveragePooling3D()(x)
    return keras.Model(volume, keras.layers.Dense(classes, dtype="float32")(x))

def probabilities(input_shape, classes):
    x = volume = keras.Input(input_shape)
    x = keras.layers.GlobalAveragePooling3D()(x)
    return keras.Model(volume, keras.layers.Dense(classes, activation="softmax")(x))

def one_output(input_shape, classes):
    return build(input_shape, 1)

def voxelwise(input_shape, classes):
    volume = keras.Input(input_shape)
    return keras.Model(volume, keras.layers.Conv3D(classes, 1, dtype="float32")(volume))

def stacked(input_shape, classes):
    return keras.Sequential([keras.Input(input_shape), keras.layers.Flatten(), keras.layers.Dense(classes)])

def hidden_layers(input_shape, classes):
    class Hidden(keras.Model):
        def call(self, x):
            return x
    return Hidden()

def no_model(input_shape, classes):
    return "a network"

def no_return(input_shape, classes):
    build(input_shape, classes)

def frozen(input_shape, classes):
    model = build(input_shape, classes)
    model.trainable = False
    return model
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_networks.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    monkeypatch.delitem(sys.modules, "own_networks", raising=False)
    monkeypatch.delitem(sys.modules, "cingulum_own_own_networks", raising=False)
    return tmp_path


class TestOnesOwnNetwork:
    def test_of_two_files_of_one_name_each_is_found(self, own):
        for folder, filters in (("a", 3), ("b", 5)):
            (own / folder).mkdir()
            (own / folder / "net.py").write_text(
                "import keras\n"
                "def build(shape, classes):\n"
                "    x = keras.Input(shape)\n"
                f"    y = keras.layers.Conv3D({filters}, 1)(x)\n"
                "    y = keras.layers.GlobalAveragePooling3D()(y)\n"
                "    return keras.Model(x, keras.layers.Dense(classes)(y))\n"
            )
        built = [models.build(f"{place}/net.py:build", (8, 8, 8, 1), 2) for place in ("a", "b", "a")]
        assert [model.layers[1].filters for model in built] == [3, 5, 3]

    @pytest.mark.parametrize("place", ["own_networks", "own_networks.py"])
    def test_is_found_beside_the_user_and_takes_its_options(self, own, place):
        model = models.build(f"{place}:build", (8, 8, 8, 1), 2, hidden=6)
        assert model.get_layer("own_conv").filters == 6

    @pytest.mark.parametrize(
        ("function", "says"),
        [
            ("probabilities", "ends in a softmax"),
            ("one_output", "one logit per class"),
            ("no_model", "returned a value of the type str, not a keras.Model"),
            ("no_return", "returned nothing, not a keras.Model.\n  Its function ends in: return"),
            ("frozen", "own_networks:frozen: returned a model with nothing to train: none of its 5 layers"),
            ("voxelwise", "(None, 2) is wanted, one logit per class"),
            ("hidden_layers", "returned a Hidden that is neither functional nor sequential"),
        ],
    )
    def test_that_does_not_fit_is_refused(self, own, function, says):
        with pytest.raises(ModelError) as caught:
            models.build(f"own_networks:{function}", (8, 8, 8, 1), 2)
        assert says in str(caught.value)

    def test_may_be_sequential(self, own):
        model = models.build("own_networks:stacked", (8, 8, 8, 1), 2, covariates=1)
        assert model.count_params() == (8**3 + 1) * 2 + 2

    def test_may_give_an_output_for_each_voxel(self, own):
        model = models.build("own_networks:voxelwise", (8, 6, 4, 1), 3, dense=True)
        assert model.output_shape == (None, 8, 6, 4, 3)
        with fails_with(ModelError):
            models.build("own_networks:build", (8, 6, 4, 1), 3, dense=True)

    def test_without_a_width_says_so(self, own):
        with fails_with(ModelError):
            models.build("own_networks:build", (8, 8, 8, 1), 2, width=8)

    @pytest.mark.parametrize("place", ["broken_network", "broken_network.py"])
    @pytest.mark.parametrize(
        ("code", "says"),
        [
            (
                "import a_package_nobody_has\n",
                "broken_network.py:1: ModuleNotFoundError: No module named 'a_",
            ),
            ("\ndef build(:\n", "broken_network.py:2: SyntaxError"),
            ("\n\nwidth = 1 / 0\n", "broken_network.py:3: ZeroDivisionError: division by zero"),
            (
                "import keras\ndef build(shape, classes):\n    return keras.layers.Dense(-1)\n",
                "broken_network.py:3: ValueError",
            ),
            (
                "import sys\nsys.exit(0)\n",
                "broken_network.py:2: it ends the program (exit code 0).\n  Remove the exit",
            ),
            (
                "def build(shape, classes):\n    raise SystemExit\n",
                "broken_network.py:2: it ends the program",
            ),
            ("def build(shape):\n    pass\n", "TypeError: build() takes 1 positional argument"),
        ],
        ids=["import", "syntax", "module", "build", "exit", "exit of a function", "signature"],
    )
    def test_that_raises_is_told_with_its_line(self, own, monkeypatch, place, code, says):
        (own / "broken_network.py").write_text(code)
        importlib.invalidate_caches()
        for module in ("broken_network", "cingulum_own_broken_network"):
            monkeypatch.delitem(sys.modules, module, raising=False)
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        for _ in range(2):  # half a module must not be found the second time
            with pytest.raises(ModelError) as caught:
                models.build(f"{place}:build", (8, 8, 8, 1), 2)
            assert says in str(caught.value)

    def test_can_be_registered_once_under_a_name(self, monkeypatch):
        from trainer.models import registry

        monkeypatch.setattr(registry, "_NETWORKS", dict(registry._NETWORKS))

        @models.register("mine")
        def mine(input_shape, classes, *, width=4):
            """My network."""
            return models.build("tiny", input_shape, classes, width=width)

        assert "mine" in models.names()
        assert models.describe("mine").summary == "My network."
        assert models.build("mine", (16, 16, 16, 1), 2).output_shape == (None, 2)
        with fails_with(ModelError):
            models.register("mine")(lambda input_shape, classes: None)


def test_the_example_of_the_how_to_page_works(tmp_path):
    page = Path(__file__).parents[2] / "docs" / "how-to" / "add-your-own-network.md"
    code = page.read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0]
    (tmp_path / "my_networks.py").write_text(code, encoding="utf-8")
    model = models.build(f"{tmp_path / 'my_networks.py'}:small_vgg", (16, 16, 16, 1), 3, width=4, dropout=0.3)
    assert model.output_shape == (None, 3)


class TestRegisteredNetwork:
    @pytest.fixture(autouse=True)
    def registry(self, monkeypatch):
        from trainer.models import registry

        monkeypatch.setattr(registry, "_NETWORKS", dict(registry._NETWORKS))

    def test_with_an_output_per_voxel_is_taken_for_segmentation_only(self):
        @models.register("voxelwise", dense=True, smallest=4)
        def voxelwise(input_shape, classes, *, width=4):
            volume = keras.Input(input_shape)
            return keras.Model(volume, keras.layers.Conv3D(classes, 3, padding="same")(volume))

        model = models.build("voxelwise", (4, 5, 6, 1), 3, dense=True)
        assert model.output_shape == (None, 4, 5, 6, 3)
        assert "voxelwise" in models.names(dense=True) and "voxelwise" not in models.names(dense=False)
        with pytest.raises(ModelError) as caught:
            models.build("voxelwise", (8, 8, 8, 1), 3)
        assert "gives an output for each voxel" in str(caught.value)
        assert "take one of" in str(caught.value) and "tiny" in str(caught.value)
        with pytest.raises(ModelError) as caught:
            models.build("tiny", (16, 16, 16, 1), 3, dense=True)
        assert "gives one output for a whole volume" in str(caught.value)
        assert "voxelwise" in str(caught.value)

    def test_says_how_small_a_volume_it_takes(self):
        @models.register("demanding", smallest=40)
        def demanding(input_shape, classes, *, width=4):
            return models.build("tiny", input_shape, classes, width=width)

        assert models.build("demanding", (40, 40, 40, 1), 2).output_shape == (None, 2)
        with fails_with(ModelError):
            models.build("demanding", (40, 39, 40, 1), 2)

    def test_of_images_takes_them_as_slices_too(self):
        @models.register("flat", dimensions=2)
        def flat(input_shape, classes, *, width=4):
            x = volume = keras.Input(input_shape)
            x = keras.layers.Reshape(input_shape[-3:])(x)
            return keras.Model(volume, keras.layers.Dense(classes)(keras.layers.Flatten()(x)))

        for shape in [(16, 20, 3), (1, 16, 20, 3)]:
            assert models.build("flat", shape, 2).input_shape == (None, *shape)
        with fails_with(ModelError):
            models.build("flat", (16, 16, 16, 3), 2)
        with fails_with(ModelError):
            models.build("flat", (1, 16, 15, 3), 2)


class TestSynchronousBatchNormalisation:
    @pytest.mark.parametrize("name", ["resattnet18", "tiny"])
    def test_changes_the_layers_and_neither_names_nor_weights(self, name):
        keras.utils.set_random_seed(3)
        plain = models.build(name, (16, 16, 16, 1), 2, width=4)
        keras.utils.set_random_seed(3)
        synchronous = models.build(name, (16, 16, 16, 1), 2, width=4, sync_batch_norm=True)
        kinds = {type(layer) for layer in synchronous.layers if layer.name.endswith("_norm")}
        assert kinds == {SyncBatchNormalization}
        assert [layer.name for layer in synchronous.layers] == [layer.name for layer in plain.layers]
        for ours, theirs in zip(plain.weights, synchronous.weights, strict=True):
            assert ours.path == theirs.path
            assert np.array_equal(ours.numpy(), theirs.numpy())

    def test_is_put_into_ones_own_network(self, own):
        model = models.build("own_networks:build", (8, 8, 8, 1), 2, sync_batch_norm=True)
        assert type(model.get_layer("own_norm")) is SyncBatchNormalization

    def test_that_cannot_be_put_in_is_refused(self, own):
        hidden = "    x = keras.Sequential([keras.layers.BatchNormalization()])(x)\n"
        code = OWN.replace('    x = keras.layers.BatchNormalization(name="own_norm")(x)\n', hidden)
        (own / "hidden_norm.py").write_text(code)
        with fails_with(ModelError):
            models.build("hidden_norm.py:build", (8, 8, 8, 1), 2, sync_batch_norm=True)

    def test_leaves_a_network_without_batch_normalisation_alone(self):
        model = models.build("tiny", (16, 16, 16, 1), 2, normalisation="group", sync_batch_norm=True)
        assert "GroupNormalization" in {type(layer).__name__ for layer in model.layers}

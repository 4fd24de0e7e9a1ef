"""What holds for every registered network: shapes, precision, seeds, options, training, files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import keras
import numpy as np
import pytest
from network_cases import sides_of, small
from wording import fails_with

from trainer import models
from trainer.errors import ModelError
from trainer.models import layers
from trainer.models.batch_norm import SyncBatchNormalization

pytestmark = pytest.mark.slow

every_network = pytest.mark.parametrize("name", models.names())
# The others are made of the same parts as ResNet-10 and ResAttNet-18, only of more.
MORE_OF_THE_SAME = {"resnet18", "resnet34", "resattnet34"}
every_kind = pytest.mark.parametrize("name", sorted(set(models.names()) - MORE_OF_THE_SAME))


@contextlib.contextmanager
def precision(policy: str) -> Iterator[None]:
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def noise(model: keras.Model, batch: int = 2) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(batch, *model.input_shape[1:])).astype("float32")


@every_kind
def test_it_gives_float32_logits_for_uneven_sizes_and_several_channels(name):
    network = models.describe(name)
    least = network.smallest
    # A U-Net takes multiples of 8.
    sides = (least, least + 8, 2 * least) if network.dense else (least + 1, least + 8, least)
    if network.dimensions == 2:
        sides = (1, *sides[1:])
    model = small(name, sides=sides, channels=2, outputs=3)
    logits = model(noise(model))
    assert tuple(logits.shape) == ((2, *sides, 3) if network.dense else (2, 3))
    assert keras.backend.standardize_dtype(logits.dtype) == "float32"
    assert np.isfinite(np.asarray(logits)).all()


@every_network
def test_it_takes_one_output_as_a_regression_does(name):
    assert small(name, outputs=1, make=models.outline).output_shape[-1] == 1


@every_network
def test_it_refuses_a_volume_that_is_too_small_and_says_what_is_enough(name):
    least = models.describe(name).smallest
    with pytest.raises(ModelError) as caught:
        small(name, sides=sides_of(name, least - 1))
    assert f"each side needs at least {least}" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        *((name, "mixed_float16") for name in sorted(set(models.names()) - MORE_OF_THE_SAME)),
        ("resattnet18", "mixed_bfloat16"),
        ("unet3d", "mixed_bfloat16"),
    ],
)
def test_it_runs_in_half_precision_and_gives_float32(name, policy):
    with precision(policy):
        model = small(name, normalisation="group")
        logits = model(noise(model))
    assert keras.backend.standardize_dtype(logits.dtype) == "float32"
    assert np.isfinite(np.asarray(logits)).all()
    half = policy.removeprefix("mixed_")
    for layer in model.layers:
        if layer.name.endswith("_conv"):
            on_small_map = layer.kernel_size[0] > layer.input.shape[1]
            expected = "float32" if half == "bfloat16" and on_small_map else half
            assert layer.compute_dtype == expected, layer.name


@every_kind
def test_the_seed_decides_its_weights(name):
    def weights(seed: int) -> list[np.ndarray]:
        keras.utils.set_random_seed(seed)
        return small(name).get_weights()

    first, again, other = weights(1), weights(1), weights(2)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


KINDS = {
    "batch": {"BatchNormalization"},
    "sync": {"BatchNormalization"},
    "group": {"GroupNormalization"},
    "instance": {"GroupNormalization"},
    "layer": {"GroupNormalization"},
    "none": set(),
}


@every_network
@pytest.mark.parametrize("kind", KINDS)
def test_its_normalisation_can_be_chosen(name, kind):
    # At the smallest size the last stage of some is one voxel, which instance normalisation makes 0.
    network = models.describe(name)
    side = network.smallest if kind != "instance" else 2 * network.smallest + (not network.dense)
    model = small(name, sides=sides_of(name, side), width=8, normalisation=kind, make=models.outline)
    assert {type(layer).__name__ for layer in model.layers if layer.name.endswith("_norm")} == KINDS[kind]
    if kind == "sync":
        assert SyncBatchNormalization in {type(layer) for layer in model.layers}
    # Where nothing normalises, the convolutions have a bias of their own.
    convolutions = [layer for layer in model.layers if layer.name.endswith("_conv")]
    assert {layer.use_bias for layer in convolutions} == {kind == "none"}


@every_kind
def test_synchronous_batch_normalisation_changes_layers_and_neither_names_nor_weights(name):
    keras.utils.set_random_seed(3)
    plain = small(name, normalisation="batch")
    keras.utils.set_random_seed(3)
    synchronous = small(name, normalisation="batch", sync_batch_norm=True)
    kinds = {type(layer) for layer in synchronous.layers if layer.name.endswith("_norm")}
    assert kinds == {SyncBatchNormalization}
    assert [layer.name for layer in synchronous.layers] == [layer.name for layer in plain.layers]
    for ours, theirs in zip(plain.weights, synchronous.weights, strict=True):
        assert ours.path == theirs.path
        assert np.array_equal(ours.numpy(), theirs.numpy())


@every_kind
def test_dropout_acts_in_training_only(name):
    model = small(name, dropout=0.5, normalisation="group")
    assert [layer.rate for layer in model.layers if isinstance(layer, keras.layers.Dropout)] == [0.5]
    x = noise(model)
    still = [np.asarray(model(x, training=False)) for _ in range(2)]
    moving = [np.asarray(model(x, training=True)) for _ in range(2)]
    assert np.array_equal(*still)
    assert not np.array_equal(*moving)
    with fails_with(ModelError):
        small(name, dropout=1.0)


@pytest.mark.parametrize("name", ["vgg", "alexnet"])
def test_the_two_hidden_layers_stand_between_dropouts(name):
    model = small(name, hidden=6, dropout=0.5)
    last = [type(layer).__name__ for layer in model.layers[-9:]]
    assert last == ["GlobalAveragePooling3D", *2 * ["Dropout", "Dense", "Activation"], "Dropout", "Dense"]
    assert [layer.units for layer in model.layers if isinstance(layer, keras.layers.Dense)] == [6, 6, 2]


@pytest.mark.parametrize("name", sorted(set(models.names(dense=False)) - MORE_OF_THE_SAME))
def test_covariates_go_into_every_network_for_whole_volumes(name):
    model = small(name, covariates=2)
    x = np.random.default_rng(0).normal(size=(2, *sides_of(name), 1)).astype("float32")
    table = np.eye(2, dtype="float32")
    assert not np.array_equal(np.asarray(model([x, table])), np.asarray(model([x, table[::-1]])))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.deep if name in MORE_OF_THE_SAME else ())
        for name in models.names()
    ],
)
def test_it_trains_an_epoch_and_comes_back_from_a_file(name, tmp_path):
    keras.utils.set_random_seed(0)
    model = small(name)
    # Two steps: a scale that starts at 0 holds back for one step what lies behind it. Four volumes in each:
    # batch normalisation of two values gives 1 and -1 whatever they are.
    x = noise(model, batch=8)
    dense = models.describe(name).dense
    labels = (x[..., 0] > 0).astype("int32") if dense else np.arange(8) % 2
    before = [variable.numpy() for variable in model.trainable_variables]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # Tracing a graph of 175 layers would take longer than the two steps.
    model.compile(keras.optimizers.Adam(0.01), loss, run_eagerly=True)
    history = model.fit(x, labels, batch_size=4, epochs=1, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    still = [
        variable.path
        for variable, old in zip(model.trainable_variables, before, strict=True)
        if np.array_equal(variable.numpy(), old)
    ]
    # Where a stage is one voxel, the softmax is over one key, so that f and g cannot matter.
    assert not [path for path in still if "attention_f" not in path and "attention_g" not in path]

    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert [layer.name for layer in again.layers] == [layer.name for layer in model.layers]
    np.testing.assert_array_equal(np.asarray(again(x)), np.asarray(model(x)))


@pytest.mark.parametrize("name", models.names(dense=True))
@pytest.mark.parametrize(
    ("kind", "alone"), [("instance", True), ("group", True), ("layer", True), ("batch", False)]
)
def test_a_volume_is_segmented_alike_alone_and_in_a_batch(name, kind, alone):
    model = small(name, sides=(16, 8, 16), normalisation=kind, outputs=3, depth=2)
    x = noise(model)
    together = np.asarray(model(x, training=True))
    single = np.concatenate([np.asarray(model(x[i : i + 1], training=True)) for i in range(2)])
    assert np.allclose(together, single, atol=1e-5) == alone


@pytest.mark.parametrize("kind", ["resnet18", "densenet121"])
def test_instance_normalisation_of_one_voxel_is_refused(kind):
    with fails_with(ModelError):
        small(kind, normalisation="instance")
    x = keras.Input((1, 1, 2, 4))
    assert layers.normalised(x, "instance", name="n").shape == x.shape


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("vgg", {"depth": 12}, "configurations of 11, 13, 16, 19 layers"),
        ("vgg", {"hidden": -1}, "hidden is -1"),
        ("alexnet", {"hidden": 2.5}, "hidden is 2.5"),
        ("densenet121", {"compression": 0}, "above 0 and at most 1"),
        ("densenet121", {"growth_rate": 0}, "growth_rate is 0"),
        ("densenet121", {"blocks": []}, "blocks is []"),
        ("conv2", {"second": 0}, "second is 0"),
        ("resattnet18", {"attention": [0]}, "numbered 1 to 4"),
    ],
)
def test_an_impossible_option_is_named(name, options, says):
    with pytest.raises(ModelError) as caught:
        small(name, **options)
    assert says in str(caught.value)


@pytest.mark.parametrize("shape", [(16, 20, 3), (1, 16, 20, 3)])
def test_the_network_of_images_takes_images_and_single_slices_alike(shape):
    keras.utils.set_random_seed(0)
    model = models.build("conv2", shape, 4, width=4)
    x = np.random.default_rng(0).normal(size=(2, 16, 20, 3)).astype("float32")
    keras.utils.set_random_seed(0)
    image = models.build("conv2", (16, 20, 3), 4, width=4)
    np.testing.assert_array_equal(np.asarray(model(x.reshape(2, *shape))), np.asarray(image(x)))

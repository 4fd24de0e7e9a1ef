"""Covariates beside the volume: what goes in, what comes out, and what is refused."""

from __future__ import annotations

import keras
import numpy as np
from wording import fails_with

from trainer import models
from trainer.errors import ModelError
from trainer.models.registry import with_covariates

SHAPE = (16, 16, 16, 1)


def sample(count: int, batch: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return (
        rng.normal(size=(batch, *SHAPE)).astype("float32"),
        rng.normal(size=(batch, count)).astype("float32"),
    )


def test_they_add_one_weight_each_per_output_and_nothing_else():
    plain = models.build("tiny", SHAPE, 3, width=4)
    both = models.build("tiny", SHAPE, 3, width=4, covariates=2)
    assert both.count_params() == plain.count_params() + 2 * 3
    assert [layer.name for layer in both.layers if layer.name not in {x.name for x in plain.layers}] == [
        "covariates",
        "head_covariates",
    ]


def test_logits_are_linear_in_features_and_covariates_together():
    model = models.build("tiny", SHAPE, 3, width=4, covariates=2)
    x, table = sample(2)
    pooled = keras.Model(model.inputs[0], model.get_layer("head_pool").output)
    kernel, bias = (w.astype("float64") for w in model.get_layer("head_logits").get_weights())
    features = np.concatenate([np.asarray(pooled(x), "float64"), table.astype("float64")], axis=1)
    np.testing.assert_allclose(np.asarray(model([x, table])), features @ kernel + bias, rtol=1e-5, atol=1e-6)


def test_the_inputs_are_the_volume_and_the_covariates_by_name():
    model = models.build("tiny", SHAPE, 2, width=4, covariates=4)
    assert [tensor.shape for tensor in model.inputs] == [(None, *SHAPE), (None, 4)]
    assert model.inputs[1].name == "covariates"


def test_dropout_acts_on_the_features_and_on_no_covariate():
    model = models.build("tiny", SHAPE, 1, width=4, covariates=2, dropout=0.9)
    joined = keras.Model(model.inputs, model.get_layer("head_covariates").output)
    x, table = sample(2, batch=16)
    seen = np.asarray(joined([x, table], training=True))
    assert (seen[:, :-2] == 0).mean() > 0.5
    np.testing.assert_array_equal(seen[:, -2:], table)


def test_they_stay_float32_under_mixed_precision():
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = models.build("tiny", SHAPE, 2, width=4, covariates=1)
        joined = keras.Model(model.inputs, model.get_layer("head_covariates").output)
        x, _ = sample(1)
        table = np.array([[1 + 2**-20]] * 3, "float32")  # a bfloat16 has 8 bits
        seen = np.asarray(joined([x, table]))
    finally:
        keras.config.set_dtype_policy(before)
    assert seen.dtype == np.float32
    np.testing.assert_array_equal(seen[:, -1:], table)


def test_the_model_learns_from_covariates_and_comes_back_from_a_file(tmp_path):
    keras.utils.set_random_seed(0)
    model = models.build("tiny", SHAPE, 2, width=4, covariates=1, normalisation="group")
    x, _ = sample(1, batch=16)
    x = np.repeat(x[:1], 16, axis=0)  # equal volumes: only the covariate tells the classes apart
    labels = np.arange(16) % 2
    table = (2.0 * labels[:, None] - 1).astype("float32")
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    for _ in range(20):
        model.train_on_batch([x, table], labels)
    np.testing.assert_array_equal(np.argmax(model.predict([x, table], verbose=0), axis=1), labels)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(np.asarray(model([x, table])), np.asarray(again([x, table])))


def test_they_stay_where_batch_normalisation_is_made_synchronous():
    model = models.build("tiny", SHAPE, 2, width=4, covariates=3, sync_batch_norm=True)
    assert [tensor.shape for tensor in model.inputs] == [(None, *SHAPE), (None, 3)]
    x, table = sample(3)
    assert not np.array_equal(np.asarray(model([x, table])), np.asarray(model([x, 0 * table])))


def test_ones_own_network_takes_them_functional_and_sequential():
    volume = keras.Input((8, 8, 8, 1))
    features = keras.layers.Flatten()(volume)
    functional = keras.Model(volume, keras.layers.Dense(2)(features))
    sequential = keras.Sequential([keras.Input((8, 8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(2)])
    for model in (functional, sequential):
        both = with_covariates("mine", model, 3)
        assert both.output_shape == (None, 2)
        assert both.count_params() == model.count_params() + 3 * 2


class TestRefused:
    def test_where_the_last_layer_is_no_dense_layer(self):
        volume = keras.Input((8, 8, 8, 1))
        pooled = keras.layers.GlobalAveragePooling3D()(keras.layers.Conv3D(2, 1)(volume))
        with fails_with(ModelError):
            with_covariates("mine", keras.Model(volume, pooled), 1)

    def test_where_something_follows_the_dense_layer(self):
        volume = keras.Input((8, 8, 8, 1))
        logits = keras.layers.Dense(2)(keras.layers.Flatten()(volume))
        with fails_with(ModelError):
            with_covariates("mine", keras.Model(volume, keras.layers.Rescaling(2.0)(logits)), 1)

    def test_where_the_last_layer_is_dense_on_every_voxel(self):
        volume = keras.Input((8, 8, 8, 1))
        with fails_with(ModelError):
            with_covariates("mine", keras.Model(volume, keras.layers.Dense(2)(volume)), 1)

    def test_beside_an_output_for_each_voxel(self, monkeypatch):
        from trainer.models import registry

        monkeypatch.setattr(registry, "_NETWORKS", dict(registry._NETWORKS))
        models.register("voxelwise", dense=True)(lambda input_shape, classes: None)
        with fails_with(ModelError):
            models.build("voxelwise", SHAPE, 2, dense=True, covariates=1)

    def test_fewer_than_none(self):
        with fails_with(ModelError):
            models.build("tiny", SHAPE, 2, covariates=-1)

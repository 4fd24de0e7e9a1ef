"""3D-ResAttNet and its self-attention, against arithmetic done by hand."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from wording import fails_with

from trainer import models
from trainer.errors import ModelError
from trainer.models.attention import AttentionSum, self_attention


def trainable(model: keras.Model) -> int:
    return sum(int(np.prod(v.shape)) for v in model.trainable_variables)


def hand_count(
    blocks: tuple[int, ...], width: int, channels: int, classes: int, attention: tuple[int, ...]
) -> int:
    """Trainable parameters, counted from the description in docs/reference/networks.md."""
    total = 7**3 * channels * width + 2 * width
    before = width
    for stage, count in enumerate(blocks, start=1):
        now = width * 2 ** (stage - 1)
        for block in range(count):
            incoming = before if block == 0 else now
            total += 27 * incoming * now + 27 * now * now + 4 * now
            if incoming != now:
                total += incoming * now + 2 * now
        if stage in attention:
            inner = max(1, now // 8)
            total += 2 * (now * inner + inner) + now * now + now + 1
        before = now
    return total + before * classes + classes


@pytest.mark.parametrize(("name", "blocks"), [("resattnet18", (2, 2, 2, 2)), ("resattnet34", (3, 4, 6, 3))])
@pytest.mark.parametrize(("width", "attention"), [(4, (3, 4)), (12, (2,)), (8, ())])
def test_parameters_are_those_of_a_hand_count(name, blocks, width, attention):
    model = models.build(name, (16, 16, 16, 2), 3, width=width, attention=attention)
    assert trainable(model) == hand_count(blocks, width, 2, 3, attention)


def test_at_the_published_width_resattnet18_adds_its_attention_to_resnet18():
    added = hand_count((2, 2, 2, 2), 64, 1, 2, (3, 4)) - hand_count((2, 2, 2, 2), 64, 1, 2, ())
    resnet = trainable(models.build("resnet18", (32, 32, 32, 1), 2))
    assert trainable(models.build("resattnet18", (32, 32, 32, 1), 2)) == resnet + added


def naive_attention(x, model, name):
    """sum over i of softmax_i(f(x_i)' g(x_j)) h(x_i), one voxel after the other, in float64."""

    def project(part):
        kernel, bias = (w.astype("float64") for w in model.get_layer(f"{name}_{part}").get_weights())
        return x.reshape(-1, x.shape[-1]).astype("float64") @ kernel[0, 0, 0] + bias

    f, g, h = (project(part) for part in "fgh")
    rows = []
    for query in g:
        scores = f @ query
        beta = np.exp(scores - scores.max())
        rows.append((beta / beta.sum()) @ h)
    return np.array(rows).reshape(x.shape)


def test_attention_is_the_sum_that_the_paper_writes():
    keras.utils.set_random_seed(0)
    volume = keras.Input((3, 2, 4, 16))
    model = keras.Model(volume, self_attention(volume, name="a"))
    x = np.random.default_rng(0).normal(size=(1, 3, 2, 4, 16)).astype("float32")
    model.get_layer("a_sum").gamma.assign(0.7)
    expected = 0.7 * naive_attention(x[0], model, "a") + x[0]
    np.testing.assert_allclose(np.asarray(model(x))[0], expected, rtol=1e-5, atol=1e-5)


def test_attention_starts_as_the_identity():
    volume = keras.Input((2, 2, 2, 8))
    model = keras.Model(volume, self_attention(volume, name="a"))
    x = np.random.default_rng(0).normal(size=(2, 2, 2, 2, 8)).astype("float32")
    np.testing.assert_array_equal(np.asarray(model(x)), x)


@pytest.mark.parametrize(("most", "keys"), [(64, 64), (63, 8), (8, 8), (7, 1)])
def test_a_large_grid_keeps_its_shape_and_has_a_bounded_number_of_keys(most, keys):
    volume = keras.Input((4, 4, 4, 8))
    model = keras.Model(volume, self_attention(volume, name="a", most_keys=most))
    assert model.output_shape == (None, 4, 4, 4, 8)
    assert int(np.prod(model.get_layer("a_f").output.shape[1:4])) == keys
    x = np.random.default_rng(0).normal(size=(1, 4, 4, 4, 8)).astype("float32")
    model.get_layer("a_sum").gamma.assign(1.0)
    assert np.asarray(model(x)).shape == x.shape


def test_attention_stands_where_it_is_asked_for():
    model = models.build("resattnet18", (16, 16, 16, 1), 2, width=4, attention=(2,))
    found = [layer.name for layer in model.layers if isinstance(layer, AttentionSum)]
    assert found == ["stage2_attention_sum"]
    with fails_with(ModelError):
        models.build("resattnet18", (16, 16, 16, 1), 2, width=4, attention=(5,))


def test_a_saved_network_comes_back_whole(tmp_path):
    model = models.build("resattnet18", (16, 16, 16, 1), 2, width=4)
    model.get_layer("stage3_attention_sum").gamma.assign(0.5)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    x = np.random.default_rng(0).normal(size=(1, 16, 16, 16, 1)).astype("float32")
    np.testing.assert_array_equal(np.asarray(model(x)), np.asarray(again(x)))
    assert [layer.name for layer in model.layers] == [layer.name for layer in again.layers]

"""Shares of data that a user's own script brings, in every form that `model.fit` takes."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from wording import fails_with

from trainer.errors import ConfigError, InputError
from trainer.ranks import world as worlds
from trainer.strategies import user_data

Pair = namedtuple("Pair", "x y")
X, Y, W = np.arange(10.0).reshape(5, 2), np.arange(5), np.linspace(0, 1, 5)
MINE = [1, 3, 0]  # rank 1 of two: the first sample fills up
SliceDataset = Callable[..., tf.data.Dataset]
slices: SliceDataset = tf.data.Dataset.from_tensor_slices


class Second(worlds.World):
    """Rank 1 of two."""

    rank = 1
    size = 2


@pytest.fixture(autouse=True)
def second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worlds, "_world", Second())


class Batches(keras.utils.PyDataset):
    """`n` batches of two samples each, which are the batch's number; None: without an end."""

    epochs = 0

    def __init__(self, n: int | None) -> None:
        super().__init__(workers=3, max_queue_size=7)
        self.n = n

    @property
    def num_batches(self) -> int | None:
        return self.n

    def __getitem__(self, index: int) -> Any:
        return np.full((2, 1), index), np.full(2, index)

    def on_epoch_end(self) -> None:
        self.epochs += 1


def same(found: Any, expected: Any) -> None:
    tf.nest.assert_same_structure(found, expected)
    for left, right in zip(tf.nest.flatten(found), tf.nest.flatten(expected), strict=True):
        np.testing.assert_array_equal(left, right)


def test_shares_are_equally_long_and_leave_nobody_out() -> None:
    shares = [user_data.share_of(10, rank, 4) for rank in range(4)]
    assert {len(share) for share in shares} == {3}
    assert set(np.concatenate(shares)) == set(range(10))
    # The s-th batches of all ranks together are the s-th global batch.
    assert sorted(np.concatenate([share[:2] for share in shares])) == list(range(8))


def test_arrays_and_structures_of_arrays_keep_their_form() -> None:
    same(user_data.shard(X), X[MINE])
    same(user_data.shard(X, Y, W), (X[MINE], Y[MINE], W[MINE]))
    same(user_data.shard([X, Y], W), ([X[MINE], Y[MINE]], W[MINE]))
    same(user_data.shard((X, Y)), (X[MINE], Y[MINE]))
    same(user_data.shard({"mri": X, "age": Y}, W), ({"mri": X[MINE], "age": Y[MINE]}, W[MINE]))
    same(user_data.shard(Pair(X, {"y": Y})), Pair(X[MINE], {"y": Y[MINE]}))
    same(user_data.shard(tf.constant(X), [0, 1, 2, 3, 4]), (X[MINE], np.array(MINE)))
    same(user_data.shard([[0, 1], [2, 3], [4, 5]]), np.array([[2, 3], [0, 1]]))
    x, nothing = user_data.shard(Y, None)
    assert x.tolist() == MINE and nothing is None


def test_a_model_of_two_inputs_trains_on_its_share_with_weights_and_validation() -> None:
    inputs = {"mri": keras.Input((2,), name="mri"), "age": keras.Input((1,), name="age")}
    outputs = keras.layers.Dense(1)(keras.layers.Concatenate()(list(inputs.values())))
    model = keras.Model(inputs, outputs)
    model.compile("sgd", "mse", weighted_metrics=[])
    x, y, w = user_data.shard({"mri": X, "age": X[:, :1]}, Y, W)
    validation = user_data.shard({"mri": X, "age": X[:, :1]}, Y)
    history = model.fit(x, y, sample_weight=w, validation_data=validation, verbose=0)
    assert np.isfinite(history.history["val_loss"][0])


@pytest.mark.parametrize(
    ("data", "message", "cure"),
    [
        ((X, Y[:3]), r"different numbers of samples \(argument 1: 5; argument 2: 3\)", "one row for each"),
        (({"a": X, "b": Y[:2]},), r"argument 1\['a'\]: 5; argument 1\['b'\]: 2", "one row for each"),
        ((X[:1],), "1 sample.* too few for 2 ranks", "start fewer ranks"),
        ((), "nothing to share out", "trainer.shard"),
        ((None,), "nothing to share out", "trainer.shard"),
        (((row for row in X),), r"argument 1 \(generator\) cannot", "PyDataset"),
        ((X, [Y, object()]), r"argument 2\[1\] \(object\) cannot", "Give arrays"),
        ((np.array(1.0),), "argument 1 is a single number", "one row"),
        ((3,), r"argument 1 \(int\) cannot", "Give arrays"),
        ((slices(Y), Y), "2 arguments, one of them a dataset", "give it alone"),
        ((Y, Batches(4)), "2 arguments, one of them a PyDataset", "give it alone"),
        ((Batches(1),), "1 item.* too few for 2 ranks", "Divide its batch size"),
    ],
    ids=range(12),
)
def test_what_cannot_be_shared_out_is_refused_with_its_cure(data: Any, message: str, cure: str) -> None:
    with pytest.raises(InputError, match=message) as refused:
        user_data.shard(*data)
    assert cure in str(refused.value.cure)


VOLUMES = np.arange(4 * 6 * 2).reshape(4, 6, 2)


@pytest.mark.parametrize(
    "dataset",
    [
        slices((VOLUMES, VOLUMES)),  # volumes and label maps, not in batches
        slices(VOLUMES),
        slices((VOLUMES, Y[:4])).batch(2),
        slices({"x": VOLUMES, "y": Y[:4]}).batch(2, drop_remainder=True),
        tf.data.Dataset.from_generator(lambda: iter(VOLUMES), output_types=tf.int64),
    ],
    ids=["label maps", "volumes", "batches", "fixed batches", "unknown shapes"],
)
def test_a_dataset_that_may_be_of_samples_or_of_batches_is_refused(dataset: tf.data.Dataset) -> None:
    with fails_with(InputError) as refused:
        user_data.shard(dataset)
    assert "batched=False) before .batch" in str(refused.value)


def test_said_to_be_samples_volumes_with_label_maps_stay_whole() -> None:
    share = list(user_data.shard(slices((VOLUMES, VOLUMES)), batched=False).as_numpy_iterator())
    assert len(share) == 2
    np.testing.assert_array_equal([volume for volume, _ in share], VOLUMES[[1, 3]])
    np.testing.assert_array_equal([labels for _, labels in share], VOLUMES[[1, 3]])


def test_said_to_be_batches_each_is_split() -> None:
    share = list(user_data.shard(slices((VOLUMES, Y[:4])).batch(3), batched=True).as_numpy_iterator())
    assert [labels.tolist() for _, labels in share] == [[2, 0], [3]]


@pytest.mark.parametrize(
    "dataset",
    [slices((VOLUMES, Y[:4])), slices((VOLUMES, np.zeros((4, 3))))],
    ids=["a volume and a number", "a volume and three covariates"],
)
def test_certain_samples_need_no_word_and_cannot_be_called_batches(dataset: tf.data.Dataset) -> None:
    assert len(list(user_data.shard(dataset))) == 2
    with fails_with(InputError):
        user_data.shard(dataset, batched=True)


def test_too_few_elements_and_a_word_about_batches_of_arrays_are_refused() -> None:
    with fails_with(ConfigError):
        user_data.shard(slices(Y[:1]))
    with fails_with(InputError):
        user_data.shard(X, batched=True)


def test_items_of_a_pydataset_are_dealt_out_and_the_first_fill_up() -> None:
    whole, alone = Batches(5), Batches(3)
    share = user_data.shard(whole)
    assert [int(x[0, 0]) for x, _ in share] == MINE
    assert (share.workers, share.max_queue_size, share.use_multiprocessing) == (3, 7, False)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(share, epochs=2, verbose=0)
    assert int(model.optimizer.iterations) == 6
    model.fit(alone, epochs=2, verbose=0)
    assert whole.epochs == alone.epochs > 0
    endless = user_data.shard(Batches(None))
    assert endless.num_batches is None and int(endless[7][1][0]) == 15


def test_one_rank_gets_everything_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worlds, "_world", worlds.World())
    whole, dataset = Batches(1), slices((X, Y))
    assert user_data.shard(whole) is whole
    assert user_data.shard(dataset) is dataset
    assert user_data.shard(X) is X

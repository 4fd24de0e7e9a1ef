"""Networks divided over ranks in one process: outputs, gradients and weights are those of Keras alone."""

from __future__ import annotations

import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from divided_networks import mixed_network, on_random_ranks
from keras import layers
from wording import fails_with

from trainer import models
from trainer.errors import ConfigError, ModelError
from trainer.models import attention
from trainer.models import layers as parts
from trainer.planning.placement import staging, ways
from trainer.planning.placement.boxes import whole
from trainer.planning.placement.checking import check
from trainer.planning.placement.listing import task_lists
from trainer.planning.placement.tasks import Receive, Recompute, Send
from trainer.planning.placement.units import place
from trainer.strategies.placed.player import Player
from trainer.strategies.placed.reading import read


@pytest.fixture(autouse=True)
def _float64(monkeypatch):
    # On a CPU, TensorFlow has no maximum over windows of float64.
    for module in (parts, attention):
        monkeypatch.setattr(module, "pooling_dtype", lambda: "float32")
    keras.config.set_dtype_policy("float64")
    keras.utils.set_random_seed(1)
    yield
    keras.config.set_dtype_policy("float32")


class Wires:
    """Messages between players of one process; counts what crosses."""

    def __init__(self):
        self.waiting, self.elements = {}, {}

    def send(self, messages, values):
        for message, one in zip(messages, values, strict=True):
            assert message not in self.waiting
            assert int(tf.size(one)) == message.elements
            pair = message.source, message.target
            self.elements[pair] = self.elements.get(pair, 0) + message.elements
            self.waiting[message] = one

    def receive(self, wanted):
        arrays = []
        for messages, shapes, dtype in wanted:
            found = [self.waiting.pop(message) for message in messages]
            assert [tuple(one.shape) for one in found] == shapes
            assert {one.dtype for one in found} == {dtype}
            arrays.append(found)
        return arrays

    def meanwhile(self, compute):
        return compute()

    def flush(self):
        pass

    def after(self, tensors):
        pass


def descent(player, rate):
    return lambda gradients: {
        (path, box): player.held(path, box) - rate * g for (path, box), g in gradients.items()
    }


def divided_steps(model, placement, x, y, loss, steps, rate, pipeline=None):
    """SGD on all ranks; returns losses, weights by path, and elements that crossed in one step."""
    lists = task_lists(placement, pipeline)
    samples = len(y) // (pipeline.micro_batches if pipeline else 1)
    check(placement, lists)
    wires = Wires()
    values = {variable.path: tf.constant(variable.value) for variable in model.weights}
    blocks = {}
    for rank in placement.ranks:
        blocks[rank] = {
            path: {box: values[path][box.slices_in(whole(held.shape))] for box in held.of(rank)}
            for path, held in placement.holders.items()
            if rank in held.ranks
        }
    inputs = {
        name: (lambda box, micro, v=v: tf.constant(v[micro * samples :][box.slices_in(whole(v.shape))]))
        for name, v in zip([one.name for one in placement.network.inputs], x, strict=True)
    }

    def part(box, outputs, micro):
        return loss(y[micro * samples :][slice(*box.ranges[0])], outputs) / len(y)

    losses = []
    for _ in range(steps):
        wires.elements.clear()
        layers_of = {one.name: one for one in model.layers}
        players = [Player(placement, rank, layers_of, blocks[rank], wires) for rank in placement.ranks]
        plays = {p.rank: p.play(lists[p.rank], inputs, part, descent(p, rate)) for p in players}
        waits = {rank: next(play, None) for rank, play in plays.items()}
        while any(waits.values()):
            ready = [rank for rank, some in waits.items() if some and all(m in wires.waiting for m in some)]
            assert ready, "the players wait for each other"
            for rank in ready:
                waits[rank] = next(plays[rank], None)
        assert not wires.waiting
        losses.append(float(sum(sum(map(float, p.losses)) for p in players)))
    weights = {}
    for path, held in placement.holders.items():
        full = np.full(held.shape, np.nan)
        for p in placement.ranks:
            for box, block in blocks[p].get(path, {}).items():
                there = full[box.slices_in(whole(held.shape))]
                known = ~np.isnan(there)
                assert np.array_equal(there[known], np.asarray(block)[known]), "holders of a weight differ"
                full[box.slices_in(whole(held.shape))] = block
        weights[path] = full
    return losses, weights, dict(wires.elements)


def keras_steps(model, x, y, loss, steps, rate, micro_batches=1):
    losses = []
    for _ in range(steps):
        total, summed = 0.0, [0.0 for _ in model.trainable_variables]
        for part in np.split(np.arange(len(y)), micro_batches):
            with tf.GradientTape() as tape:
                given = [tf.constant(v[part]) for v in x]
                outputs = model(given if len(given) > 1 else given[0], training=True)
                one = loss(y[part], outputs if isinstance(outputs, list) else [outputs]) / len(y)
            gradients = tape.gradient(one, [v.value for v in model.trainable_variables])
            summed = [a + b for a, b in zip(summed, gradients, strict=True)]
            total += float(one)
        for variable, gradient in zip(model.trainable_variables, summed, strict=True):
            variable.assign(variable.value - rate * gradient)
        losses.append(total)
    # Keras moves the statistics of batch norms itself.
    return losses, {v.path: np.asarray(v.value) for v in model.weights}


def squares(y, outputs):
    """A loss that every output takes part in, with a weight of its own."""
    wide = [tf.cast(tf.reshape(out, (out.shape[0], -1)), tf.float64) for out in outputs]
    means = [tf.reduce_mean(tf.square(out - 0.1), axis=1) for out in wide]
    return sum(k * tf.reduce_sum(mean) for k, mean in enumerate(means, start=1))


def compare(model, layouts, *, steps=3, rate=0.01, batch=2, close=1e-9):
    network = read(model, batch)
    placement = place(network, layouts(network))
    rng = np.random.default_rng(0)
    x = [rng.normal(size=one.shape) for one in network.inputs]
    y = np.zeros(batch)
    losses, weights, sent = divided_steps(model, placement, x, y, squares, steps, rate)
    expected_losses, expected = keras_steps(model, x, y, squares, steps, rate)
    np.testing.assert_allclose(losses, expected_losses, rtol=close)
    for path, value in expected.items():
        np.testing.assert_allclose(weights[path], value, rtol=100 * close, atol=close, err_msg=path)
    assert sent == {pair: n for pair, n in placement.elements_sent().items() if n}
    return placement


deep = pytest.mark.deep


@pytest.mark.parametrize("ranks", [1, 4, *(pytest.param(n, marks=deep) for n in (2, 3))])
@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=deep) for n in (1, 2))])
def test_a_network_with_skips_and_two_outputs_under_random_layouts(seed, ranks):
    compare(mixed_network(), on_random_ranks(seed, ranks))


def flat_network():
    """2D: dilation, groups, upsampling, softmax over channels, products."""
    image = keras.Input((7, 6, 4), name="image")
    a = layers.Conv2D(4, 3, padding="same", dilation_rate=2, name="a")(image)
    b = layers.Conv2D(6, 3, strides=2, groups=2, padding="same", use_bias=False, name="b")(a)
    c = layers.UpSampling2D(2, name="c")(b)
    d = layers.Softmax(name="d")(layers.Conv2D(6, (3, 1), padding="same", name="e")(c))
    return keras.Model(image, layers.Multiply(name="product")([c, d]))


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(n, marks=deep) for n in (2, 3))])
def test_an_image_network_under_random_layouts(seed):
    compare(flat_network(), on_random_ranks(seed, 3))


@pytest.mark.parametrize(
    "name, size",
    [
        ("tiny", 16),
        pytest.param("resnet10", 16, marks=deep),
        pytest.param("resattnet18", 16, marks=deep),
        ("unet3d", 8),
    ],
)
def test_registered_networks_cut_in_space(name, size):
    model = models.build(name, (size, size, size, 1), 2, width=4, dense=name.startswith("unet"))
    # Maxima over windows are float32 here, and so are their gradients.
    placement = compare(
        model, lambda network: ways.spatial(network, (2, 2, 1), range(4)), steps=2, close=1e-6
    )
    assert placement.ranks == (0, 1, 2, 3)


def test_small_maps_cut_along_channels():
    model = models.build("resnet10", (32, 32, 32, 1), 2, width=4)
    placement = compare(
        model, lambda network: ways.spatial(network, (2, 1, 1), range(2), samples=2), steps=2, close=1e-6
    )
    boxes = {unit.operation: unit.box for unit in placement.units if unit.rank == 0}
    space, channels = boxes["stage1_block1_1_conv"].shape, boxes["stage4_block1_1_conv"].shape
    assert (space[1] < space[2], space[-1]) == (True, 4)
    assert (channels[1] == channels[2], channels[-1]) == (True, 16)


@pytest.mark.parametrize("master", [True, False])
def test_filters_in_unequal_shares(master):
    model = models.build("resnet10", (16, 16, 16, 1), 2, width=4)
    compare(
        model,
        lambda network: ways.filters(network, {0: 1.0, 1: 0.5, 2: 0.25}, master=master),
        steps=2,
        close=1e-6,
    )


def test_a_layer_that_cannot_be_divided_is_named():
    x = keras.Input((4, 4, 4, 1))
    model = keras.Model(x, layers.LayerNormalization(name="odd")(x))
    with fails_with(ModelError):
        read(model, 1)


def planted(change):
    model = models.build("tiny", (16, 16, 16, 1), 2, width=4)
    network = read(model, 1)
    placement = place(network, ways.spatial(network, (2, 1, 1), range(2)))
    lists = {rank: list(tasks) for rank, tasks in task_lists(placement).items()}
    change(lists)
    check(placement, {rank: tuple(tasks) for rank, tasks in lists.items()})


def test_the_checker_finds_a_deadlock_a_missing_halo_and_a_read_before_a_write():
    planted(lambda lists: None)

    def late(lists):  # rank 0 sends its halo only after it has received the other's next one
        number = next(i for i, task in enumerate(lists[0]) if isinstance(task, Send))
        lists[0].append(lists[0].pop(number))

    def missing(lists):
        messages = next(task.messages for task in lists[1] if isinstance(task, Receive))
        for tasks in lists.values():
            tasks[:] = [t for t in tasks if getattr(t, "messages", None) != messages]

    def early(lists):
        number = next(i for i, task in enumerate(lists[1]) if isinstance(task, Receive))
        lists[1][number], lists[1][number + 1] = lists[1][number + 1], lists[1][number]

    with fails_with(ConfigError):
        planted(late)
    with fails_with(ConfigError):
        planted(missing)
    with fails_with(ConfigError):
        planted(early)


def test_a_plan_that_leaves_out_an_operation_is_refused():
    network = read(models.build("tiny", (16, 16, 16, 1), 2, width=4), 1)
    layouts = ways.spatial(network, (2, 1, 1), range(2))
    del layouts["stage2_conv"]
    with fails_with(ConfigError):
        place(network, layouts)


def test_parameters_are_counted():
    model = models.build("tiny", (16, 16, 16, 1), 2, width=4)
    assert read(model, 1).parameters == sum(math.prod(v.shape) for v in model.trainable_variables)


def branching_network():
    """3D: concatenations of concatenations, a skip over all cuts, and two outputs."""
    image = keras.Input((8, 8, 8, 1), name="image")
    a = layers.Conv3D(3, 3, padding="same", activation="relu", name="a")(image)
    b = layers.BatchNormalization(name="b")(layers.Conv3D(4, 3, padding="same", name="conv")(a))
    c = layers.Concatenate(name="c")([a, b])
    d = layers.Conv3D(3, 3, padding="same", name="d")(c)
    e = layers.Concatenate(name="e")([c, d])
    f = layers.Add(name="f")([layers.Conv3D(3, 1, name="reduce")(e), a])
    mean = layers.GlobalAveragePooling3D(name="mean")(f)
    return keras.Model(image, [layers.Dense(2, name="class")(mean), layers.Conv3D(1, 1, name="map")(f)])


def staged(network, cuts, ranks, micro_batches, schedule, recompute):
    """The layouts and the pipeline of partitions that begin at these groups."""
    parts = staging.groups(network)
    ends = [*cuts, len(parts)]
    partitions = [
        tuple(name for group in parts[start:stop] for name in group)
        for start, stop in zip([0, *cuts], ends, strict=True)
    ]
    layouts = staging.on_ranks(network, partitions, ranks)
    return layouts, staging.pipeline(network, layouts, micro_batches, schedule, recompute=recompute)


def compare_staged(
    model, cuts, ranks, schedule, *, micro_batches=3, batch=6, steps=2, close=1e-9, recompute=False
):
    network = read(model, batch // micro_batches)
    layouts, pipeline = staged(network, cuts, ranks, micro_batches, schedule, recompute)
    sent, planned = compare_piped(model, network, layouts, pipeline, batch=batch, steps=steps, close=close)
    assert sent == planned  # no weights cross: each is on one rank


def compare_piped(model, network, layouts, pipeline, *, batch=6, steps=2, close=1e-9):
    placement, micro_batches = place(network, layouts), pipeline.micro_batches
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(batch, *one.shape[1:])) for one in network.inputs]
    y = np.zeros(batch)
    found = divided_steps(model, placement, x, y, squares, steps, 0.01, pipeline)
    losses, weights, sent = found
    expected_losses, expected = keras_steps(model, x, y, squares, steps, 0.01, micro_batches)
    np.testing.assert_allclose(losses, expected_losses, rtol=close)
    for path, value in expected.items():
        np.testing.assert_allclose(weights[path], value, rtol=100 * close, atol=close, err_msg=path)
    return sent, {pair: micro_batches * n for pair, n in placement.elements_sent().items() if n}


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_every_cut_of_a_network_with_skips_equals_one_process(schedule):
    count = len(staging.groups(read(branching_network(), 1)))
    for cut in range(1, count):
        compare_staged(branching_network(), [cut], [0, 1], schedule, steps=1)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("ranks", [(0, 1, 2), (0, 1, 0, 1), (2, 0, 2, 1)])
def test_stages_in_any_order_and_taking_turns_equal_one_process(schedule, ranks, recompute):
    cuts = [2, 4, 7][: len(ranks) - 1]
    compare_staged(branching_network(), cuts, ranks, schedule, recompute=recompute)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_a_stage_of_two_ranks_that_swap_halos_computes_again_what_equals_one_process(schedule):
    model = branching_network()
    network = read(model, 2)
    halves = ways.spatial(network, (2, 1, 1), [0, 1])
    last = staging.on_ranks(network, staging.groups(network), [2] * len(staging.groups(network)))
    layouts = {name: (halves if number < 7 else last)[name] for number, name in enumerate(last)}
    pipeline = staging.pipeline(network, layouts, 3, schedule, recompute=True)
    assert len(pipeline.stages) == 2
    again = [task for task in task_lists(place(network, layouts), pipeline)[0] if isinstance(task, Recompute)]
    assert {one.unit.operation for one in again} >= {"conv", "b"}
    compare_piped(model, network, layouts, pipeline)


def test_micro_batches_on_one_rank_equal_accumulation():
    compare_staged(branching_network(), [], [0], "1f1b")

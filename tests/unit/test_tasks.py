"""What the loader, the loop and the tables are told by each task."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from wording import fails_with

from trainer import config as configuration
from trainer import tasks
from trainer.data.loading import order
from trainer.data.splits import balance
from trainer.errors import CohortError, ConfigError
from trainer.ranks.world import World
from trainer.strategies.data import DistributedModel
from trainer.strategies.learner import Setup, Sums, sums_of
from trainer.tasks.losses import hits, mean_dice


class Shards(SimpleNamespace):
    """What tasks look at of a shard set of four volumes."""

    def __len__(self) -> int:
        return len(self.volumes)


def shard_set(**changes):
    labels, ages = ("AD", "NC", None, "AD"), (70.0, 60.0, 50.0, None)
    volumes = tuple(
        SimpleNamespace(subject=f"sub-{row}", session="M12", label=label, age=age, registration=None)
        for row, (label, age) in enumerate(zip(labels, ages, strict=True))
    )
    given = {"volumes": volumes, "labels": ("AD", "NC"), "label_name": "diagnosis", "path": "shards"}
    given |= {"maps": ("background", "grey"), "voxel_size": (1.0, 1.0, 1.0)}
    return Shards(**given | changes)


def task_of(text, **changes):
    settings = configuration.parse(f"name: a\ndata: {{shards: s}}\ntask: {text}")
    return tasks.build(settings, shard_set(**changes))


def test_a_class_is_a_number_in_the_order_of_the_classes():
    task = task_of("{name: classification}")
    assert (task.outputs, task.dense, task.rows()) == (2, False, (0, 1, 3))
    assert task.targets((3, 1)).tolist() == [0, 1] and task.targets((3, 1)).dtype == np.int32


def test_only_a_classification_says_to_which_class_a_volume_belongs():
    names = ("classification", "regression", "segmentation")
    assert [task_of(f"{{name: {name}}}").volume_classes for name in names] == [("AD", "NC"), None, None]


def test_ages_are_learned_in_deviations_and_told_in_years():
    task = task_of("{name: regression}")
    assert task.rows() == (0, 1, 2) and task.score == "mae"
    fitted = task.fitted((0, 1))
    assert (fitted.mean, fitted.deviation) == (65.0, 5.0)
    features = keras.Input((2,))
    network = keras.Model(features, keras.layers.Dense(1, kernel_initializer="ones")(features))
    complete = fitted.completed(network)
    outputs = np.asarray(complete(np.array([[1.0, 1.0], [0.0, -1.0]], "float32")))
    assert outputs.tolist() == [[75.0], [60.0]]
    targets = np.array([70.0, 60.0], "float32")
    assert np.asarray(fitted.loss()(targets, outputs)).tolist() == [1.0, 0.0]  # one deviation, squared
    assert np.asarray(fitted.scores()(targets, outputs)).tolist() == [5.0, 0.0]  # years
    header, lines = fitted.table(np.array([0, 1]), targets, outputs, shard_set().volumes)
    assert header == ["row", "subject", "session", "target", "predicted"]
    assert lines[0] == [0, "sub-0", "M12", "70", "75"]


def test_labels_that_are_numbers_can_be_learned_and_others_are_named():
    numbers = tuple(SimpleNamespace(subject=f"s{k}", label=str(k / 2), age=None) for k in range(4))
    task = task_of("{name: regression, target: label}", volumes=numbers, label_name="mmse")
    assert task.targets((0, 3)).tolist() == [0.0, 1.5] and task.target == "mmse"
    with fails_with(CohortError):
        task_of("{name: regression, target: label}")
    with fails_with(CohortError):
        task_of("{name: regression}", volumes=numbers)


def test_segmentation_needs_label_maps():
    assert task_of("{name: segmentation}").classes == ("background", "grey")
    with fails_with(CohortError):
        task_of("{name: segmentation}", maps=())


def test_what_evaluation_keeps_of_a_label_map_is_a_row_of_numbers():
    task = task_of("{name: segmentation}")
    maps = np.zeros((2, 4, 4, 4), np.uint8)
    maps[:, :2] = 1
    logits = np.where(maps[..., None] == np.array([0, 1]), 9.0, -9.0).astype("float32")
    logits[1] = logits[1, ::-1]  # all of it wrong
    targets, kept = task.collected(maps, logits, final=True)
    assert targets.shape == (2,) and kept.shape == (2, 6)
    assert kept[0, 1] == 1.0 and kept[1, 1] == 0.0 and kept[0, 0] < 0.01 < kept[1, 0]
    assert np.asarray(mean_dice(maps, logits)).tolist() == [1.0, 0.0]
    assert task.metrics(targets, kept)["dice"] == 0.5
    header, lines = task.table(np.array([0, 1]), targets, kept, shard_set().volumes)
    assert header[3:5] == ["dice_grey", "hd95_grey"] and lines[0][3:5] == ["1", "0"]
    assert lines[1][3:6] == [
        "0",
        "2",
        "2",
    ]  # mm: every voxel is surface, two slices from the other half's nearest
    _, quick = task.collected(maps, logits, final=False)
    assert np.isnan(quick[0, 2:4]).all() and quick[0, 1] == 1.0


def test_the_mean_dice_leaves_out_what_is_in_neither_map():
    maps = np.zeros((1, 2, 2, 2), np.uint8)
    maps[0, 0] = 2
    logits = keras.ops.one_hot(maps, 4) * 5.0
    assert float(mean_dice(maps, logits)[0]) == 1.0
    assert np.isnan(mean_dice(np.zeros_like(maps), keras.ops.one_hot(np.zeros_like(maps), 4)))


LABELS = ("AD", "AD", "NC", "AD", "NC", "AD")
KINDS = {
    "cross entropy": "train: {class_weights: false}",
    "cross entropy with classes weighted equally": "",
    "cross entropy with classes shown equally often": "data: {shards: s, sampling: balanced}",
    "focal loss (gamma 3) with labels smoothed by 0.2 and classes weighted equally": (
        "task: {loss: focal, focal_gamma: 3}\ntrain: {label_smoothing: 0.2}"
    ),
    "focal loss (gamma 2)": "task: {loss: focal}\ntrain: {class_weights: false}",
    "squared error in standard deviations of the training targets": "task: {name: regression}",
    "Huber loss (delta 0.5) in standard deviations of the training targets": (
        "task: {name: regression, loss: huber, huber_delta: 0.5}"
    ),
    "soft Dice loss plus cross entropy": "task: {name: segmentation}",
}


@pytest.mark.parametrize("name", KINDS)
def test_the_loss_of_a_split_is_the_function_that_is_trained(name):
    """An untrained network has the same loss on the same samples, whether they train it or judge it."""
    given = KINDS[name] if "data:" in KINDS[name] else f"data: {{shards: s}}\n{KINDS[name]}"
    config = configuration.parse(f"name: a\n{given}")
    assert config.trained_loss == name
    volumes = tuple(
        SimpleNamespace(subject=f"sub-{n}", label=label, age=60.0 + n) for n, label in enumerate(LABELS)
    )
    task = tasks.build(config, shard_set(volumes=volumes)).fitted(range(len(LABELS)))
    random = np.random.default_rng(0)
    shape = (2, 2, 2, 2) if task.dense else (task.outputs,)
    outputs = random.normal(60 if task.name == "regression" else 0, 2, (6, *shape)).astype("float32")
    targets = random.integers(0, 2, (6, 2, 2, 2), np.uint8) if task.dense else task.targets(range(6))
    x = keras.Input(shape)
    network = keras.Model(x, keras.layers.Rescaling(1.0)(x))
    optimizer = keras.optimizers.SGD(0.0)
    optimizer.build([])
    learner = DistributedModel(
        Setup(network, optimizer, World(), task.loss(), task.scores(), class_weights=task.class_weights())
    )
    rows = list(range(6))
    if config.data.sampling == "balanced":
        rows = list(balance.balanced_rows(rows, targets))
    for step in range(order.steps_per_epoch(len(rows), 4)):
        batch = np.resize(rows, 4 * (step + 1))[4 * step :]
        weights = order.weights(step, 4, len(rows))  # the last batch is filled up
        if task.class_weights() is not None:
            weights = weights * task.class_weights()[targets[batch]]
        learner.train_step(outputs[batch], targets[batch], weights)
    sums = learner.take_sums()
    judged = task.metrics(*task.collected(targets, outputs, final=False))
    assert sums.mean_loss == pytest.approx(judged["loss"], rel=1e-5)
    if "classes" in name or "focal" in name:
        assert judged["cross_entropy"] != pytest.approx(judged["loss"], rel=0.01)
    assert sums.scored == len(rows) and learner.take_sums() == Sums()


def test_penalties_of_layers_are_part_of_neither_loss():
    task = task_of("{name: classification}")
    features = keras.Input((2,))
    heavy = keras.layers.Dense(2, kernel_regularizer=keras.regularizers.L2(9.0))
    network = keras.Model(features, heavy(features))
    optimizer = keras.optimizers.SGD(0.0)
    optimizer.build(network.trainable_variables)
    learner = DistributedModel(Setup(network, optimizer, World(), task.loss(), task.scores()))
    x, y = np.ones((2, 2), "float32"), np.array([0, 1], np.int32)
    trained = learner.train_step(x, y, np.ones(2, "float32"))
    mean = learner.take_sums().mean_loss
    assert mean == pytest.approx(task.metrics(y, np.asarray(learner.predict(x)))["loss"], rel=1e-5)
    assert float(trained) == pytest.approx(mean + float(network.losses[0]), rel=1e-5)


def test_a_sample_without_a_score_is_left_out_of_its_mean_and_not_of_the_loss():
    weights = np.array([1.0, 1.5, 0.0])
    sums = np.asarray(sums_of([1.0, 2.0, 4.0], [np.nan, 0.5, 1.0], [0, 1, 1], weights, [3.0, 0.5]))
    assert sums.tolist() == [3.0 + 1.0, 3.5, 0.5, 1.0]
    assert Sums(*sums).mean_score == 0.5 and Sums().mean_score is None


def test_a_hit_is_the_largest_logit():
    assert np.asarray(hits(np.array([0, 0]), np.array([[2.0, 1.0], [1.0, 2.0]]))).tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("task: {name: regression, loss: focal}", "loss 'focal' is not for regression"),
        ("task: {target: age}", "target is for regression"),
        (
            "task: {name: segmentation}\ntrain: {label_smoothing: 0.1}",
            "label_smoothing is for classification",
        ),
    ],
)
def test_settings_of_another_task_are_refused(text, problem):
    with pytest.raises(ConfigError, match=problem):
        configuration.parse(f"name: a\ndata: {{shards: s}}\n{text}")


SIDES = tuple(
    SimpleNamespace(subject=f"s{k}", label=("TLE-left", "TLE-right")[k % 2], age=None) for k in range(4)
)
OF_SIDES = {"volumes": SIDES, "labels": ("TLE-left", "TLE-right")}


def sides_task(augment, task="{}", **changes):
    settings = configuration.parse(f"name: a\ndata: {{shards: s{augment}}}\ntask: {task}")
    return tasks.build(settings, shard_set(**changes))


def test_where_nobody_says_so_volumes_are_mirrored_only_if_no_label_speaks_of_a_side():
    assert configuration.parse("name: a\ndata: {shards: s}").data.augment.flip
    assert sides_task("").outputs == 2
    with fails_with(ConfigError) as caught:
        sides_task("", **OF_SIDES)
    assert caught.value.exit_code == 2
    for said in ("flip: false", "flip: true", "shift: 1", ""):
        assert sides_task(f", augment: {{{said}}}", **OF_SIDES).outputs == 2


@pytest.mark.parametrize(
    ("task", "changes", "refused"),
    [
        ("{name: segmentation}", {"maps": ("background", "Right_Hippocampus")}, True),
        ("{name: segmentation}", {"maps": ("background", "bright_rim", "cleft")}, False),
        ("{name: regression, target: label}", {"label_name": "volume_lh"}, True),
        ("{name: regression}", {"label_name": "volume_lh"}, False),
    ],
)
def test_sides_are_looked_for_in_what_is_learned(task, changes, refused):
    numbers = tuple(SimpleNamespace(subject=f"s{k}", label=str(k), age=60.0 + k) for k in range(4))
    with fails_with(ConfigError) if refused else contextlib.nullcontext():
        sides_task("", task, volumes=numbers, **changes)

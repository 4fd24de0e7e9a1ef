"""The parts of a compiled step: real timestamps of a real (tiny) step, and the arithmetic on them."""

from __future__ import annotations

import dataclasses
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainer.models.batch_norm import SyncBatchNormalization
from trainer.ranks import world as worlds
from trainer.strategies import data, reduction
from trainer.telemetry import parts, records
from trainer.telemetry.parts import Call, Layout, Timed, covered, waited
from trainer.telemetry.timeline import Timeline


class SlowWorld(worlds.World):
    """Two ranks, of which this is one; the other sends the same, after a while."""

    size = 2
    wait_s = 0.0

    def _later(self, tensor):
        def wait(value):
            time.sleep(self.wait_s)
            return value

        @tf.custom_gradient
        def exchanged(value):
            after = tf.numpy_function(wait, [value], value.dtype)
            after.set_shape(value.shape)
            return after, lambda upstream: upstream

        return exchanged(tensor)

    def allreduce(self, tensor, op="mean", *, name=None):
        return self._later(tf.convert_to_tensor(tensor))

    def grouped_allreduce(self, tensors, op, *, name):
        """The other rank has the same."""
        return [self._later(tensor) * (self.size if op == "sum" else 1) for tensor in tensors]

    def allgather_object(self, value):
        return [value, value]


def trained(world, monkeypatch, *, accumulation=None, norm=False, enabled=True) -> tuple[list, list]:
    """Two steps of a tiny network; their parts, and its weights."""
    monkeypatch.setattr(worlds, "_world", world)
    monkeypatch.setattr(data, "broadcast_state", lambda *_: None)
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(4), *([SyncBatchNormalization()] if norm else []), keras.layers.Dense(2)]
    model = keras.Sequential([keras.Input((3,)), *layers])
    optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=accumulation)
    from trainer.strategies.distributed_optimizer import DistributedOptimizer

    timeline = Timeline(enabled)
    learner = data.build(model, DistributedOptimizer(optimizer), world, timeline=timeline)
    x, y, w = np.ones((2, 3), np.float32), np.array([0, 1], np.int32), np.ones(2, np.float32)
    for step in (1, 2):
        began = time.monotonic()
        for _ in range(accumulation or 1):
            learner.train_step(x, y, w)
        timeline.close_step(step, time.monotonic() - began + 0.25, input_wait=0.25)
    return parts.steps(timeline.take()), model.get_weights()


def test_the_parts_of_a_real_step_add_up_to_it(monkeypatch):
    found, _ = trained(worlds.World(), monkeypatch)
    for step in found:
        assert sum(getattr(step, part) for part in records.PARTS) == pytest.approx(step.seconds, abs=1e-5)
        assert step.input_wait == 0.25 and step.forward > 0 and step.backward > 0 and step.update > 0
        assert step.exposed == step.overlapped == 0
    assert [step.first for step in found] == [True, False]


@pytest.mark.parametrize("accumulation", [None, 2])
def test_what_the_reduction_takes_is_exposed_communication(monkeypatch, accumulation):
    """With accumulation it is inside of a branch of the graph."""
    world = SlowWorld()
    world.wait_s = 0.8
    found, _ = trained(world, monkeypatch, accumulation=accumulation)
    assert found[1].exposed >= 0.7


def test_waiting_for_batch_norm_is_exposed_communication_too(monkeypatch):
    world = SlowWorld()
    monkeypatch.setattr(world, "grouped_allreduce", lambda tensors, op, *, name: list(tensors))
    world.wait_s = 0.3
    found, _ = trained(world, monkeypatch, norm=True)
    assert found[1].exposed >= 0.3


def test_timing_changes_no_weight(monkeypatch):
    timed, untimed = (
        trained(worlds.World(), monkeypatch, norm=True, enabled=enabled)[1] for enabled in (True, False)
    )
    assert all((a == b).all() for a, b in zip(timed, untimed, strict=True))


def test_nothing_is_kept_where_it_is_switched_off(monkeypatch):
    assert trained(worlds.World(), monkeypatch, enabled=False)[0] == []


def test_a_reduction_outside_of_a_timed_step_is_left_alone():
    world = SlowWorld()
    reduce = reduction.make(world, "gradients", kind="buckets", bucket_mb=1.0, wire="none")
    assert [float(g) for g in reduce([tf.constant(1.0)])] == [1.0]


LAYOUT = Layout(forward=(True, False), backward=(), buckets=2)
# Start, forward and backward end; batch norm leaves and returns; two buckets.
MARKS = [10.0, 12.0, 15.0, 10.5, 11.0, 13.0, 14.0, 14.5, 16.0]


def call(**changes: float) -> Timed:
    marks = np.array(MARKS)
    for place, value in changes.items():
        marks[int(place[1:])] = value
    return Timed(7, 8.0, 1.0, False, (Call(LAYOUT, marks, 16.25),))


def test_overlapped_and_exposed_communication_are_told_apart():
    (step,) = parts.steps([call()])
    assert (step.forward, step.backward) == (1.5, 3.0)
    assert step.exposed == 0.5 + 1.0  # batch norm, and the last bucket after the backward pass
    assert step.overlapped == 1.0 + 0.5
    assert (step.update, step.input_wait, step.other) == (0.25, 1.0, 0.75)


def test_a_bucket_of_an_earlier_call_does_not_count():
    (step,) = parts.steps([call(m5=3.0, m6=4.0, m7=4.5, m8=6.0)])
    assert (step.exposed, step.overlapped, step.update) == (0.5, 0.0, 1.25)


def test_calls_of_one_step_are_added_and_steps_are_kept_apart():
    two = dataclasses.replace(call(), seconds=15.0, calls=call().calls * 2)
    one, added = parts.steps([call(), two])
    assert added.forward == 2 * one.forward and added.exposed == 2 * one.exposed


def test_clocks_that_differ_a_little_still_add_up():
    (step,) = parts.steps([dataclasses.replace(call(), seconds=7.2)])
    assert step.other == 0.0
    assert sum(getattr(step, part) for part in records.PARTS) == pytest.approx(step.seconds)


def test_waiting_counts_only_while_nothing_leaves_or_returns():
    # One branch leaves at 1, the other computes until 3 and leaves; the first returns at 4, the second at 9.
    moments = np.array([[1.0, 4.0, 3.0, 9.0]])
    assert waited(moments, [True, False, True, False]) == [1.0]
    assert waited(np.zeros((1, 0)), []) == [0.0]


def test_intervals_that_overlap_are_covered_once():
    pairs = np.array([[[5.0, 6.0], [1.0, 3.0], [2.0, 2.5], [2.0, 4.0]]])
    assert covered(pairs) == [4.0]
    assert covered(np.zeros((1, 0, 2))) == [0.0]

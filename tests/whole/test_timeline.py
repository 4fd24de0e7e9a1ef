"""The intervals of a compiled step, recorded by a real (tiny) one."""

from __future__ import annotations

import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainer.models.batch_norm import SyncBatchNormalization
from trainer.ranks import world as worlds
from trainer.strategies import data, reduction
from trainer.strategies.learner import Setup
from trainer.telemetry import parts, records
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


def trained(world, monkeypatch, *, accumulation=None, norm=False, enabled=True, **ring) -> tuple[list, list]:
    """Two steps of a tiny network; what was recorded, and its weights."""
    monkeypatch.setattr(worlds, "_world", world)
    monkeypatch.setattr(data, "broadcast_state", lambda *_: None)
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(4), *([SyncBatchNormalization()] if norm else []), keras.layers.Dense(2)]
    model = keras.Sequential([keras.Input((3,)), *layers])
    optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=accumulation)
    from trainer.strategies.distributed_optimizer import DistributedOptimizer

    timeline = Timeline(enabled)
    learner = data.build(Setup(model, DistributedOptimizer(optimizer, **ring), world, timeline=timeline))
    x, y, w = np.ones((2, 3), np.float32), np.array([0, 1], np.int32), np.ones(2, np.float32)
    for step in (1, 2):
        began = time.monotonic()
        timeline.record("input", 0.25)
        for _ in range(accumulation or 1):
            learner.train_step(x, y, w)
        timeline.close_step(step, time.monotonic() - began + 0.25)
    return timeline.take(), model.get_weights()


def test_the_parts_of_a_real_step_add_up_to_it(monkeypatch):
    recorded, _ = trained(worlds.World(), monkeypatch)
    found = parts.steps(recorded)
    for step in found:
        assert sum(getattr(step, part) for part in records.PARTS) == pytest.approx(step.seconds, abs=1e-5)
        # The wall clock counts microseconds, and a float64 of it no less than a quarter of one.
        assert step.input_wait == pytest.approx(0.25, abs=2e-6)
        assert step.forward > 0 and step.backward > 0 and step.update > 0
        assert step.exposed == step.overlapped == 0
    assert [step.first for step in found] == [True, False]


@pytest.mark.parametrize("accumulation", [None, 2])
def test_what_the_reduction_takes_is_exposed_communication(monkeypatch, accumulation):
    """With accumulation it is inside of a branch of the graph."""
    world = SlowWorld()
    world.wait_s = 0.8
    recorded, _ = trained(world, monkeypatch, accumulation=accumulation)
    assert parts.steps(recorded)[1].exposed >= 0.7


@pytest.mark.parametrize(("compression", "width"), [("none", 4), ("float16", 2)])
def test_a_bucket_has_the_bytes_that_are_on_the_way(monkeypatch, compression, width):
    (first, second), _ = trained(SlowWorld(), monkeypatch, accumulation=2, compression=compression)
    for step in (first, second):
        buckets = [one for one in step.intervals if one.kind == "reduce"]
        # Kernels of 3 x 4 and 4 x 2, biases of 4 and 2; once, though two micro-batches were computed.
        assert [(one.peer, one.bytes) for one in buckets] == [(None, 26 * width)]
        assert [one.kind for one in step.intervals].count("forward") == 2


def test_waiting_for_batch_norm_is_exposed_communication_too(monkeypatch):
    world = SlowWorld()
    monkeypatch.setattr(world, "grouped_allreduce", lambda tensors, op, *, name: list(tensors))
    world.wait_s = 0.3
    recorded, _ = trained(world, monkeypatch, norm=True)
    assert parts.steps(recorded)[1].exposed >= 0.3


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


def test_messages_that_a_divided_network_waits_for_are_no_computing_and_those_before_the_step_no_part_of_it():
    timeline = Timeline()
    now = time.time()
    timeline.add(np.array([now - 1.0, now - 0.6, now - 0.2]))  # start, forward and backward pass over
    before = [now - 9.0, now - 8.0, 1, 999]  # of an evaluation
    forward = [[now - 0.9, now - 0.8, 1, 64], [now - 0.9, now - 0.7, 2, 32]]  # asked for at once
    update = [now - 0.1, now - 0.05, 1, 8]  # new values
    timeline.arrived(np.array([before, *forward, update]))
    timeline.close_step(1, 1.5)
    (found,) = parts.steps(timeline.take())
    taken = [found.forward, found.backward, found.exposed, found.update]
    assert taken == pytest.approx([0.2, 0.4, 0.25, 0.15], abs=0.02)
    told = {(one.kind, one.peer): (one.bytes, one.seconds) for one in found.transfers}
    assert told == {
        ("wait", 1): (72, pytest.approx(0.15, abs=1e-3)),
        ("wait", 2): (32, pytest.approx(0.2, abs=1e-3)),
    }
    assert sum(getattr(found, part) for part in records.PARTS) == pytest.approx(found.seconds)


def test_a_rank_without_input_computes_from_its_first_message_on():
    timeline = Timeline()
    now = time.time()
    timeline.add(np.array([now - 0.1, now - 0.6, now - 0.2]))  # the start's timestamp came last
    timeline.arrived(np.array([[now - 1.0, now - 0.8, 1, 64], [now - 0.5, now - 0.4, 1, 64]]))
    timeline.close_step(1, 1.5)
    (found,) = parts.steps(timeline.take())
    taken = [found.forward, found.backward, found.exposed]
    assert taken == pytest.approx([0.2, 0.3, 0.3], abs=0.02)

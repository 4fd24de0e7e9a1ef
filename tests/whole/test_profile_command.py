"""`cingulum profile` in one process: every operation is there, equal ones are measured once, times add up."""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path

import keras
import pytest
import tensorflow as tf
from tiny_runs import make_shards, write_config

from cingulum.cli import app
from trainer import config as configuration
from trainer import profiling
from trainer.planning.profile import Profile
from trainer.strategies.placed import computing
from trainer.strategies.placed.player import Player
from trainer.strategies.placed.profiling import launching, timing
from trainer.strategies.placed.reading import read

# How far a sum of operations, each measured alone, may be from the step that has them all, on a machine with
# other work. Seen: 1.0 to 2.7 times the step, the larger ones of steps of 2 ms.
FACTOR = 5


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> Path:
    return make_shards(tmp_path_factory.mktemp("data") / "shards", maps=True)


@pytest.fixture(autouse=True)
def _one_precision():
    yield
    keras.config.set_dtype_policy("float32")


@pytest.fixture
def quick(monkeypatch):
    """Measure next to nothing, where a test is about something else than seconds."""
    monkeypatch.setattr(timing, "ROUNDS", 1)
    monkeypatch.setattr(timing, "CALL_S", 0.0)


def configured(folder: Path, shards: Path, **changes: object) -> Path:
    # Repeatable operations cannot be switched off again in this process.
    return write_config(folder, shards, "run", train__deterministic=False, **changes)


def profiled(config: Path, *arguments: str) -> Profile:
    out = config.parent / "profile.json"
    assert app.run(["profile", str(config), *arguments, "--out", str(out)]) == 0
    return Profile.read(out)


def prepared(config: Path, batch: int) -> profiling._Prepared:
    return profiling._prepare(configuration.load(config), batch)


def test_every_operation_is_there_and_the_times_add_up_to_about_a_step(tmp_path):
    shards = make_shards(tmp_path / "larger", size=32, subjects=16)
    config = configured(tmp_path, shards, model__width=8)
    profile = profiled(config)
    assert (profile.network, profile.batch, profile.sample_shape) == ("tiny", 4, (32, 32, 32, 1))
    assert (profile.ranks, profile.links) == (1, ((None,),))
    made = prepared(config, 4)
    network = read(made.model, 4)
    assert [(one.name, one.kind, one.flops) for one in profile.operations] == [
        (one.name, one.kind, one.flops) for one in network.operations
    ]
    for one in profile.operations:
        # Of what takes a microsecond, less than a call of nothing took, one of both may be nothing.
        assert (one.forward_s[0] + one.backward_s[0] > 0) == (one.kind != "input"), one
        if one.kind == "convolution":
            assert one.backward_s[0] > 0
    assert sum(one.parameter_bytes for one in profile.operations) == sum(
        4 * int(tf.size(one.value)) for one in made.model.weights if one.dtype == "float32"
    )
    assert profile.operation("stage1_conv").output_bytes == 4 * 4 * 16**3 * 8
    assert profile.update.parameters == network.parameters and profile.update.seconds[0] > 0
    assert profile.task_s is not None and len(profile.task_s) == 1 and 0 <= profile.task_s[0] < 1e-3
    step = step_s(made, profile.batch)
    assert step / FACTOR < profile.step_s(0) < step * FACTOR


def step_s(made: profiling._Prepared, batch: int) -> float:
    """Median seconds of a step with Keras alone."""
    made.optimizer.build(made.model.trainable_variables)
    x = tf.random.normal((batch, *made.model.input_shape[1:]))

    @tf.function(jit_compile=False)
    def step(x):
        with tf.GradientTape() as tape:
            loss = made.loss([made.model(x, training=True)])
        weights = made.model.trainable_variables
        made.optimizer.apply(tape.gradient(loss, [one.value for one in weights]), weights)
        return loss

    took = []
    for _ in range(12):
        began = time.perf_counter()
        step(x).numpy()
        took.append(time.perf_counter() - began)
    return statistics.median(took[2:])


def test_what_a_task_takes_besides_its_operation_is_measured(quick, monkeypatch):
    class Slow(Player):
        def _computed(self, *rest):
            with tf.control_dependencies([tf.py_function(lambda: time.sleep(0.002), [], [])]):
                return tf.identity(super()._computed(*rest))

    monkeypatch.setattr(launching, "Player", Slow)
    monkeypatch.setattr(launching, "_REPEATS", 3)
    monkeypatch.setattr(launching, "_LONG", 4)
    # Of both tasks of an operation, computing it and differentiating it.
    assert 0.001 < launching._measured.__wrapped__("float32") < 0.02


def test_of_equal_operations_one_is_measured(tmp_path, shards, quick, monkeypatch):
    computed = set()

    def compute(operation, *rest):
        computed.add(operation.name)
        return whole(operation, *rest)

    whole = computing.compute
    monkeypatch.setattr(computing, "compute", compute)
    config = configured(tmp_path, shards, model__name="resnet18", model__options={}, model__width=4)
    profile = profiled(config, "--batch", "1")
    assert profile.batch == 1
    measured = {one.measured for one in profile.operations if one.measured}
    # What tasks take is measured by networks of its own, once in a process.
    assert computed & {one.name for one in profile.operations} == measured - {"loss"}
    assert len(measured) < 0.6 * len(profile.operations)
    for one in profile.operations:
        if one.measured:
            first = profile.operation(one.measured)
            assert (one.kind, one.flops, one.output_bytes) == (first.kind, first.flops, first.output_bytes)
            assert (one.forward_s, one.backward_s) == (first.forward_s, first.backward_s)


@pytest.mark.parametrize(
    "changes, kinds",
    [
        (
            {"task": {"name": "segmentation"}, "model__name": "unet3d"},
            {"transposed", "concatenate"},
        ),
        ({"data__covariates": ["age", "sex"]}, {"concatenate", "dense"}),
        ({"train__precision": "mixed_bfloat16"}, {"convolution"}),
    ],
    ids=["label maps", "covariates", "mixed precision"],
)
def test_other_tasks_inputs_and_precisions(tmp_path, shards, quick, changes, kinds):
    profile = profiled(configured(tmp_path, shards, model__options={}, **changes))
    assert kinds <= {one.kind for one in profile.operations}
    assert profile.operations[-1].kind == profile.operations[-1].measured == "loss"
    narrow = profile.precision != "float32"
    first = next(one for one in profile.operations if one.kind == "convolution")
    shape = next(
        one.shape
        for one in read(prepared(tmp_path / "run.yaml", 4).model, 4).operations
        if one.name == first.name
    )
    assert first.output_bytes == tf.TensorShape(shape).num_elements() * (2 if narrow else 4)


def test_the_table_has_equal_operations_once_and_fits_into_80_columns(
    tmp_path, shards, quick, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "80")
    config = configured(tmp_path, shards, model__name="resnet18", model__options={}, model__width=4)
    assert app.run(["profile", str(config)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("resnet18: 4 x 16x16x16x1, float32, ")
    assert any(line.startswith("operation") and " x " in line for line in lines)
    assert lines[-1].endswith("faster ones; --json has all")


def test_json_is_the_file_alone(tmp_path, shards, quick, capsys):
    config = configured(tmp_path, shards)
    out = tmp_path / "profile.json"
    assert app.run(["profile", str(config), "train.global_batch=2", "--json", "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert json.loads(shown)["batch"] == 2 and shown == out.read_text()


def test_bad_input_is_refused_before_anything_is_measured(tmp_path, shards, capsys, monkeypatch):
    config = configured(tmp_path, shards)

    def refused(*arguments: object) -> str:
        assert app.run(["profile", *map(str, arguments)]) == 2
        errors = capsys.readouterr().err
        assert errors.count("error: ") == 1 and "Traceback" not in errors
        return errors

    monkeypatch.setattr(timing.Stopwatch, "round", lambda self: pytest.fail("measured"))
    assert "there is no such folder" in refused(config, "--out", tmp_path / "nowhere" / "p.json")
    assert "is not a profile that can be replaced" in refused(config, "--out", config)
    assert "model.wdith" in refused(config, "model.wdith=3")
    assert "nowhere" in refused(config, f"data.shards={tmp_path / 'nowhere'}")


def test_a_batch_that_does_not_fit_is_an_error_that_names_the_operation(
    tmp_path, shards, monkeypatch, capsys
):
    def compute(*rest):
        raise tf.errors.ResourceExhaustedError(None, None, "OOM")

    monkeypatch.setattr(computing, "compute", compute)
    assert app.run(["profile", str(configured(tmp_path, shards)), "--batch", "64"]) == 2
    errors = capsys.readouterr().err
    assert "stage1_conv: its inputs and outputs do not fit" in errors and "--batch 1" in errors


def test_ranks_that_share_a_batch_measure_their_part_of_it(tmp_path, shards):
    config = configuration.load(
        configured(tmp_path, shards), ["train.global_batch=12", "train.accumulation=2"]
    )
    assert [profiling.default_batch(config, ranks) for ranks in (1, 2, 4, 100)] == [6, 3, 2, 1]

"""Forward and backward passes as functions that XLA compiles, on GPUs.

A network's layers, in the order in which Keras calls them, are cut into segments. Each is one compiled
function, and so is its gradient. One segment is fastest by itself; with several, the gradients of one leave
while those of the next are computed. Layers that exchange something between ranks are no part of any.
docs/decisions/0063-gpus-and-compilation.md has the reasons.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import keras
import tensorflow as tf

from trainer.errors import ConfigError
from trainer.models.batch_norm import SyncBatchNormalization
from trainer.ranks.agreement import Agreed
from trainer.ranks.world import World
from trainer.run_folder.run_record import PassesOfRun
from trainer.strategies import reduction
from trainer.strategies.compiled_update import FEW_UPDATES, WORTH, Devices
from trainer.strategies.draws import Draws, SamplesOfPass

# Uncompiled; in one segment; in one for each bucket of gradients.
Way = Literal["none", "whole", "buckets"]
Network = Callable[[Any], Any]
_ROUNDS = 5


@dataclass(frozen=True)
class Passes:
    """How one rank computes its passes, and may.

    Attributes:
        model: the network.
        ways: that can be taken, `none` first.
        draws: of the network's layers.
        ranks: that train it together.
        bucket_mb: MiB of gradients that leave together.
        reduce: what is done with gradients as soon as they are there; a collective where there are several
            ranks.
        take: takes a way, before the first step is traced.
    """

    model: keras.Model
    ways: tuple[Way, ...]
    draws: Draws
    ranks: int
    bucket_mb: float
    reduce: Callable[[Sequence[Any]], Sequence[Any]]
    take: Callable[[Way], None]

    def network(self, way: Way) -> Network:
        """Return the network in training, from inputs to outputs; to be called while a step is traced."""
        return network(self.model, way, ranks=self.ranks, bucket_mb=self.bucket_mb)


def network(model: keras.Model, way: Way, *, ranks: int, bucket_mb: float) -> Network:
    """See `Passes.network`.

    Args:
        model: built.
        way: how its passes are computed.
        ranks: that train it together.
        bucket_mb: MiB of gradients that leave together.
    """
    if way == "none":
        return lambda x: model(x, training=True)
    graph = getattr(model, "_functional", None) or model  # of a Sequential
    if not hasattr(graph, "_nodes_by_depth"):  # of a class of its own
        return lambda x: _compiled(lambda given: [model(given, training=True)], x)[0]
    return _Segmented(graph, ranks, math.inf if way == "whole" else bucket_mb * reduction.MIB)


def choose(
    setting: str,
    passes: Passes,
    samples: int,
    world: World,
    *,
    before: str | None = None,
    by_time: bool = True,
    updates: int | None = None,
) -> PassesOfRun:
    """Decide for all ranks how passes are computed, and take that way; a collective.

    Args:
        setting: `train.compile`.
        passes: of this rank.
        samples: of a micro-batch that this rank takes.
        world: all ranks.
        before: how the run that goes on has computed them; None for a new one.
        by_time: whether timing may decide; not where two runs must end with the same bits.
        updates: to come; None: not known.

    Returns:
        What was chosen and why, the same on every rank.

    Raises:
        Agreed: passes were to be compiled, and cannot be on some rank.
    """
    chosen = PassesOfRun(why=_why_not(setting, Devices.of(world), before, updates))
    if not chosen.why:
        kept = tuple(way for way in passes.ways if way == before and way != "none")
        ways = kept or passes.ways
        faults = _faults(passes, ways, samples, world)
        if setting == "xla" and all(way in faults for way in ways if way != "none"):
            raise Agreed(
                ConfigError(
                    f"train.compile: XLA cannot compile the network ({next(iter(faults.values()))}).",
                    cure="Set train.compile=auto, which leaves uncompiled what cannot be compiled.",
                    key="train.compile",
                )
            )
        ways = tuple(way for way in ways if way not in faults and not (setting == "xla" and way == "none"))
        chosen = _chosen(passes, ways, faults, samples, world, by_time)
        if kept and chosen.way in kept:
            chosen = PassesOfRun(way=chosen.way, why="as this run has computed them so far")
    passes.take(chosen.way)
    return chosen


def _why_not(setting: str, devices: Devices, before: str | None, updates: int | None) -> str:
    if setting == "none":
        return "train.compile is none"
    if not devices.are_gpus:
        return "on processors they are faster uncompiled"
    if setting == "auto" and before == "none":
        return "as this run has computed them so far"
    if devices.unlike:
        return devices.unlike
    if setting == "auto" and before is None and updates is not None and updates < FEW_UPDATES:
        return f"fewer than {FEW_UPDATES} updates are to come"
    return ""


def _faults(passes: Passes, ways: Sequence[Way], samples: int, world: World) -> Mapping[Way, str]:
    """How ways fail on any rank, one line each; tried without a collective, which others would wait in."""
    mine = {way: _fault(passes, way, samples) for way in ways if way != "none"}
    found: dict[Way, str] = {}
    for rank, its in enumerate(world.allgather_object(mine)):
        found |= {way: f"rank {rank}: {fault}" for way, fault in its.items() if fault and way not in found}
    return found


def _chosen(
    passes: Passes,
    ways: Sequence[Way],
    faults: Mapping[Way, str],
    samples: int,
    world: World,
    by_time: bool,
) -> PassesOfRun:
    if ways in ((), ("none",)):
        return PassesOfRun(why=f"XLA cannot compile the network ({next(iter(faults.values()), '')})")
    if len(ways) == 1 or not by_time:
        return PassesOfRun(way=ways[-1], why="no timing decides")
    mine = [_seconds(passes, way, samples) for way in ways]
    slowest = [max(each) for each in zip(*world.allgather_object(mine), strict=True)]
    ms = {way: round(1000 * seconds, 3) for way, seconds in zip(ways, slowest, strict=True)}
    way = min(ms, key=lambda way: ms[way])
    if "none" in ms and ms[way] > WORTH * ms["none"]:
        return PassesOfRun(why="compiled they are hardly faster, or slower", ms=ms)
    return PassesOfRun(way=way, why="it is the fastest way", ms=ms)


def _fault(passes: Passes, way: Way, samples: int) -> str:
    """How a way fails on this rank, one line; empty where it does not."""
    if not getattr(passes.model, "inputs", None):
        return "what goes into it is not known before it is called"
    run = passes.network(way)
    parts: list[tuple[Network, Sequence[Any]]]
    if isinstance(run, _Segmented):
        parts = [(_alone(one), one.reads) for one in run.segments if one.is_compiled]
    else:
        parts = [(lambda given: run(_packed(given)), passes.model.inputs)]
    with _kept(passes.model):
        try:
            for call, reads in parts:
                step, given = _step(passes, call), [_zeros(one, samples) for one in reads]
                if fault := _other_draws(step.get_concrete_function(given).graph):
                    return fault
                step(given)
        except (tf.errors.OpError, ValueError, TypeError) as error:
            return str(error).strip().partition("\n")[0][:200] or type(error).__name__
    return ""


def _alone(segment: _Segment) -> Network:
    return lambda given: _compiled(segment, *given)


def _other_draws(graph: Any) -> str:
    """Why layers would draw other numbers than uncompiled, one line; empty where they would not."""
    for function in graph.as_graph_def().library.function:
        kinds = {node.op for node in function.node_def if node.op.startswith("StatelessRandom")}
        if any("Normal" in kind for kind in kinds):
            return "it draws normal numbers, of which XLA makes others"
        # Draws are counted in the order of the whole backward pass, which such a function does not see.
        if kinds and function.signature.name.startswith("__inference___backward_function"):
            return "it draws at random in what the backward pass computes again"
    return ""


def _seconds(passes: Passes, way: Way, samples: int) -> float:
    """Seconds of both passes with the exchange of gradients: fastest of five; a collective."""
    run = passes.network(way)
    step = _step(passes, lambda given: run(_packed(given)), passes.reduce)
    x = [_zeros(one, samples) for one in passes.model.inputs]
    seconds = []
    with _kept(passes.model):
        for _ in range(1 + _ROUNDS):  # the first one compiles
            tf.test.experimental.sync_devices()
            began = time.perf_counter()
            step(x)
            tf.test.experimental.sync_devices()
            seconds.append(time.perf_counter() - began)
    return min(seconds[1:])


def _step(passes: Passes, run: Network, reduce: Callable[[Sequence[Any]], Sequence[Any]] = list) -> Any:
    """Both passes of what `run` returns, from a list of tensors, samples first."""

    def passed(tensors: list[Any]) -> list[Any]:
        model, samples = passes.model, tensors[0].shape[0]
        x = _packed([_zeros(one, samples) for one in model.inputs])
        drawn = passes.draws.of_pass(x, 0, SamplesOfPass(((0, samples),), whole=True))
        with drawn as passing, tf.GradientTape() as tape:
            tape.watch(tensors)
            sums = [tf.reduce_sum(tf.cast(one, tf.float32)) for one in tf.nest.flatten(run(tensors))]
            loss = tf.add_n([*sums, *(tf.cast(extra, tf.float32) for extra in model.losses)])
        with passing.backward():
            weights = [v.value for v in model.trainable_variables]
            gradients, _ = tape.gradient(loss, (weights, tensors))
        return [g for g in reduce(gradients) if g is not None]

    return tf.function(passed, autograph=False, jit_compile=False)


@contextlib.contextmanager
def _kept(model: keras.Model) -> Iterator[None]:
    """Moving statistics are afterwards what they were."""
    kept = [(v, v.numpy()) for v in model.non_trainable_variables]
    try:
        yield
    finally:
        for variable, value in kept:
            variable.assign(value)


def _packed(given: Sequence[Any]) -> Any:
    return given[0] if len(given) == 1 else list(given)


def _zeros(tensor: Any, samples: int) -> Any:
    return tf.zeros([samples, *tensor.shape[1:]], tensor.dtype)


@dataclass(frozen=True)
class _Segment:
    """Some consecutive calls of layers.

    Attributes:
        nodes: Keras' records of these calls.
        reads: symbolic tensors of others, or of the network's inputs, that they read.
        writes: symbolic tensors that others read, or that the network returns.
        is_compiled: False where ranks exchange something.
    """

    nodes: tuple[Any, ...]
    reads: tuple[Any, ...]
    writes: tuple[Any, ...]
    is_compiled: bool

    def __call__(self, *given: Any) -> list[Any]:
        tensors = dict(zip(map(id, self.reads), given, strict=True))
        for node in self.nodes:
            args, kwargs = node.arguments.fill_in(tensors)
            if "training" in getattr(node.operation, "_call_context_args", {}):
                kwargs["training"] = True
            outputs = tf.nest.flatten(node.operation(*args, **kwargs))
            tensors.update(zip(map(id, node.outputs), outputs, strict=True))
        return [tensors[id(one)] for one in self.writes]


class _Segmented:
    """A functional network, segment by segment."""

    def __init__(self, model: Any, ranks: int, limit: float) -> None:
        self._model = model
        self.segments = tuple(_segments(model, ranks, limit))

    def __call__(self, x: Any) -> Any:
        model = self._model
        tensors = dict(zip(map(id, model.inputs), model._standardize_inputs(x), strict=True))
        for segment in self.segments:
            given = [tensors[id(one)] for one in segment.reads]
            outputs = _compiled(segment, *given) if segment.is_compiled else segment(*given)
            tensors.update(zip(map(id, segment.writes), outputs, strict=True))
        outputs = [tensors[id(one)] for one in model.outputs]
        return keras.tree.pack_sequence_as(model._outputs_struct, outputs)


def _segments(model: Any, ranks: int, limit: float) -> Iterator[_Segment]:
    depths = sorted(model._nodes_by_depth, reverse=True)
    nodes = [node for depth in depths for node in model._nodes_by_depth[depth] if not node.is_input]
    weighted = [number for number, node in enumerate(nodes) if _gradient_bytes(node.operation)]
    buckets = reduction.buckets([_gradient_bytes(nodes[number].operation) for number in weighted], limit)
    # What has no weights goes with what has some before it.
    starts = [0, *(weighted[bucket[-1]] for bucket in buckets[-2::-1])]
    groups: list[tuple[list[Any], bool]] = []
    for start, stop in itertools.pairwise((*starts, len(nodes))):
        groups.append(([], True))
        for node in nodes[start:stop]:
            if ranks > 1 and _exchanges(node.operation):
                groups += [([node], False), ([], True)]
            else:
                groups[-1][0].append(node)
    parts = [(members, is_compiled) for members, is_compiled in groups if members]
    for number, (members, is_compiled) in enumerate(parts):
        later = [one for others, _ in parts[number + 1 :] for node in others for one in node.input_tensors]
        wanted = {id(one) for one in (*later, *model.outputs)}
        made = {id(one): one for node in members for one in node.outputs}
        read = {id(one): one for node in members for one in node.input_tensors if id(one) not in made}
        writes = tuple(one for key, one in made.items() if key in wanted)
        yield _Segment(tuple(members), tuple(read.values()), writes, is_compiled)


def _gradient_bytes(layer: Any) -> int:
    weights = getattr(layer, "trainable_variables", ())
    return sum(math.prod(v.shape) * tf.as_dtype(v.dtype).size for v in weights)


def _exchanges(layer: Any) -> bool:
    """Whether a layer, or one within it, exchanges something between ranks."""
    inner = layer._flatten_layers() if isinstance(layer, keras.layers.Layer) else ()
    return any(isinstance(one, SyncBatchNormalization) for one in inner)


def _compiled(function: Callable[..., Sequence[Any]], *given: Any) -> Sequence[Any]:
    """Trace a function within the step that is being traced, as one that XLA compiles, and call it."""
    return tf.function(function, autograph=False, jit_compile=True)(*given)

"""Records what a rank does and when; of a compiled training step, by timestamps in the graph itself.

A timestamp delays no operation: it waits for what it times, and nothing waits for it but the start of the
step and that of the backward pass. On a GPU it records when work was handed to the device, not when it was
done.

What the strategy calls while TensorFlow traces the step does nothing unless a `Timeline` is tracing.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainer.telemetry.intervals import Interval, StepIntervals


@dataclass(frozen=True)
class MarkLayout:
    """What the numbers of `Call.marks` are: three moments, ends of chunks, events, pairs of buckets.

    Attributes:
        forward: for each collective event of the forward pass, whether something left (else it returned).
        backward: the same of the backward pass.
        buckets: bytes of each bucket of gradients on its way.
        kind: of the intervals of buckets.
        chunks: `forward` or `backward`, and the micro-batch, of each chunk in turn; empty where there is one
            micro-batch.
    """

    forward: tuple[bool, ...] = ()
    backward: tuple[bool, ...] = ()
    buckets: tuple[int, ...] = ()
    kind: str = "reduce"
    chunks: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Call:
    """One call of the compiled step: a micro-batch.

    Attributes:
        layout: of the marks.
        marks: float64, seconds of the wall clock: start, end of the forward pass, end of the backward pass,
            ends of chunks and events as in `layout`, then each bucket's leaving and return; a bucket's are
            older than the start where nothing was reduced. Buckets are missing until the first was reduced.
        ended: when the call returned.
        arrived: when the first message of others was there; where there is none, when the step began.
    """

    layout: MarkLayout
    marks: np.ndarray
    ended: float
    arrived: float = 0.0


def of_call(call: Call) -> Iterator[Interval]:
    """Return what the rank did in one call.

    `wait` is from the end of the backward pass until the last bucket is back. Where branches of a network run
    side by side, one computes while the other's collective is under way: `statistics` are from one that
    leaves to one that returns, with nothing leaving or returning in between.
    """
    layout = call.layout
    start, forward_end, backward_end, *rest = call.marks.tolist()
    chunks, rest = _ends(rest[: len(layout.chunks)], backward_end), rest[len(layout.chunks) :]
    computed = chunks[0] if chunks else forward_end
    if start > computed:
        # A rank that reads no input computes nothing before its first message, and nothing there waits for
        # the timestamp of the start, which TensorFlow then takes at its leisure.
        start = min(call.arrived, computed)
    if chunks:
        begins = [start, *chunks[:-1]]
        for (kind, micro), begin, end in zip(layout.chunks, begins, chunks, strict=True):
            yield Interval(kind, begin, end, micro=micro)
        yield Interval("backward", chunks[-1], backward_end)
    else:
        yield Interval("forward", start, forward_end)
        yield Interval("backward", forward_end, backward_end)
    there = len(layout.forward)
    events = there + len(layout.backward)
    for moments, kinds in ((rest[:there], layout.forward), (rest[there:events], layout.backward)):
        for (left, leaves), (back, again) in itertools.pairwise(sorted(zip(moments, kinds, strict=True))):
            if leaves and not again:
                yield Interval("statistics", left, back)
    last = backward_end
    pairs = rest[events:]
    for left, back, size in zip(pairs[::2], pairs[1::2], layout.buckets, strict=False):
        if left >= start:  # else it is left from an earlier call: this one reduced nothing
            yield Interval(layout.kind, left, back, None, size)
            last = max(last, back)
    if last > backward_end:
        yield Interval("wait", backward_end, last)
    yield Interval("update", last, call.ended)


def _ends(stamps: list[float], last: float) -> list[float]:
    """Return when passes that follow each other ended, at the latest.

    A timestamp may be taken later than its pass ends, even after the end of the next one; a pass ends before
    the next one does.
    """
    ends: list[float] = []
    for stamp in reversed(stamps):
        last = min(last, stamp)
        ends.insert(0, last)
    return ends


class Timeline:
    """Times one rank's steps.

    Args:
        enabled: False leaves the compiled step as it would be without.
        deterministic: TensorFlow refuses its own timestamps where operations are to be repeatable; then
            Python's clock is asked, which takes longer.
    """

    def __init__(self, enabled: bool = True, *, deterministic: bool = False) -> None:
        self.enabled, self._deterministic = enabled, deterministic
        self._calls: list[tuple[MarkLayout, Any, float]] = []
        self._recorded: list[Interval] = []
        self._arrived: list[np.ndarray] = []
        self._closed: list[_Closed] = []
        self._traced = False
        self._layout = MarkLayout()
        self._graph: Any = None
        self._moments: list[Any] = []
        self._chunks: list[tuple[tuple[str, int], Any]] = []
        self._events: list[list[tuple[bool, Any]]] = [[], []]
        self._sizes: tuple[int, ...] = ()
        self._kind = "reduce"
        self._buckets: Any = _moments_of_buckets() if enabled else None

    @contextlib.contextmanager
    def tracing(self) -> Iterator[None]:
        """Record what the training step does while it is traced."""
        global _tracing
        import tensorflow as tf

        self._traced = True
        self._graph, self._moments, self._sizes = tf.compat.v1.get_default_graph(), [], ()
        self._events, self._chunks = [[], []], []
        before, _tracing = _tracing, self if self.enabled else None
        try:
            yield
        finally:
            _tracing = before
            # The graph belongs to the step: with it goes all that it refers to.
            self._graph, self._moments, self._events, self._chunks = None, [], [[], []], []

    def started(self, x: Any) -> Any:
        """Return the step's inputs, made available after the timestamp of the step's start."""
        if not self.enabled:
            return x
        import tensorflow as tf

        self._moments.append(self.now([]))
        with tf.control_dependencies(self._moments):
            return tf.nest.map_structure(tf.identity, x)

    def forward_done(self, loss: Any) -> Any:
        """Return the loss's gradient by itself, where the backward pass begins; None without timing."""
        if not self.enabled:
            return None
        import tensorflow as tf

        self._moments.append(self.now(tf.nest.flatten(loss)))
        with tf.control_dependencies(self._moments):
            return tf.nest.map_structure(tf.ones_like, loss)

    def chunk_done(self, kind: str, micro: int, tensors: Sequence[Any]) -> list[Any]:
        """Record that a pass over one of several micro-batches is done, as the last of its tensors is.

        Args:
            kind: `forward` or `backward`.
            micro: number of the micro-batch.
            tensors: that the pass ends with.

        Returns:
            What the next pass must wait for, without which TensorFlow would take the time at its leisure.
        """
        if not self.enabled:
            return []
        stamp = self.now(tensors)
        self._chunks.append(((kind, micro), stamp))
        return [stamp]

    def backward_done(self, gradients: Sequence[Any]) -> None:
        """Record that all of this rank's gradients are there, as they come from the tape."""
        if self.enabled:
            self._moments.append(self.now(gradients))

    def marks(self) -> Any:
        """Return all timestamps of the traced step, float64 `(n,)`; call it after the optimizer's update."""
        import tensorflow as tf

        if not self.enabled:
            return tf.zeros([0], tf.float64)
        forward, backward = self._events
        self._layout = MarkLayout(
            tuple(leaves for leaves, _ in forward),
            tuple(leaves for leaves, _ in backward),
            self._sizes,
            self._kind,
            tuple(chunk for chunk, _ in self._chunks),
        )
        chunks = [stamp for _, stamp in self._chunks]
        stamps = [*self._moments, *chunks, *(stamp for _, stamp in (*forward, *backward))]
        return tf.concat([tf.stack(stamps), tf.reshape(self._buckets.read_value(), [-1])], 0)

    def add(self, marks: Any) -> None:
        """Keep what a call of the compiled step returned; call it at once."""
        if self.enabled:
            self._calls.append((self._layout, marks, time.time()))

    def record(self, kind: str, seconds: float, *, peer: int | None = None, size: int = 0) -> None:
        """Record what this rank did outside of the compiled step, for `seconds` seconds until now.

        Args:
            kind: see `of_call`.
            seconds: by whatever clock.
            peer: number of the process at the other end.
            size: bytes that moved.
        """
        if self.enabled:
            now = time.time()
            self._recorded.append(Interval(kind, now - seconds, now, peer, size))

    def arrived(self, rows: np.ndarray) -> None:
        """Record messages for which this rank waited, each with the rank that sent it.

        Args:
            rows: `(n, 4)`: start and end of the waiting, seconds of the wall clock; that rank; bytes. What
                came before the step began, such as in an evaluation, is left out.
        """
        if self.enabled:
            self._arrived.append(rows)

    def close_step(self, step: int, seconds: float) -> None:
        """Make a step of what was recorded since the last one.

        Args:
            step: updates so far.
            seconds: that the whole step took.
        """
        calls, self._calls = self._calls, []
        recorded, self._recorded = self._recorded, []
        arrived, self._arrived = self._arrived, []
        first, self._traced = self._traced, False
        if calls:
            self._closed.append((step, time.time() - seconds, seconds, first, calls, recorded, arrived))

    def take(self) -> list[StepIntervals]:
        """Return the steps closed since the last call."""
        closed, self._closed = self._closed, []
        return [_intervals(*one) for one in closed]

    def now(self, after: Sequence[Any]) -> Any:
        """Return the wall clock once all these tensors of the traced step are there, float64 scalar."""
        import tensorflow as tf

        graph = tf.compat.v1.get_default_graph()
        with tf.control_dependencies([tensor for tensor in after if tensor is not None]):
            if self._deterministic:
                stamp = tf.ensure_shape(tf.numpy_function(time.time, [], tf.float64), [])
            else:
                stamp = tf.timestamp()
        # TensorFlow would run timestamps in the order of the program, each after the one before.
        manager = getattr(graph, "experimental_acd_manager", None)
        if manager is not None:
            manager.run_independently(stamp.op.inputs[0].op if self._deterministic else stamp.op)
        return stamp

    def _event(self, leaves: bool, tensor: Any) -> Any:
        """The tensor, once its moment is taken."""
        import tensorflow as tf

        # What is made inside a branch or a loop cannot be returned from the step.
        if tf.compat.v1.get_default_graph() is not self._graph:
            return tf.identity(tensor)
        stamp = self.now([tensor])
        self._events[len(self._moments) > 1].append((leaves, stamp))
        with tf.control_dependencies([stamp]):
            return tf.identity(tensor)

    def _keep(self, pairs: Sequence[Any], sizes: Sequence[int], kind: str) -> None:
        import tensorflow as tf

        self._sizes, self._kind = tuple(sizes), kind
        self._buckets.assign(tf.stack(pairs))


class Buckets:
    """The buckets of one reduction, while it is traced. Does nothing unless a step is timed.

    Args:
        kind: of their intervals.
    """

    def __init__(self, kind: str = "reduce") -> None:
        self._timeline = _tracing
        self._kind = kind
        self._pairs: list[Any] = []
        self._sizes: list[int] = []
        self._left: Any = None

    def leaves(self, tensors: Sequence[Any], size: int) -> None:
        """Record that the next bucket leaves: its tensors before they are reduced, its bytes on the way."""
        if self._timeline is not None:
            self._left = self._timeline.now(tensors)
            self._sizes.append(size)

    def returns(self, tensors: Sequence[Any]) -> None:
        """Record that the bucket is back: the same tensors, reduced."""
        if self._timeline is not None:
            self._pairs.append([self._left, self._timeline.now(tensors)])

    def keep(self) -> None:
        """Keep the moments of all buckets; call it after the last one."""
        if self._timeline is not None and self._pairs:
            self._timeline._keep(self._pairs, self._sizes, self._kind)


_tracing: Timeline | None = None


def collective(exchange: Callable[[Any], Any], tensor: Any) -> Any:
    """Run and time a collective that the passes wait for, such as batch norm's, and that of its gradient.

    Args:
        exchange: the collective, differentiable.
        tensor: its argument.

    Returns:
        What `exchange` returns.
    """
    timeline = _tracing
    if timeline is None:
        return exchange(tensor)
    return _passing(timeline, exchange(_passing(timeline, tensor, True)), False)


def _passing(timeline: Timeline, tensor: Any, leaves: bool) -> Any:
    """The tensor, its moment told; on the way back the gradient goes the other way."""
    import tensorflow as tf

    @tf.custom_gradient
    def passing(value: Any) -> tuple[Any, Callable[[Any], Any]]:
        return timeline._event(leaves, value), lambda upstream: timeline._event(not leaves, upstream)

    return passing(tensor)


def _moments_of_buckets() -> Any:
    """A variable, since with accumulation the reduction is in a branch, which returns nothing to us."""
    import tensorflow as tf

    return tf.Variable(tf.zeros([0, 2], tf.float64), shape=[None, 2], trainable=False)


# A step as `StepIntervals` has it, but for its intervals: calls of the compiled step, and what was recorded
# besides. These become intervals when they are asked for: a step itself keeps numbers, nothing else.
_Calls = list[tuple[MarkLayout, Any, float]]
_Closed = tuple[int, float, float, bool, _Calls, list[Interval], list[np.ndarray]]


def _intervals(
    step: int,
    start: float,
    seconds: float,
    first: bool,
    calls: _Calls,
    recorded: list[Interval],
    arrived: list[np.ndarray],
) -> StepIntervals:
    intervals = list(recorded)
    for rows in arrived:
        intervals += [
            Interval("wait", asked, there, int(peer), int(size))
            for asked, there, peer, size in rows[rows[:, 0] >= start].tolist()
        ]
    came, began = sorted(one.end for one in intervals if one.kind == "wait"), start
    for layout, stamps, ended in calls:
        message = next((moment for moment in came if began <= moment <= ended), began)
        intervals += of_call(Call(layout, np.asarray(stamps), ended, message))
        began = ended
    return StepIntervals(step, start, seconds, tuple(intervals), first)

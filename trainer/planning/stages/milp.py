"""The mixed-integer program of a step: an assignment, and a proven bound. Pure; SciPy's HiGHS solves it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer.planning.stages import filling
from trainer.planning.stages.problem import Floats, StageProblem

# HiGHS takes a row as kept within 1e-6 or so, in a problem whose seconds are about 1.
_ROUNDING = 1e-5


class MilpAssignment(NamedTuple):
    """What the solver found within its time.

    Attributes:
        devices: of each partition; None: it found none.
        bound_s: no assignment within the limits of memory has a shorter step; `inf`: there is none.
    """

    devices: tuple[int, ...] | None
    bound_s: float


def milp(problem: StageProblem, *, time_limit_s: float = 10.0) -> MilpAssignment:
    """Return the assignment with the least load, and the bound that this proves for every assignment.

    It is a relaxation: a step takes no less than

    - what a device computes, reduces and updates, after what comes before its first partition, and
      before what comes after (`filling.first_on`);
    - what a link carries: of each partition, what its chief reader reads, the one that reads most, without
      latency.

    Memory has the activations of all micro-batches under `gpipe`, of one under `1f1b`, and of none with
    `again_s`: an assignment may need more than it is given.

    Args:
        problem: that is planned.
        time_limit_s: after which the bound is what was proven so far.
    """
    from scipy.optimize import Bounds, LinearConstraint
    from scipy.optimize import milp as solve

    model = _Model(problem)
    result = solve(
        model.objective(),
        integrality=model.integrality(),
        bounds=Bounds(0.0, model.upper()),
        constraints=LinearConstraint(*model.rows()),
        options={"time_limit": time_limit_s},
    )
    infeasible = 2
    if result.status == infeasible:
        return MilpAssignment(None, np.inf)
    dual = result.mip_dual_bound
    bound = dual * model.unit_s * (1 - _ROUNDING) if dual is not None and np.isfinite(dual) else 0.0
    devices = None if result.x is None else tuple(map(int, result.x[model.x].argmax(axis=1)))
    return MilpAssignment(devices, max(bound, 0.0))


class _Model:
    """Variables and rows.

    Variables: `x[p, d]`, partition p is on device d; `y[p, d]`, it is the first one there; `z[p, a, b]`,
    p is on a and its chief reader on b; last the seconds of the step, in units of `unit_s`.
    """

    def __init__(self, problem: StageProblem) -> None:
        p, d = problem.partitions, problem.devices
        self.problem = problem
        # Of about the step's size, for the solver's tolerances.
        self.unit_s = float(problem.work_s.min(axis=1).sum()) / d or 1.0
        self.x = np.arange(p * d).reshape(p, d)
        self.y = self.x + p * d
        self.read = [q for q in range(p) if problem.moved_bytes[q].any()]
        self.z = 2 * p * d + np.arange(len(self.read) * d * d).reshape(-1, d, d)
        self.step = 2 * p * d + self.z.size
        self._entries: list[tuple[int, int, float]] = []
        self._ranges: list[tuple[float, float]] = []
        self._assign()
        self._begin()
        self._compute()
        self._send()

    def objective(self) -> Floats:
        return np.eye(1, self.step + 1, self.step)[0]

    def integrality(self) -> NDArray[np.int64]:
        return (np.arange(self.step + 1) < self.x.size).astype(np.int64)

    def upper(self) -> Floats:
        """Return upper bounds; of devices that are all alike, partition p is on one of the first p + 1."""
        bounds = np.ones(self.step + 1)
        bounds[self.step] = np.inf
        if _alike(self.problem):
            bounds[self.x[~np.tri(*self.x.shape, dtype=bool)]] = 0.0
        return bounds

    def rows(self) -> tuple[object, Floats, Floats]:
        """Return the rows' coefficients, and their least and largest values."""
        from scipy.sparse import csr_array

        row, column, value = zip(*self._entries, strict=True)
        low, high = zip(*self._ranges, strict=True)
        matrix = csr_array((value, (row, column)), shape=(len(low), self.step + 1))
        return matrix, np.array(low), np.array(high)

    def _row(self, terms: Iterable[tuple[int, float]], low: float, high: float) -> None:
        number = len(self._ranges)
        self._entries += [(number, int(column), float(value)) for column, value in terms]
        self._ranges.append((low, high))

    def _assign(self) -> None:
        problem = self.problem
        flying = problem.micro_batches if problem.schedule == "gpipe" else 1
        flying = flying if problem.again_s is None else 0
        size = problem.state_bytes + flying * problem.kept_bytes
        for columns in self.x:
            self._row(((column, 1.0) for column in columns), 1.0, 1.0)
        for device in np.flatnonzero(np.isfinite(problem.memory_bytes)):
            limit = max(problem.memory_bytes[device], 1e-300)
            self._row(zip(self.x[:, device], size / limit, strict=True), -np.inf, 1.0 * (limit > 1e-300))

    def _begin(self) -> None:
        for device in range(self.problem.devices):
            x, y = self.x[:, device], self.y[:, device]
            self._row(((column, 1.0) for column in y), 0.0, 1.0)
            for p in range(len(x)):
                self._row([(y[p], 1.0), (x[p], -1.0)], -np.inf, 0.0)
                self._row([(x[p], 1.0), *((column, -1.0) for column in y[: p + 1])], -np.inf, 0.0)

    def _compute(self) -> None:
        problem = self.problem
        passes = problem.passes_s
        before, after = filling.first_on(problem)
        for device in range(problem.devices):
            x, y = self.x[:, device], self.y[:, device]
            for at_x, at_y in ((passes, before + after), (passes + problem.final_s, before)):
                terms = [*zip(x, at_x[:, device], strict=True), *zip(y, at_y[:, device], strict=True)]
                self._least(terms)

    def _send(self) -> None:
        problem = self.problem
        d = range(problem.devices)
        for p, z in zip(self.read, self.z, strict=True):
            reader = int(problem.moved_bytes[p].argmax())
            for a in d:
                self._row([(self.x[p, a], -1.0), *((z[a, b], 1.0) for b in d)], 0.0, 0.0)
                self._row([(self.x[reader, a], -1.0), *((z[b, a], 1.0) for b in d)], 0.0, 0.0)
        most = problem.moved_bytes.max(axis=1)
        for a, b in ((a, b) for a in d for b in d if a != b):
            took = {p: problem.micro_batches * most[p] / problem.bytes_per_second[a, b] for p in self.read}
            pairs = [
                (z[way], took[p]) for p, z in zip(self.read, self.z, strict=True) for way in ((a, b), (b, a))
            ]
            self._least(pairs)

    def _least(self, terms: Iterable[tuple[int, float]]) -> None:
        """Add that the step is no shorter than a sum of seconds."""
        self._row([(self.step, 1.0), *((at, -value / self.unit_s) for at, value in terms)], 0.0, np.inf)


def _alike(problem: StageProblem) -> bool:
    apart = ~np.eye(problem.devices, dtype=bool)
    rows = (
        *(problem.forward_s, problem.backward_s, problem.final_s, problem.memory_bytes[None]),
        *(problem.latency_s[None, apart], problem.bytes_per_second[None, apart]),
    )
    return all((one == one[:, :1]).all() for one in rows)

"""The row of one strategy under changes of cluster and batch; nothing is planned twice, nor for ever."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

from trainer.planning.simulation.fabric import ClusterFabric
from trainer.profiling.forecasts import Forecast, RefusedForecast
from trainer.profiling.simulating import Plans, Strategies
from trainer.profiling.subject import Subject


class Rows:
    """What a strategy takes on some ranks, if something were otherwise.

    A network that is divided is planned once for each number of samples: on other links or devices the same
    plan is played.

    Args:
        subject: the network and the cluster.
        within_s: seconds after which no further number of samples is looked at.
        show: is told what is planned.

    Attributes:
        is_cut_short: whether something was not looked at for want of time.
    """

    def __init__(self, subject: Subject, within_s: float, show: Callable[[str], None]) -> None:
        self.subject, self._show = subject, show
        self._end = time.monotonic() + within_s
        self._planned: Plans = {}
        self.is_cut_short = False

    def of(self, ranks: int, **changes: Any) -> Forecast | RefusedForecast:
        """Return the faster of a strategy's rows.

        Args:
            ranks: that train.
            changes: of what is asked, such as `cluster` or `batch_per_rank`.
        """
        subject = self.subject.on(dataclasses.replace(self.subject.asked, **changes))
        fabric = ClusterFabric(subject.cluster, ranks)
        rows = [row for row, _ in Strategies(subject, self._planned, self._show).strategies(fabric)]
        possible = [row for row in rows if isinstance(row, Forecast)]
        return max(possible, key=lambda row: row.samples_per_s) if possible else rows[0]

    def has_time(self) -> bool:
        """Return whether there is time to look at another number of samples; notes where there is none."""
        self.is_cut_short |= time.monotonic() > self._end
        return not self.is_cut_short

"""Answers of the API about runs side by side."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from cingulum.service.schema import Best, Measured, ProgressView


class ComparedRun(BaseModel):
    """One of the runs: `page` is its address; `settings` are in the order of `keys`, null: it has none."""

    id: str
    name: str
    page: str
    state: str
    strategy: str | None
    progress: ProgressView | None
    best: Best | None
    figures: dict[str, Measured]
    settings: list[str | None]


class Compared(BaseModel):
    """Runs side by side, in the order in which they were asked for.

    `keys` are those of the configuration whose values differ, `metrics` what there are curves of, `figures`
    of the evaluation on `split`; `warnings` say which runs are missing.
    """

    runs: list[ComparedRun]
    keys: list[str]
    metrics: list[str]
    figures: list[str]
    split: str
    warnings: list[str]


class Line(BaseModel):
    """The curve of a run: columns of equal length."""

    id: str
    x: list[float]
    y: list[float | None]


class MetricCurves(BaseModel):
    """Curves of a metric over `axis`: epochs, steps, or seconds of training."""

    metric: str
    axis: Literal["epoch", "step", "time"]
    lines: list[Line]


class Difference(BaseModel):
    """Two runs on the same scans, by subject: first less second, 95 % interval, two-sided p, p after Holm."""

    metric: str
    first: str
    second: str
    difference: float | None
    interval: tuple[float, float] | None
    p_value: float | None
    p_holm: float | None
    test: str


class Tested(BaseModel):
    """What `cingulum compare` tells of the runs: `n` scans of `subjects`, every pair, and what to know."""

    task: str
    split: str
    n: int
    subjects: int
    notes: list[str]
    differences: list[Difference]

"""A subject is the unit of every claim: intervals and tests of scans, of which several may be of one subject.

Two scans of a subject resemble each other, so they are not two witnesses. Every figure keeps its scans, and
every statement about how sure it is counts subjects:

- *Error* of any figure: the jackknife that leaves one subject out with all its scans (Efron and Stein,
  Annals of Statistics 9 (1981) 586), within classes where each class is a sample of its own. For an AUC of
  subjects with one scan each it is DeLong's (Biometrics 44 (1988) 837; Arvesen 1969).
- *Interval* of an area, a mean or another figure: that error on a scale without ends (logit, logarithm).
- *Interval* of a share of scans (accuracy): Wilson's, for as many scans as would be worth the same if
  all were of different subjects: n / (1 + (m - 1) ICC), m being the mean number of scans of a subject as a
  scan sees it, and ICC their correlation by an analysis of variance (Donner and Klar, American Journal of
  Epidemiology 140 (1994) 279).
- *Test* of two runs: were each subject's two answers exchanged by a coin, how often would the figures
  differ as much? See `exchange_p`.

Five copies of every scan change nothing of these; nor does it matter whose scans come first. What these
choices achieve on cohorts of 20 subjects is in docs/explanation/evaluation.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np
import scipy  # its parts load when first used: ranks evaluate every epoch without them

# From fewer subjects (of the smallest class, where classes are compared) nothing is said.
LEAST = 5
# In place of an interval, for people.
TOO_FEW = "too few for an interval"
# How many times a figure is computed at most: more subjects are left out in as many groups (Kott, Journal of
# Official Statistics 17 (2001) 521).
MOST = 2000
# Rows of weights at once: 250 x 10,000 scans are 20 MB.
_BLOCK = 250
_NORMAL = NormalDist().inv_cdf(0.975)

# From weights of the scans, float64 (b, N), to a figure of each row, float64 (b,); NaN where undefined.
Figure = Callable[[np.ndarray], np.ndarray]
# What a figure can be: between 0 and 1, above 0, below 1, between -1 and 1, or any number.
Scale = Literal["share", "size", "at most one", "correlation", "any"]


@dataclass(frozen=True)
class Subjects:
    """Whose scans they are.

    Attributes:
        home: int64 (N,), each scan's subject, numbered from 0 in the order of their first scans.
    """

    home: np.ndarray

    @classmethod
    def named(cls, names: Sequence[str]) -> Subjects:
        """Return the subjects of scans, of which each names its subject."""
        numbers: dict[str, int] = {}
        return cls(np.array([numbers.setdefault(str(name), len(numbers)) for name in names], np.int64))

    @property
    def count(self) -> int:
        """Return the number of subjects."""
        return int(self.home.max()) + 1 if len(self.home) else 0

    @property
    def scans(self) -> np.ndarray:
        """Return how many scans each has, int64 (count,)."""
        return np.bincount(self.home, minlength=self.count)

    def sums(self, values: np.ndarray) -> np.ndarray:
        """Return the sum of a number of each scan, (N,), over each subject's scans: float64 (count,)."""
        return np.bincount(self.home, values, minlength=self.count)

    def of(self, places: np.ndarray) -> Subjects:
        """Return those of the scans at these places, a mask or numbers."""
        return Subjects(np.unique(self.home[places], return_inverse=True)[1])


@dataclass(frozen=True)
class LeftOut:
    """A figure, and what it is without each subject.

    Attributes:
        value: of all.
        values: float64 (G,), without each subject, or each group of subjects.
        strata: int64 (G,), the sample that each belongs to.
        fewest: subjects of the smallest sample.
    """

    value: float
    values: np.ndarray
    strata: np.ndarray
    fewest: int

    def __sub__(self, other: LeftOut) -> LeftOut:
        """Return the difference of a figure of the same subjects: a paired one."""
        return LeftOut(self.value - other.value, self.values - other.values, self.strata, self.fewest)

    @property
    def error(self) -> float | None:
        """Return the standard error; None where it cannot be told, and where nobody makes a difference."""
        if self.fewest < LEAST or not (np.isfinite(self.values).all() and math.isfinite(self.value)):
            return None
        variance = 0.0
        for stratum in np.unique(self.strata):
            values = self.values[self.strata == stratum]
            variance += (len(values) - 1) * float(values.var())
        size = max(abs(self.value), float(np.abs(self.values).max()))
        return math.sqrt(variance) if variance > (1e-9 * size) ** 2 else None

    def interval(self, scale: Scale, *, normal: bool = False) -> list[float] | None:
        """Return the 95 % interval, or None where there is none.

        Args:
            scale: the numbers that the figure can be; the interval stays among them.
            normal: quantiles of the normal distribution, as DeLong's for areas, whose jackknife error is a
                little too large with few subjects; else Student's with one degree of freedom less than
                subjects.
        """
        error = self.error
        if error is None:
            return None
        quantile = _NORMAL if normal else float(scipy.special.stdtrit(len(self.values) - 1, 0.975))
        return _within(self.value, quantile * error, scale)

    def interval_of_difference(self, *, normal: bool = False) -> list[float] | None:
        """Return the interval of a difference: [0, 0] where two runs give the same answers."""
        if self.fewest >= LEAST and self.value == 0 and not self.values.any():
            return [0.0, 0.0]
        return self.interval("any", normal=normal)


def left_out(subjects: Subjects, figure: Figure, classes: np.ndarray | None = None) -> LeftOut:
    """Return a figure of all scans, and without each subject.

    Args:
        subjects: whose scans they are.
        figure: from weights of the scans, 0 or 1, to the figure.
        classes: int (N,), where each class is a sample of its own. Where scans of a subject are of several
            classes, all subjects are one sample.
    """
    count, own = subjects.count, np.zeros(subjects.count, np.int64)
    fewest = count
    if classes is not None and count:
        first = np.asarray(classes)[np.unique(subjects.home, return_index=True)[1]]
        if (first[subjects.home] == classes).all():
            own = first
        fewest = min(len(np.unique(subjects.home[classes == k])) for k in np.unique(classes))
    group = np.zeros(count, np.int64)
    strata: list[int] = []
    samples = np.unique(own)
    for stratum in samples:
        members = np.flatnonzero(own == stratum)
        groups = len(members) if count <= MOST else min(len(members), MOST // len(samples))
        group[members] = len(strata) + np.arange(len(members)) % groups
        strata += [int(stratum)] * groups
    home = group[subjects.home]
    value = float(figure(np.ones((1, len(home))))[0])
    parts = [
        figure((home != np.arange(start, min(start + _BLOCK, len(strata)))[:, None]).astype(np.float64))
        for start in range(0, len(strata), _BLOCK)
    ]
    values = np.concatenate(parts) if parts else np.zeros(0)
    return LeftOut(value, values, np.array(strata, np.int64), fewest)


def mean_left_out(subjects: Subjects, values: np.ndarray) -> LeftOut:
    """Return the mean of a number of each scan, float (N,), and without each subject; NaN is left out."""
    known = np.isfinite(values)
    subjects, values = subjects.of(known), values[known]
    total, scans = subjects.sums(values), subjects.scans
    with np.errstate(invalid="ignore", divide="ignore"):
        means = (total.sum() - total) / (scans.sum() - scans)
        mean = float(values.mean()) if len(values) else math.nan
    return LeftOut(mean, means, np.zeros(len(means), np.int64), subjects.count)


def worth(values: np.ndarray, subjects: Subjects) -> float:
    """Return how many scans of different subjects would be worth as much as these.

    That is n of n scans of as many subjects, and fewer the more alike the scans of a subject are. Where all
    values are equal nothing tells how alike they are: then as if the scans of a subject were copies.

    Args:
        values: float (N,), a number of each scan, such as 1 where it is right.
        subjects: whose scans they are.
    """
    n, count, scans = len(values), subjects.count, subjects.scans
    if n == count or not n:
        return float(n)
    as_seen = float((scans**2).sum() / n)
    if count < 2:
        return n / as_seen
    centred = values - values.mean()
    means = subjects.sums(centred) / scans
    between = float((scans * means**2).sum()) / (count - 1)
    within = float(((centred - means[subjects.home]) ** 2).sum()) / (n - count)
    usual = (n - as_seen) / (count - 1)
    spread = between + (usual - 1) * within
    alike = (between - within) / spread if spread > 1e-12 else 1.0
    return n / (1 + (as_seen - 1) * min(1.0, max(0.0, alike)))


def wilson(share: float, n: float) -> list[float]:
    """Return the 95 % interval of a share of n (JASA 22 (1927) 209), which stays inside 0 and 1."""
    z = _NORMAL
    centre = (share * n + z * z / 2) / (n + z * z)
    half = z / (n + z * z) * math.sqrt(max(0.0, n * share * (1 - share)) + z * z / 4)
    return [float(max(0.0, centre - half)), float(min(1.0, centre + half))]


def share_interval(hits: np.ndarray, subjects: Subjects) -> list[float] | None:
    """Return Wilson's interval of a share of scans, of as many as they are worth.

    Args:
        hits: float (N,), 1 for those that count; or a mean over networks.
        subjects: whose scans they are.
    """
    return wilson(float(hits.mean()), worth(hits, subjects)) if len(hits) else None


def interval_of_shares(first: np.ndarray, second: np.ndarray, subjects: Subjects) -> list[float]:
    """Return the 95 % interval of the difference of two shares of the same scans.

    Bonett and Price (Journal of Educational and Behavioral Statistics 37 (2012) 479), who add a subject to
    either side, of as many scans as they are worth.

    Args:
        first, second: float (N,), 1 for those that count.
        subjects: whose scans they are.
    """
    n = worth(first - second, subjects)
    shares = [(n * float((a > b).mean()) + 1) / (n + 2) for a, b in ((first, second), (second, first))]
    centre = shares[0] - shares[1]
    half = _NORMAL * math.sqrt((sum(shares) - centre**2) / (n + 2))
    return [max(-1.0, centre - half), min(1.0, centre + half)]


def exchange_p(parts: np.ndarray) -> float | None:
    """Return two-sided p of a difference of two runs that is a sum over subjects.

    If neither run is better, each subject's two answers could be exchanged, which changes the sign of its
    part. How often the sum is as large over random signs is nearly what Student's test of the parts says (Box
    and Andersen, JRSS B 17 (1955) 1), and never less than for signs that are all equal. Of right and wrong
    answers this is nearly McNemar's test (Psychometrika 12 (1947) 153) by subject (Durkalski et al.,
    Statistics in Medicine 22 (2003) 2417); of AUCs that of Bandos et al. (Statistics in Medicine 24 (2005)
    2873), see `ranking`.

    Args:
        parts: float (subjects,).

    Returns:
        p: 1 where no part differs from 0, None for fewer than `LEAST` subjects.
    """
    n = len(parts)
    if n < LEAST:
        return None
    total, squares = float(parts.sum()), float((parts**2).sum())
    if squares == 0:
        return 1.0
    equal = 2.0 ** (1 - n)
    rest = n * squares - total**2
    if rest <= 1e-12 * n * squares:
        return equal
    return max(equal, 2 * float(scipy.special.stdtr(n - 1, -abs(total) * math.sqrt((n - 1) / rest))))


def _within(value: float, half: float, scale: Scale) -> list[float] | None:
    """The interval of `value` whose half width would be `half`, had the scale no ends."""
    if scale == "any":
        return [value - half, value + half]
    if scale == "at most one":
        inside = _within(1 - value, half, "size")
        return None if inside is None else [1 - inside[1], 1 - inside[0]]
    if scale == "correlation":
        inside = _within((1 + value) / 2, half / 2, "share")
        return None if inside is None else [2 * end - 1 for end in inside]
    if value <= 0 or (scale == "share" and value >= 1):
        return None
    if scale == "size":
        return [value * math.exp(sign * half / value) for sign in (-1, 1)]
    odds = value / (1 - value)
    ends = [odds * math.exp(sign * half / (value * (1 - value))) for sign in (-1, 1)]
    return [end / (1 + end) for end in ends]

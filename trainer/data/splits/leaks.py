"""Find what two splits share: a subject, an image, or a nearly identical head.

`splits.split` keeps a subject's scans together, but it goes by names. The same person under two names, a scan
that was saved twice, re-sampled or given other noise, is found here by what the stored volumes look like:
16^3 numbers of each (`miniature`) that are stable when a scan is shifted, cropped, re-sampled or re-scaled.

Where the head lies and how large it is says little about whose it is, and outweighs everything else in a
plain comparison. So the box in which the volume is sampled is that of its own foreground: centred on it, and
as wide along each axis as it is spread. What is smooth over the head is taken away, because a scanner's bias
field is. docs/decisions/0006-leak-check.md has the measurements.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import scipy

from trainer.data.images.foreground import otsu
from trainer.data.shards.shards import ShardSet
from trainer.data.splits.splits import Split
from trainer.data.workers import default_workers
from trainer.errors import LeakError, typed

Progress = Callable[[int, int], None]

# With so many subjects, the directions in which the cohort varies most (pose, contrast, the scanner) can be
# estimated and removed. docs/decisions/0006-leak-check.md has the values for different and the same heads.
ENOUGH_SUBJECTS = 48
DIRECTIONS = 4
THRESHOLD = 0.8
THRESHOLD_OF_FEW = 0.93

_BLOCK = 512
_MOST_NAMED = 10
_MOST_THREADS = 8


@dataclass(frozen=True)
class Leak:
    """Two volumes that should not be in different splits.

    Attributes:
        kind: `subject`, the same subject; `image`, the same bytes; `look-alike`, nearly the same image.
        rows: in the shard set.
        subjects: of the two volumes.
        splits: of the two volumes; None without a split.
        sources: the image files.
        similarity: of look-alikes, the correlation of their miniatures, 1 at most; else None.
    """

    kind: Literal["subject", "image", "look-alike"]
    rows: tuple[int, int]
    subjects: tuple[str, str]
    splits: tuple[str, str] | None
    sources: tuple[str, str]
    similarity: float | None = None

    def __str__(self) -> str:
        first, second = (f"{s} ({f})" for s, f in zip(self.subjects, self.sources, strict=True))
        if self.splits:
            first, second = f"{self.splits[0]}: {first}", f"{self.splits[1]}: {second}"
        what = {"subject": "one subject", "image": "the same image", "look-alike": "nearly the same image"}
        much = "" if self.similarity is None else f", similarity {self.similarity:.3f}"
        return f"{what[self.kind]}{much}: {first} and {second}"

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return asdict(self)


def check(shards: ShardSet, split: Split, *, stop: bool, progress: Progress | None = None) -> list[Leak]:
    """Return what two splits share. Every volume of the split is read once.

    Args:
        shards: the shard set.
        split: rows of each split.
        stop: whether to raise when something is found.
        progress: called with (volumes read, volumes in all).

    Returns:
        The leaks, subjects first, then images, then look-alikes by falling similarity; of many alike volumes,
        each is named with the one that is most like it.

    Raises:
        LeakError: `stop` is set and something was found; it is named.
        ShardError: a volume is damaged.
    """
    places = {row: name for name in ("train", "validation", "test") for row in getattr(split, name)}
    twice = _split_subjects(shards, split)
    leaks = twice + _alike(shards, places, places, {leak.subjects[0] for leak in twice}, progress)
    if leaks and stop:
        raise LeakError(
            f"{shards.path}: splits have subjects or images in common:\n{listed(leaks)}",
            cure="Remove one of each pair, or give both the same subject name, and import again. "
            f"For all of them: cingulum leaks {typed(shards.path)}. If they are two people: data.leaks=warn.",
        )
    return leaks


def duplicates(shards: ShardSet, *, progress: Progress | None = None) -> list[Leak]:
    """Return volumes of different subjects that are the same or nearly so, whatever the split.

    Raises:
        ShardError: a volume is damaged.
    """
    subjects = {row: volume.subject for row, volume in enumerate(shards.volumes)}
    return _alike(shards, subjects, None, set(), progress)


def reservation(setting: object) -> str:
    """Return what readers must know where `data.leaks` let a run train whatever was found; else ""."""
    if setting == "warn":
        return (
            "Partitions may share a person under two names, or nearly the same image: what was found did not "
            "stop the training (data.leaks=warn)."
        )
    if setting == "ignore":
        return (
            "Whether partitions share a person under two names, or nearly the same image, was not looked "
            "into (data.leaks=ignore)."
        )
    return ""


def listed(leaks: Sequence[Leak]) -> str:
    """Return a line for each of the first leaks."""
    lines = [f"  {leak}" for leak in leaks[:_MOST_NAMED]]
    if len(leaks) > _MOST_NAMED:
        lines.append(f"  ... and {len(leaks) - _MOST_NAMED} more")
    return "\n".join(lines)


def _split_subjects(shards: ShardSet, split: Split) -> list[Leak]:
    first: dict[str, tuple[int, str]] = {}
    leaks: dict[str, Leak] = {}
    for name in ("train", "validation", "test"):
        for row in getattr(split, name):
            subject = shards.volumes[row].subject
            other, place = first.setdefault(subject, (row, name))
            if place != name and subject not in leaks:
                leaks[subject] = _leak("subject", shards, (other, row), {other: place, row: name})
    return list(leaks.values())


def _alike(
    shards: ShardSet,
    groups: Mapping[int, Hashable],
    splits: Mapping[int, str] | None,
    excluded: set[str],
    progress: Progress | None,
) -> list[Leak]:
    """Return pairs of rows in different groups with the same or nearly the same image."""
    rows = sorted(row for row in groups if shards.volumes[row].subject not in excluded)
    same = _same_bytes(shards, rows, groups)
    leaks = [_leak("image", shards, pair, splits) for pair in same]
    if min(shards.shape[:3]) < SMALLEST:
        return leaks
    known = {frozenset(pair) for pair in same}
    for pair, similarity in _look_alikes(shards, rows, groups, progress):
        if frozenset(pair) not in known:
            leaks.append(_leak("look-alike", shards, pair, splits, similarity))
    return leaks


def _same_bytes(
    shards: ShardSet, rows: Sequence[int], groups: Mapping[int, Hashable]
) -> list[tuple[int, int]]:
    """Yield rows whose image file, or stored volume, has the checksum of an earlier row in another group."""
    seen: dict[tuple[str, str], list[int]] = {}
    pairs = set()
    for row in rows:
        volume = shards.volumes[row]
        for key in (("source", volume.source_sha256), ("stored", volume.checksum)):
            earlier = seen.setdefault(key, [])
            other = next((e for e in earlier if groups[e] != groups[row]), None) if key[1] else None
            if other is not None:
                pairs.add((other, row))
            if all(groups[e] != groups[row] for e in earlier):
                earlier.append(row)  # one of each group is enough to compare with
    return sorted(pairs)


def _look_alikes(
    shards: ShardSet, rows: Sequence[int], groups: Mapping[int, Hashable], progress: Progress | None
) -> list[tuple[tuple[int, int], float]]:
    """Yield pairs of rows in different groups, each volume with its nearest, by falling similarity."""
    if len(rows) < 3:  # against whose mean they would be compared
        return []
    small = np.empty((len(rows), len(miniature(shards.read(rows[0])))), np.float32)
    threads = min(_MOST_THREADS, default_workers())
    with ThreadPoolExecutor(threads) as pool:
        for done, (place, values) in enumerate(
            zip(itertools.count(), pool.map(lambda row: miniature(shards.read(row)), rows)), 1
        ):
            small[place] = values
            if progress is not None:
                progress(done, len(rows))
    threshold = _own_part(small, [shards.volumes[row].subject for row in rows])
    number = {group: k for k, group in enumerate(dict.fromkeys(groups[row] for row in rows))}
    group = np.array([number[groups[row]] for row in rows])
    similarities: dict[tuple[int, int], float] = {}
    for start in range(0, len(rows), _BLOCK):
        likeness = small[start : start + _BLOCK] @ small.T
        likeness[group[start : start + _BLOCK, None] == group[None, :]] = -1.0
        for place, other in enumerate(likeness.argmax(axis=1).tolist(), start):
            value = float(likeness[place - start, other])
            if value > threshold:
                similarities[rows[min(place, other)], rows[max(place, other)]] = min(1.0, value)
    return sorted(similarities.items(), key=lambda item: (-item[1], item[0]))


def _own_part(small: np.ndarray, subjects: Sequence[str]) -> float:
    """Subtract from each miniature, in place, what it shares with the cohort, and scale it to norm 1.

    That is the mean and, with enough subjects, the directions in which the cohort varies most.

    Returns:
        Above which correlation two are look-alikes.
    """
    blank = np.all(small == 0, axis=1, keepdims=True)
    first = {subject: place for place, subject in reversed(list(enumerate(subjects))) if not blank[place, 0]}
    people = small[sorted(first.values())]
    if not len(people):
        return THRESHOLD_OF_FEW
    mean = people.mean(axis=0)
    small -= mean
    enough = len(people) >= ENOUGH_SUBJECTS
    if enough:
        # Imported here: it would cost every rank a second at its start.
        from sklearn.utils.extmath import randomized_svd

        directions = randomized_svd(people - mean, DIRECTIONS, random_state=0)[2].astype(np.float32)
        small -= (small @ directions.T) @ directions
    norms = np.linalg.norm(small, axis=1, keepdims=True)
    small /= np.where((norms > 1e-6) & ~blank, norms, np.inf)  # nothing of its own: like nothing
    return THRESHOLD if enough else THRESHOLD_OF_FEW


def _leak(
    kind: Literal["subject", "image", "look-alike"],
    shards: ShardSet,
    rows: tuple[int, int],
    splits: Mapping[int, str] | None,
    similarity: float | None = None,
) -> Leak:
    first, other = (shards.volumes[row] for row in rows)
    return Leak(
        kind,
        rows,
        (first.subject, other.subject),
        None if splits is None else (splits[rows[0]], splits[rows[1]]),
        (first.source, other.source),
        None if similarity is None else round(similarity, 4),
    )


EDGE = 16
"""Samples along each edge."""

SMALLEST = 16
"""Voxels along a volume's shortest edge: smaller ones hold too little to tell heads apart."""

_SPAN = 2.0  # half the box, in standard deviations of the foreground's voxels along the axis
_SMOOTH = 2.0  # samples: what is smoother is taken away
_FINE_ENOUGH = 48  # voxels along the shortest edge, below which a volume is not reduced further


def miniature(volume: np.ndarray) -> np.ndarray:
    """Return the characteristic numbers of a volume.

    Args:
        volume: (D, H, W, C), of which the first channel counts.

    Returns:
        float32 (EDGE ** 3,) of mean 0 and norm 1; all 0 for a volume in which nothing stands out.
    """
    reduced = _reduced(volume[..., 0].astype(np.float32))
    inside = reduced > otsu(reduced) if np.ptp(reduced) > 0 else np.zeros(reduced.shape, bool)
    if not inside.any():
        return np.zeros(EDGE**3, np.float32)
    axes, steps = [], []
    for axis in range(3):
        centre, spread = _extent(inside, axis)
        axes.append(centre + spread * np.linspace(-_SPAN, _SPAN, EDGE))
        steps.append(2 * _SPAN * spread / (EDGE - 1))
    smooth = scipy.ndimage.gaussian_filter(reduced, [step / 2 for step in steps], truncate=3)
    where = np.meshgrid(*axes, indexing="ij")
    samples = scipy.ndimage.map_coordinates(smooth, where, order=1, mode="nearest")
    detail = (samples - scipy.ndimage.gaussian_filter(samples, _SMOOTH)).ravel()
    detail -= detail.mean()
    norm = float(np.linalg.norm(detail))
    return (detail / norm if norm > 0 else detail).astype(np.float32)


def _reduced(volume: np.ndarray) -> np.ndarray:
    """Return means over blocks, so that what follows costs about the same whatever the volume's size."""
    factor = max(1, min(volume.shape) // _FINE_ENOUGH)
    if factor == 1:
        return volume
    d, h, w = (size // factor for size in volume.shape)
    blocks = volume[: d * factor, : h * factor, : w * factor]
    return blocks.reshape(d, factor, h, factor, w, factor).mean(axis=(1, 3, 5))


def _extent(inside: np.ndarray, axis: int) -> tuple[float, float]:
    """Return mean and standard deviation of the True voxels' place along an axis, the latter at least 0.5."""
    profile = inside.sum(axis=tuple(a for a in range(3) if a != axis), dtype=np.float64)
    place = np.arange(len(profile))
    centre = float((profile * place).sum() / profile.sum())
    return centre, max(0.5, float(np.sqrt((profile * (place - centre) ** 2).sum() / profile.sum())))

"""The volumes that are explained: held-out subjects of a run, or raw images prepared as the run's were."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import keras
import numpy as np

from trainer import explain
from trainer.data.images.preprocess import prepare
from trainer.data.importing.examination import source_sha256
from trainer.errors import RunError
from trainer.inference.member import Member
from trainer.inference.requests import People, requests
from trainer.runs import finished_run
from trainer.runs.preparation import Data

# With `_mosaic.png` behind it, a name stays far below the 255 bytes of file systems.
_MOST_BYTES = 150
# Who was scanned, by the name of an image as BIDS has it.
_PERSON = re.compile(r"sub-[A-Za-z0-9]+")
# What is written beside a subject's map under its name; so these may not be another's name either.
_ENDINGS = ("", "_mosaic", "_glass")


@dataclass(frozen=True)
class ExplainedScan:
    """One scan to explain.

    Attributes:
        name: of its files; unique.
        person: who was scanned, of raw images by their names (sub-...).
        source: path of the image it was made from.
        source_sha256: of that file.
        label: true class, or true number in units of the target; None where unknown.
        volume: (D, H, W, C) float32.
        affine: (4, 4) float64, voxel to mm.
        scan_affine: (4, 4) float64, voxel to mm of the scan's own space; the same unless it was registered.
        covariates: (1, k) float32, where the network takes some.
    """

    name: str
    person: str
    source: str
    source_sha256: str
    label: str | None
    volume: np.ndarray
    affine: np.ndarray
    scan_affine: np.ndarray
    covariates: np.ndarray | None


@dataclass(frozen=True)
class ExplainedRun:
    """A run's network and those it is explained for.

    Attributes:
        model: the network.
        task: 'classification' or 'regression'.
        classes: names in the order of the outputs; () for regression.
        of: where the subjects come from, in words.
        count: how many scans there are.
        voxel_size: mm along D, H, W.
        registered: whether the scans were registered to the average brain, and lie in MNI space.
        each: the scans, read one at a time.
        mean: the mean training volume (D, H, W, C); None where there are no training volumes at hand.
    """

    model: keras.Model
    task: str
    classes: tuple[str, ...]
    of: str
    count: int
    voxel_size: tuple[float, float, float]
    registered: bool
    each: Iterator[ExplainedScan]
    mean: np.ndarray | None


def held_out(run: Path, split: str, most: int, *, mean: bool, code: Sequence[Path] = ()) -> ExplainedRun:
    """Return the scans of at most `most` subjects of one of a run's splits, of all classes in turn, in the
    order of the split.

    Args:
        mean: compute the mean training volume, which reads all of them.
        code: as for `saved_model.load_model`.

    Raises:
        RunError: the run is not finished, its data have changed, the split is empty, or it is a segmentation.
        ShardError: a volume is damaged.
    """
    _, _, data, model = finished_run.open_run(run, split, code)
    explain.check(run, data.task.name, of_patches=data.patches is not None)
    rows = in_turn(data, data.rows(split))
    people = set(list(dict.fromkeys(data.shards.volumes[row].subject for row in rows))[:most])
    rows = [row for row in rows if data.shards.volumes[row].subject in people]
    names = distinct([_name(data, row) for row in rows], file_names_of_means(data.task.classes).values())

    def each() -> Iterator[ExplainedScan]:
        for row, name in zip(rows, names, strict=True):
            volume = data.shards.volumes[row]
            yield ExplainedScan(
                name=name,
                person=volume.subject,
                source=volume.source,
                source_sha256=volume.source_sha256,
                label=volume.label if data.task.classes else _target(data, row),
                volume=data.shards.read(row).astype(np.float32),
                affine=np.asarray(volume.affine, np.float64),
                scan_affine=volume.scan_affine,
                covariates=data.covariates_for([row]),
            )

    return ExplainedRun(
        model=model,
        task=data.task.name,
        classes=data.task.classes,
        of=f"{split} split",
        count=len(rows),
        voxel_size=data.shards.voxel_size,
        registered=data.shards.preprocessing.get("prepare") == "linear",
        each=each(),
        mean=_mean(data) if mean else None,
    )


def raw(run: Path, images: Sequence[str], people: Path | None, code: Sequence[Path] = ()) -> ExplainedRun:
    """Return raw images, prepared with the run's own recipe.

    Args:
        images: paths; several contrasts of one subject are joined by commas.
        people: table of covariates, for a network that takes some.
        code: as for `saved_model.load_model`.

    Raises:
        RunError: the run is not finished, segments, or needs covariates that are not given.
        ImageError: an image is missing or cannot be used.
        CohortError: the table has no row for an image.
    """
    member = Member.open(run, code)
    explain.check(run, member.task, of_patches=member.shape[0] != member.recipe.size)
    requested = requests(images, getattr(member.recipe, "contrasts", ()))
    if member.covariates is not None and people is None:
        raise RunError(
            f"{run}: its network also needs {', '.join(member.covariates.names)}.",
            cure="Add --covariates participants.tsv with these columns; unknown cells may be empty.",
            path=run,
        )
    table = People.read(people) if people is not None and member.covariates is not None else None
    names = distinct([request.stem for request in requested], file_names_of_means(member.classes).values())

    def each() -> Iterator[ExplainedScan]:
        for request, name in zip(requested, names, strict=True):
            several = len(request.paths) > 1
            prepared = prepare(request.paths if several else request.paths[0], member.recipe)
            covariates = None
            if table is not None and member.covariates is not None:
                covariates = member.covariates.encode([table.about(request)])
            volume = prepared.array.astype(np.float32)
            named = _PERSON.match(request.paths[0].name)
            person = named[0] if named else name
            yield ExplainedScan(
                name=name,
                person=person,
                source=str(request.paths[0]),
                source_sha256=source_sha256(request.paths[0]),
                label=None,
                volume=volume,
                affine=prepared.affine,
                scan_affine=prepared.cut.scan_affine,
                covariates=covariates,
            )

    return ExplainedRun(
        model=member.model,
        task=member.task,
        classes=member.classes,
        of="raw images",
        count=len(requested),
        voxel_size=(member.recipe.spacing,) * 3,
        registered=getattr(member.recipe, "prepare", None) == "linear",
        each=each(),
        mean=None,
    )


def file_names_of_means(classes: Sequence[str]) -> dict[str, str]:
    """Return class -> name of the files of its mean map; 'all' where there are no classes."""
    labels = classes or ("all",)
    return dict(zip(labels, distinct(f"mean_{label}" for label in labels), strict=True))


def in_turn(data: Data, rows: Sequence[int]) -> list[int]:
    """Return rows of all classes in turn, so that the first few show every class."""
    by_class: dict[str | None, list[int]] = {name: [] for name in data.task.classes}
    for row in rows:
        by_class.setdefault(data.shards.volumes[row].label if data.task.classes else None, []).append(row)
    longest = max(len(of_class) for of_class in by_class.values())
    return [of_class[k] for k in range(longest) for of_class in by_class.values() if k < len(of_class)]


def _target(data: Data, row: int) -> str:
    targets = data.task.targets([row])
    return "" if targets is None else f"{float(targets[0]):g}"


def _name(data: Data, row: int) -> str:
    volume = data.shards.volumes[row]
    return f"sub-{volume.subject}" + (f"_ses-{volume.session}" if volume.session else "")


def _mean(data: Data) -> np.ndarray:
    rows = data.rows("train")
    total = np.zeros(data.shards.shape, np.float64)
    for row in rows:
        total += data.shards.read(row)
    return (total / len(rows)).astype(np.float32)


def distinct(subjects: Iterable[str], taken: Iterable[str] = ()) -> list[str]:
    """Return file names of letters, digits, dots, dashes and underscores; repeated names get a number.

    Names that differ by case only count as the same: some file systems hold them so.

    Args:
        subjects: what the files are of.
        taken: names of other files of the folder.
    """
    used = {f"{name}{ending}".casefold() for name in taken for ending in _ENDINGS}
    names = []
    for plain in map(_safe, subjects):
        name, number = plain, 1
        while used & (files := {f"{name}{ending}".casefold() for ending in _ENDINGS}):
            number += 1
            name = f"{plain}_{number}"
        used |= files
        names.append(name)
    return names


def _safe(name: str) -> str:
    letters = unicodedata.normalize("NFC", name)
    kept = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in letters)
    short = kept.encode()[:_MOST_BYTES].decode(errors="ignore").lstrip(".-")
    return short or "unnamed"

"""Series of a folder of DICOM files: the slices of each in order, and which of them are missing."""

from __future__ import annotations

import hashlib
import itertools
import os
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from trainer.data.dicom.headers import (
    Acquisition,
    FolderHeaders,
    ScannedPerson,
    SeriesKey,
    SliceFile,
    read_folder,
)
from trainer.data.workers import in_order

# Positions that differ by less are one, in mm.
_SAME_MM = 0.01
# By which part of their distance slices may be off.
_UNEVEN = 0.1


@dataclass(frozen=True)
class Series:
    """Files of one image.

    Attributes:
        key: what they have in common.
        patient: who was scanned.
        acquisition: how.
        files: in the order in which they lie, each image once.
        positions: of their slices along the normal of the plane, in mm, in order.
        more: slices of the same series that are of other images: further echoes, phases.
        lost: how many numbers the images of the series leave out, between the first and the last of them.
    """

    key: SeriesKey
    patient: ScannedPerson
    acquisition: Acquisition
    files: tuple[SliceFile, ...]
    positions: tuple[float, ...]
    more: int = 0
    lost: int = 0

    @property
    def slices(self) -> int:
        """Return the number of different positions."""
        return len(self._different)

    @cached_property
    def _different(self) -> list[float]:
        different: list[float] = []
        for position in self.positions:
            if not different or position - different[-1] > _SAME_MM:
                different.append(position)
        return different

    @cached_property
    def _gaps(self) -> list[float]:
        return [b - a for a, b in itertools.pairwise(self._different)]

    @property
    def spacing_mm(self) -> float | None:
        """Return the usual distance of slices; None for less than two."""
        return statistics.median_low(self._gaps) if self._gaps else None

    @property
    def volumes(self) -> float:
        """Return how many slices lie at a position, on average."""
        return len(self.positions) / self.slices if self.slices else 0.0

    @property
    def missing_between(self) -> int:
        """Return how many slices are missing between others."""
        spacing = self.spacing_mm
        return sum(max(0, round(gap / spacing) - 1) for gap in self._gaps) if spacing else 0

    @property
    def missing_of_expected(self) -> int:
        """Return how many there are less than the header speaks of: it may count other images, too."""
        expected, there = self.acquisition.expected, len(self.positions) + self.more
        return 0 if expected is None else max(0, expected - there)

    @property
    def is_uneven(self) -> bool:
        """Return whether distances of slices differ by more than a missing slice makes."""
        spacing = self.spacing_mm
        if spacing is None:
            return False
        return any(abs(gap / spacing - round(gap / spacing)) > _UNEVEN for gap in self._gaps)

    @property
    def voxel_mm(self) -> tuple[float, ...]:
        """Return the edges of a voxel, as far as they are known."""
        depth = self.spacing_mm or self.acquisition.slice_mm
        return (*self.acquisition.pixel_mm, *([] if depth is None else [depth]))

    @property
    def sha256(self) -> str:
        """Return a SHA-256 that changes with any of the files; ids themselves may hold a date."""
        stamps = [f"{file.instance} {file.stamp[0]} {file.stamp[1]}" for file in self.files]
        return hashlib.sha256("\n".join(stamps).encode()).hexdigest()


def series_of(headers: FolderHeaders) -> list[Series]:
    """Return the series of a folder, in the order of their studies and numbers."""
    slices: dict[tuple[str, str], int] = {}
    numbers: dict[tuple[str, str], set[int]] = {}
    images = {key: {file.instance: file for file in files} for key, (_, _, files) in headers.series.items()}
    for key, of_key in images.items():  # a copy of a file is no further image
        both = key.study, key.series
        slices[both] = slices.get(both, 0) + sum(len(file.positions) for file in of_key.values())
        counted = {file.number for file in of_key.values() if file.number is not None}
        numbers[both] = numbers.get(both, set()) | counted
    listed = []
    for key, (patient, acquisition, _) in headers.series.items():
        both = key.study, key.series
        files = sorted(images[key].values(), key=lambda file: (file.positions[:1], file.instance))
        positions = tuple(sorted(place for file in files for place in file.positions))
        counted = numbers[both]
        lost = max(counted) - min(counted) + 1 - len(counted) if counted else 0
        more = slices[both] - len(positions)
        listed.append(Series(key, patient, acquisition, tuple(files), positions, more, lost))
    return sorted(listed, key=lambda one: (one.key.study, one.acquisition.number or 0, one.key.series))


def read(root: Path, workers: int, show: Callable[[int, int], None]) -> FolderHeaders:
    """Read all headers below a folder, hidden folders excepted.

    Args:
        root: of the files.
        workers: processes.
        show: is called with (folders done, folders).
    """
    headers = FolderHeaders()
    folders = list(_folders(root, headers))
    show(0, len(folders))
    for done, of_folder in enumerate(in_order(read_folder, folders, max(1, min(workers, len(folders)))), 1):
        headers.add(of_folder)
        show(done, len(folders))
    return headers


def _folders(root: Path, headers: FolderHeaders) -> Iterator[Path]:
    """Yield the folders that have files, each once however many links lead there."""
    seen: set[tuple[int, int]] = set()

    def count(error: OSError) -> None:
        headers.closed += 1

    for folder, below, files in os.walk(root, onerror=count, followlinks=True):
        entry = Path(folder).stat()
        below[:] = sorted(name for name in below if not name.startswith("."))
        if (entry.st_dev, entry.st_ino) in seen:
            below[:] = []
            continue
        seen.add((entry.st_dev, entry.st_ino))
        if files:
            yield Path(folder)

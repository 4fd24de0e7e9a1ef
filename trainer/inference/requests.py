"""Which images are asked about, under which names, and what is known of the people on them."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.data.images.reading import stem
from trainer.data.sources import tables
from trainer.data.sources.file_names import first_three
from trainer.data.sources.joins import SESSION_COLUMNS, SUBJECT_COLUMNS, IdKey, id_key
from trainer.data.sources.listing import IMAGE_COLUMNS, person
from trainer.data.sources.tables import Row, TextTable
from trainer.errors import CohortError, ImageError


@dataclass(frozen=True)
class SubjectImages:
    """One subject's image, or the images of its contrasts in the run's order.

    Attributes:
        name: as it was given, which names it in tables.
        paths: of the files; the first decides the geometry.
    """

    name: str
    paths: tuple[Path, ...]

    @property
    def stem(self) -> str:
        """The first file's name without its suffix."""
        return stem(self.paths[0])


def requests(arguments: Sequence[str], contrasts: Sequence[str]) -> list[SubjectImages]:
    """Return the requests of a command line; missing files are reported before any image is processed.

    Args:
        arguments: a path each; with several contrasts, paths joined by commas.
        contrasts: the run's; () where it takes a single image.

    Raises:
        ImageError: a file is missing or a folder, an image is named twice, or not all contrasts are.
    """
    requested = [_request(argument, contrasts) for argument in arguments]
    names: set[str] = set()
    for request in requested:
        if request.name in names:
            raise ImageError(f"{request.name}: is named twice.", cure="Name each image once.")
        names.add(request.name)
        for path in request.paths:
            if not path.is_file():
                what = "is a folder" if path.is_dir() else "there is no such file"
                raise ImageError(
                    f"{path}: {what}.", cure="Give image files, such as scans/*.nii.gz", path=path
                )
    return requested


def file_names(requested: Sequence[SubjectImages], ending: str) -> dict[str, Path]:
    """Return a relative path for the result of each request, by its name: `<stem><ending>`.

    Where two images have the same name, all keep the folders that tell them apart.

    Raises:
        ImageError: two results would be the same file.
    """
    stems = [request.stem for request in requested]
    if len(set(stems)) == len(stems):
        return {request.name: Path(f"{request.stem}{ending}") for request in requested}
    whole = [request.paths[0].resolve() for request in requested]
    common = Path(os.path.commonpath([path.parent for path in whole]))
    names: dict[str, Path] = {}
    first: dict[Path, str] = {}
    for request, path in zip(requested, whole, strict=True):
        name = names[request.name] = path.relative_to(common).with_name(f"{request.stem}{ending}")
        if first.setdefault(name, request.name) != request.name:
            raise ImageError(
                f"{request.name}: its result would replace that of {first[name]}: both are {name}.",
                cure="Ask for one of them, or for each with an --out of its own.",
            )
    return names


@dataclass(frozen=True)
class People:
    """A table of people with the networks' non-image inputs."""

    table: TextTable

    @classmethod
    def read(cls, path: Path) -> People:
        """Read a table with a column of images or of participants.

        Raises:
            CohortError: it is no table, or has neither.
        """
        table = tables.read(path)
        if table.find(IMAGE_COLUMNS) is None:
            table.need(SUBJECT_COLUMNS, "the participant")
        return cls(table)

    def about(self, request: SubjectImages) -> dict[str, Any]:
        """Return the table's values for the person on an image, by the names of covariates.

        The row is that of the image's path, as it was given or relative to the table; else that of the
        participant whose id is `sub-` in the file's name or a folder above it, or without any `sub-` the
        file's name, its part before the first `_`, or a folder above it. Ids are compared as an import does;
        where the path and the rows name sessions, the row of another session is never taken.

        Raises:
            CohortError: no row or several rows are the image's, or its name and folder are of two subjects.
        """
        rows, why = self._of_image(request), ""
        if not rows:
            rows, why = self._of_participant(request)
        if len(rows) != 1:
            what = "several rows are" if rows else "no row is"
            raise CohortError(
                f"{request.name}: {what} about it in {self.table.path}{': ' if why else ''}{why}.",
                cure="It needs one row per image: a column `image` with its path, or `participant_id`.",
                path=self.table.path,
            )
        data = person(rows[0], self.table, None)
        for finding in data["findings"]:
            # Left out, it would count as the mean of the training split.
            raise CohortError(f"{request.name}: {finding.message}", cure=finding.cure, path=self.table.path)
        return {**rows[0], **{name: data[name] for name in ("age", "sex", "site")}}

    def _of_image(self, request: SubjectImages) -> list[Row]:
        column = self.table.find(IMAGE_COLUMNS)
        if column is None:
            return []
        here = self.table.path.parent
        wanted = request.paths[0].resolve()
        cells = [(row, row[column]) for row in self.table.rows]
        return [
            row
            for row, cell in cells
            if cell is not None and (Path(cell).resolve() == wanted or (here / cell).resolve() == wanted)
        ]

    def _of_participant(self, request: SubjectImages) -> tuple[list[Row], str]:
        """Return the rows of the participant on an image and of its session, and why there are none."""
        column = self.table.find(SUBJECT_COLUMNS)
        if column is None:
            return [], ""
        path = request.paths[0].resolve()
        folders = [name for name in reversed(path.parent.parts) if name.startswith("sub-")]
        in_name = [part for part in request.stem.split("_") if part.startswith("sub-")]
        stated = [*in_name[:1], *folders[:1]]
        if len({id_key(name) for name in stated}) > 1:
            raise CohortError(
                f"{request.name}: is of {stated[0]} by its name, and of {stated[1]} by its folder.",
                cure="Look which of them is right, and rename the other.",
            )
        candidates = stated[:1] or [request.stem, request.stem.split("_")[0], *reversed(path.parent.parts)]
        keys = map(id_key, candidates)
        rows = next((self._by_subject[key] for key in keys if key in self._by_subject), [])
        if not rows:
            ids = first_three(row[column] or "" for row in self.table.rows)
            return [], f"its subject is {candidates[0]}, and the ids are {ids}"
        return self._of_session(rows, path)

    @functools.cached_property
    def _by_subject(self) -> dict[IdKey, list[Row]]:
        column = self.table.need(SUBJECT_COLUMNS, "the participant")
        by_id: dict[IdKey, list[Row]] = {}
        for row in self.table.rows:
            if (cell := row[column]) is not None:
                by_id.setdefault(id_key(cell), []).append(row)
        return by_id

    def _of_session(self, rows: list[Row], path: Path) -> tuple[list[Row], str]:
        column = self.table.find(SESSION_COLUMNS)
        parts = {part for name in path.parts for part in name.split("_")}
        sessions = {id_key(part) for part in parts if part.startswith("ses-")}
        if column is None or not sessions:
            return rows, ""
        of_session = [row for row in rows if row[column] is not None and id_key(str(row[column])) in sessions]
        there = first_three(row[column] or "n/a" for row in rows)
        return of_session, f"its subject has the sessions {there}" if not of_session else ""


def _request(argument: str, contrasts: Sequence[str]) -> SubjectImages:
    parts = argument.split(",") if len(contrasts) > 1 else [argument]
    if len(contrasts) > 1 and len(parts) != len(contrasts):
        raise ImageError(
            f"{argument}: {len(parts)} image(s) of {len(contrasts)} contrasts, {', '.join(contrasts)}.",
            cure="Join each subject's images by commas, in this order: T1.nii.gz,T2.nii.gz",
        )
    return SubjectImages(argument, tuple(Path(part) for part in parts))

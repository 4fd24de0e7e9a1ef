"""Which images are asked about, under which names, and what is known of the people on them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.data.images.reading import stem
from trainer.data.sources import tables
from trainer.data.sources.joins import SESSION_COLUMNS, SUBJECT_COLUMNS
from trainer.data.sources.listing import IMAGE_COLUMNS, person
from trainer.data.sources.tables import Row, Table
from trainer.errors import CohortError, ImageError


@dataclass(frozen=True)
class Request:
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


def requests(arguments: Sequence[str], contrasts: Sequence[str]) -> list[Request]:
    """Return the requests of a command line; missing files are reported before any image is processed.

    Args:
        arguments: a path each; with several contrasts, paths joined by commas.
        contrasts: the run's; () where it takes a single image.

    Raises:
        ImageError: a file is missing or a folder, an image is named twice, or not all contrasts are.
    """
    found = [_request(argument, contrasts) for argument in arguments]
    names: set[str] = set()
    for request in found:
        if request.name in names:
            raise ImageError(f"{request.name}: is named twice.", cure="Name each image once.")
        names.add(request.name)
        for path in request.paths:
            if not path.is_file():
                what = "is a folder" if path.is_dir() else "there is no such file"
                raise ImageError(
                    f"{path}: {what}.", cure="Give image files, such as scans/*.nii.gz", path=path
                )
    return found


def file_names(found: Sequence[Request], ending: str) -> dict[str, Path]:
    """Return a relative path for the result of each request, by its name: `<stem><ending>`.

    Where two images have the same name, all keep the folders that tell them apart.

    Raises:
        ImageError: two results would be the same file.
    """
    stems = [request.stem for request in found]
    if len(set(stems)) == len(stems):
        return {request.name: Path(f"{request.stem}{ending}") for request in found}
    whole = [request.paths[0].resolve() for request in found]
    common = Path(os.path.commonpath([path.parent for path in whole]))
    names: dict[str, Path] = {}
    first: dict[Path, str] = {}
    for request, path in zip(found, whole, strict=True):
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

    table: Table

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

    def about(self, request: Request) -> dict[str, Any]:
        """Return the table's values for the person on an image, by the names of covariates.

        The row is that of the image's path, as it was given or relative to the table; else that of the
        participant whose id is the file's name, its part before the first `_`, or a folder above it, with or
        without `sub-`; of several sessions, that whose id is in the path.

        Raises:
            CohortError: no row or several rows are the image's.
        """
        rows = self._of_image(request) or self._of_participant(request)
        if len(rows) != 1:
            what = "several rows are" if rows else "no row is"
            raise CohortError(
                f"{request.name}: {what} about it in {self.table.path}.",
                cure="It needs one row per image: a column `image` with its path, or `participant_id`.",
                path=self.table.path,
            )
        said = person(rows[0], self.table, None)
        return {**rows[0], **{name: value for name, value in said.items() if name in ("age", "sex", "site")}}

    def _of_image(self, request: Request) -> list[Row]:
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

    def _of_participant(self, request: Request) -> list[Row]:
        column = self.table.find(SUBJECT_COLUMNS)
        if column is None:
            return []
        path = request.paths[0].resolve()
        candidates = [request.stem, request.stem.split("_")[0], *reversed(path.parent.parts)]
        for candidate in candidates:
            rows = [row for row in self.table.rows if _bare(row[column]) == _bare(candidate)]
            if rows:
                return self._of_session(rows, path)
        return []

    def _of_session(self, rows: list[Row], path: Path) -> list[Row]:
        column = self.table.find(SESSION_COLUMNS)
        if len(rows) < 2 or column is None:
            return rows
        parts = {part for name in path.parts for part in name.split("_")}
        sessions = {part.removeprefix("ses-") for part in parts if part.startswith("ses-")}
        return [row for row in rows if (row[column] or "").removeprefix("ses-") in sessions]


def _bare(name: str | None) -> str:
    return (name or "").removeprefix("sub-")


def _request(argument: str, contrasts: Sequence[str]) -> Request:
    parts = argument.split(",") if len(contrasts) > 1 else [argument]
    if len(contrasts) > 1 and len(parts) != len(contrasts):
        raise ImageError(
            f"{argument}: {len(parts)} image(s) of {len(contrasts)} contrasts, {', '.join(contrasts)}.",
            cure="Join each subject's images by commas, in this order: T1.nii.gz,T2.nii.gz",
        )
    return Request(argument, tuple(Path(part) for part in parts))

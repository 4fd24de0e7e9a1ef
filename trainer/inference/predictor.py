"""From image files to rows of a table: prepared ahead in threads, asked in batches."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainer.data.images import geometry, reading
from trainer.data.images.findings import Finding
from trainer.data.images.preprocess import PreparedImage, Recipe, prepare
from trainer.errors import CingulumError, CohortError, ImageError, RunError
from trainer.inference import results, space
from trainer.inference.ensemble import Ensemble
from trainer.inference.requests import People, SubjectImages
from trainer.inference.sliding import Windows

Row = dict[str, Any]

# Of a cube, in voxels.
_LARGEST_EDGE = 512


@dataclass(frozen=True)
class Predictor:
    """Everything that determines the predictions.

    Attributes:
        ensemble: the runs.
        people: a table with the networks' non-image inputs, if they have any.
        windows: segmentation: how windows are laid. They cover the cube that the run was trained on, or the
            whole head where `whole_head` is set.
        whole_head: segmentation: all that lies in the image, and not the cube alone.
        batch: images, or windows of one image, per call of the network.
    """

    ensemble: Ensemble
    people: People | None = None
    windows: Windows | None = None
    whole_head: bool = False
    batch: int = 1

    @classmethod
    def build(
        cls, ensemble: Ensemble, *, people: People | None, window: int | None, overlap: float, batch: int
    ) -> Predictor:
        """Check that the options fit the runs.

        Raises:
            RunError: windows for a network with one output per volume, or covariates are missing.
            ConfigError: invalid windows.
        """
        first = ensemble.first
        if ensemble.takes_covariates and people is None:
            names = dict.fromkeys(n for m in ensemble.members if m.covariates for n in m.covariates.names)
            raise RunError(
                f"{first.path}: its network also needs {', '.join(names)}.",
                cure="Add --covariates participants.tsv with these columns; unknown cells may be empty.",
                path=first.path,
            )
        if first.task != "segmentation":
            if window is not None:
                size = "x".join(map(str, first.shape[:3]))
                raise RunError(
                    f"{first.path}: --window is for segmentation; this {first.task} network takes the whole "
                    f"head in a volume of {size} voxels, and no other size.",
                    cure="Leave --window out: images are resampled to that size.",
                    path=first.path,
                )
            return cls(ensemble, people, batch=batch)
        if window is not None:
            ensemble = ensemble.with_window(window)
        windows = Windows(ensemble.first.shape[:3], overlap, batch=batch)
        return cls(ensemble, people, windows, whole_head=window is not None, batch=batch)

    def columns(self) -> tuple[str, ...]:
        """Return the columns of the table."""
        first, several = self.ensemble.first, len(self.ensemble.members) > 1
        return ("image", *results.columns(first.task, first.classes, several), "error")

    def rows(
        self,
        requests: Sequence[SubjectImages],
        outputs: dict[str, Path] | None = None,
        on_findings: Callable[[str, Sequence[Finding]], None] | None = None,
    ) -> Iterator[list[Row]]:
        """Yield the rows of the requests, in their order, a batch at a time.

        Args:
            requests: what is asked about.
            outputs: segmentation: where each request's label map is written, by its name.
            on_findings: called with the name of each usable image and what quality control found on it.
        """
        size = 1 if self.windows is not None else self.batch
        with ThreadPoolExecutor(max_workers=2) as pool:
            waiting: deque[tuple[SubjectImages, Future[_Ready | CingulumError]]] = deque()
            coming = iter(requests)
            try:
                while True:
                    while len(waiting) < 2 * size and (request := next(coming, None)) is not None:
                        waiting.append((request, pool.submit(self._prepared, request)))
                    if not waiting:
                        return
                    some = [waiting.popleft() for _ in range(min(size, len(waiting)))]
                    prepared = [(request, future.result()) for request, future in some]
                    for request, ready in prepared:
                        if on_findings is not None and isinstance(ready, _Ready):
                            on_findings(request.name, ready.prepared.findings)
                    yield self._rows_of(prepared, outputs)
            finally:  # after an error or Ctrl-C nobody wants the others
                pool.shutdown(wait=False, cancel_futures=True)

    def _prepared(self, request: SubjectImages) -> _Ready | CingulumError:
        """What the networks need to know of an image, or what is wrong with it."""
        recipe = self.ensemble.first.recipe
        try:
            facts = self.people.about(request) if self.people and self.ensemble.takes_covariates else {}
            self.ensemble.check_facts(facts)
            if self.whole_head and self.windows is not None:
                edge = _longest_side(request.paths[0], recipe)
                edge = max(edge, recipe.size, *self.windows.size)
                if recipe.prepare:  # the cube grows evenly about the average brain: the same voxels
                    edge += (edge - recipe.size) % 2
                    edge -= 2 * (edge > _LARGEST_EDGE)
                recipe = dataclasses.replace(recipe, size=edge)
            several = len(request.paths) > 1
            prepared: PreparedImage = prepare(request.paths if several else request.paths[0], recipe)
        except (ImageError, CohortError) as error:
            return error
        return _Ready(prepared, facts)

    def _rows_of(
        self, some: list[tuple[SubjectImages, _Ready | CingulumError]], outputs: dict[str, Path] | None
    ) -> list[Row]:
        rows: dict[str, Row] = {}
        good: list[tuple[SubjectImages, _Ready]] = []
        for request, ready in some:
            if isinstance(ready, _Ready):
                good.append((request, ready))
            else:
                rows[request.name] = self._row(request, {}, ready)
        for request, said in self._said(good, outputs or {}):
            rows[request.name] = self._row(request, said, None)
        return [rows[request.name] for request, _ in some]

    def _said(
        self, good: list[tuple[SubjectImages, _Ready]], outputs: dict[str, Path]
    ) -> Iterator[tuple[SubjectImages, dict[str, Any]]]:
        first = self.ensemble.first
        if self.windows is not None:
            for request, ready in good:
                yield (
                    request,
                    space.segment(
                        self.ensemble,
                        ready.prepared,
                        ready.facts,
                        self.windows,
                        image=request.paths[0],
                        written=outputs[request.name],
                    ),
                )
        elif good:
            volumes = np.stack([ready.prepared.array for _, ready in good]).astype(np.float32)
            found = self.ensemble.ask(volumes, [ready.facts for _, ready in good])
            for number, (request, _) in enumerate(good):
                yield request, results.row(first.task, first.classes, found[:, number])

    def _row(self, request: SubjectImages, said: dict[str, Any], error: CingulumError | None) -> Row:
        row: Row = dict.fromkeys(self.columns())
        return {**row, "image": request.name, **said, "error": error.message if error else None}


@dataclass(frozen=True)
class _Ready:
    """An image as the networks see it, and what is known of the person."""

    prepared: PreparedImage
    facts: dict[str, Any]


def _longest_side(path: Path, recipe: Recipe) -> int:
    """Edge in voxels of a cube that holds any head in an image, wherever it lies; at most 512.

    Raises:
        ImageError: the file cannot be read.
    """
    shape, affine = reading.grid(path, recipe.xform)
    if geometry.fault(affine):
        return 0  # quality control will say what is wrong with it
    if geometry.is_sheared(affine):
        shape, affine = geometry.upright_grid(shape, affine)
    sides = np.linalg.norm(affine[:3, :3], axis=0) * np.array(shape)
    # About the average brain, whose middle is not the image's, and in heads of its size.
    room = 1.5 if recipe.prepare else 1.0
    return int(min(_LARGEST_EDGE, np.ceil(room * sides.max() / recipe.spacing)))

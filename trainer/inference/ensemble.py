"""Several runs that answer the same question: their answers are averaged, and their spread is reported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainer.errors import ConfigError, RunError
from trainer.inference.member import Member

# Whole voxels, so that nothing is interpolated: one step to each side along each axis.
_STEPS = ((1, 0, 0), (-1, 0, 0), (0, 1, 0), (0, -1, 0), (0, 0, 1), (0, 0, -1))


@dataclass(frozen=True)
class View:
    """One way to show a volume: shifted by whole voxels, then mirrored left to right."""

    mirrored: bool = False
    shift: tuple[int, int, int] = (0, 0, 0)

    def show(self, volumes: np.ndarray) -> np.ndarray:
        """Return volumes (B, D, H, W, C) as this view shows them; voxels shifted in at an edge repeat it."""
        moved = volumes
        for axis, step in enumerate(self.shift, start=1):
            if step:
                places = np.clip(np.arange(moved.shape[axis]) - step, 0, moved.shape[axis] - 1)
                moved = np.take(moved, places, axis=axis)
        return moved[:, ::-1] if self.mirrored else moved

    def undo(self, outputs: np.ndarray) -> tuple[np.ndarray, tuple[slice, ...]]:
        """Map outputs (B, D, H, W, K) for a shown volume back to the volume itself.

        Returns:
            The outputs that there are, and the index of the voxels that they are about: those that a shift
            moved out of the volume are missing.
        """
        if self.mirrored:
            outputs = outputs[:, ::-1]
        there, here = [slice(None)], [slice(None)]
        for step, length in zip(self.shift, outputs.shape[1:4], strict=True):
            there.append(slice(max(0, step), length + min(0, step)))
            here.append(slice(max(0, -step), length - max(0, step)))
        return outputs[tuple(there)], tuple(here)


def views(*, flip: bool, shifts: int) -> tuple[View, ...]:
    """Return the volume as it is, `shifts` shifted copies, and the mirror image of each where `flip` is set.

    Raises:
        ConfigError: more shifts than there are.
    """
    if not 0 <= shifts <= len(_STEPS):
        raise ConfigError(f"--shifts {shifts}: 0 to {len(_STEPS)} shifted copies can be averaged.")
    moved = [(0, 0, 0), *_STEPS[:shifts]]
    return tuple(View(mirrored, step) for mirrored in ((False, True) if flip else (False,)) for step in moved)


def averaged(parts: list[tuple[np.ndarray, tuple[slice, ...]]]) -> np.ndarray:
    """Return the mean, at each voxel, of the views that cover it. The first must cover all voxels."""
    total = np.array(parts[0][0], np.float32)
    if len(parts) == 1:
        return total
    count = np.ones((1, *total.shape[1:4], 1), np.float32)
    for outputs, index in parts[1:]:
        total[index] += outputs
        count[index] += 1
    return total / count


def run_folders(paths: Sequence[Path]) -> list[Path]:
    """Return the run folders; the folder of a cross-validation stands for its `fold-*` folders.

    Raises:
        RunError: the same run is named twice.
    """
    folders: list[Path] = []
    for path in paths:
        folds = sorted(fold.parent for fold in path.glob("fold-*/config.yaml"))
        folders += folds or [path]
    seen: set[Path] = set()
    for path in folders:
        if path.resolve() in seen:
            raise RunError(f"{path}: is named twice.", cure="Name each run of the ensemble once.", path=path)
        seen.add(path.resolve())
    return folders


@dataclass(frozen=True)
class Ensemble:
    """One or more runs of one task on images prepared in one way.

    Attributes:
        members: at least one.
        views: ways in which each volume is shown to each of them.
    """

    members: tuple[Member, ...]
    views: tuple[View, ...] = (View(),)

    @classmethod
    def open(
        cls, paths: Sequence[Path], views: Sequence[View] = (View(),), code: Sequence[Path] = ()
    ) -> Ensemble:
        """Load the runs; `code` as for `load_model`.

        Raises:
            RunError: one is not finished or damaged, or they do not answer the same question.
        """
        members = [Member.open(path, code) for path in run_folders(paths)]
        first = members[0]
        for other in members[1:]:
            for what in ("task", "classes", "target", "recipe", "shape"):
                expected, theirs = getattr(first, what), getattr(other, what)
                if expected != theirs:
                    raise RunError(
                        f"{other.path}: cannot join {first.path} in an ensemble: "
                        f"its {_NAMES[what]} is {_said(theirs)}, not {_said(expected)}.",
                        cure="Name runs that were trained on the same kind of volumes, for the same task.",
                        path=other.path,
                    )
        return cls(tuple(members), tuple(views))

    @property
    def first(self) -> Member:
        """What all members have in common can be asked of the first."""
        return self.members[0]

    @property
    def takes_covariates(self) -> bool:
        """Whether a member has non-image inputs."""
        return any(member.covariates is not None for member in self.members)

    def with_window(self, edge: int) -> Ensemble:
        """Return the same runs for volumes of another size; raises as `Member.with_window`."""
        return Ensemble(tuple(member.with_window(edge) for member in self.members), self.views)

    def check_facts(self, subject: Mapping[str, Any]) -> None:
        """Make sure that every member understands what is known of a subject.

        Raises:
            CohortError: an unknown word, or no number where one is needed.
        """
        for member in self.members:
            if member.covariates is not None:
                member.covariates.encode([subject])

    def ask(self, volumes: np.ndarray, subjects: Sequence[Mapping[str, Any]]) -> np.ndarray:
        """Return each member's outputs, averaged over the views.

        Args:
            volumes: float32 (B, D, H, W, C).
            subjects: what is known of each, by the names of covariates; for segmentation also one for all.

        Returns:
            (M, B, K), (M, B, 1) or (M, B, D, H, W, K) for M members: see `Member.ask`.

        Raises:
            CohortError: a covariate cannot be understood.
        """
        answers = []
        for member in self.members:
            covariates = member.covariates.encode(subjects) if member.covariates else None
            if covariates is not None and len(covariates) < len(volumes):  # windows of one subject
                covariates = np.repeat(covariates, len(volumes), axis=0)
            shown = [member.ask(np.ascontiguousarray(view.show(volumes)), covariates) for view in self.views]
            if member.task == "segmentation":
                answers.append(averaged([v.undo(o) for v, o in zip(self.views, shown, strict=True)]))
            else:
                answers.append(np.mean(shown, axis=0))
        return np.stack(answers)


_NAMES = {
    "task": "task",
    "classes": "list of classes",
    "target": "target",
    "recipe": "preparation of images",
    "shape": "volume",
}


def _said(value: Any) -> str:
    if isinstance(value, tuple):
        return " x ".join(map(str, value)) if isinstance(value[0], int) else ", ".join(map(str, value))
    return str(value)

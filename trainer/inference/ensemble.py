"""Several runs that answer the same question: their answers are averaged, and how far they differ is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainer.errors import RunError
from trainer.inference.member import Member
from trainer.inference.views import View, averaged


def run_folders(paths: Sequence[Path]) -> list[Path]:
    """The run folders meant: a folder of a cross-validation stands for its `fold-*` folders.

    Raises:
        RunError: the same run is named twice.
    """
    found: list[Path] = []
    for path in paths:
        folds = sorted(fold.parent for fold in path.glob("fold-*/config.yaml"))
        found += folds or [path]
    seen: set[Path] = set()
    for path in found:
        if path.resolve() in seen:
            raise RunError(f"{path}: is named twice.", cure="Name each run of the ensemble once.", path=path)
        seen.add(path.resolve())
    return found


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
                mine, theirs = getattr(first, what), getattr(other, what)
                if mine != theirs:
                    raise RunError(
                        f"{other.path}: cannot join {first.path} in an ensemble: "
                        f"its {_NAMES[what]} is {_said(theirs)}, not {_said(mine)}.",
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
        """Whether a member is told something besides the volume."""
        return any(member.covariates is not None for member in self.members)

    def with_window(self, edge: int) -> Ensemble:
        """The same runs for volumes of another size; raises what `Member.with_window` does."""
        return Ensemble(tuple(member.with_window(edge) for member in self.members), self.views)

    def check_told(self, subject: Mapping[str, Any]) -> None:
        """Make sure that every member understands what is known of a subject.

        Raises:
            CohortError: an unknown word, or no number where one is needed.
        """
        for member in self.members:
            if member.covariates is not None:
                member.covariates.encode([subject])

    def ask(self, volumes: np.ndarray, subjects: Sequence[Mapping[str, Any]]) -> np.ndarray:
        """What each member says, averaged over the views.

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
            told = member.covariates.encode(subjects) if member.covariates else None
            if told is not None and len(told) < len(volumes):  # windows of one subject
                told = np.repeat(told, len(volumes), axis=0)
            shown = [member.ask(np.ascontiguousarray(view.show(volumes)), told) for view in self.views]
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

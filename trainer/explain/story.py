"""The story of `cingulum explain`: a map per subject, means per class, pictures, figures, a page.

Everything goes to RUN/explanations/<method>/, which appears under its name when it is whole and then takes
the place of what an earlier call left.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import numpy as np
from scipy import special

from trainer import atomic
from trainer.attempts import attempt
from trainer.data.phantom import files
from trainer.errors import InputError, typed
from trainer.explain import BaselineName, MethodName, page, pictures, regions, sanity, score, subjects
from trainer.explain.group import MNI_OVERLAP, ClassMaps, head, share_outside
from trainer.explain.methods import Method
from trainer.explain.subjects import ExplainedRun, ExplainedScan
from trainer.run_folder import record
from trainer.telling import tell

_RANDOMISED = 5  # networks with shuffled weights that a map's share is compared with
_UNITS = {MethodName.gradcam: "score", MethodName.integrated_gradients: "score", MethodName.occlusion: "fall"}


@dataclass(frozen=True)
class ExplainRequest:
    """What is asked for.

    Attributes:
        run: a finished run.
        images: raw images; none: scans of `split`.
        split: train, validation or test.
        subjects: how many of the split at most, each with all its scans.
        method: how maps are made.
        target: the class to explain; None: each subject's predicted class, or the number of a regression.
        layer: of Grad-CAM.
        baseline: of integrated gradients and occlusion.
        regions: the phantom cohort that knows what was changed.
        people: table of covariates for raw images.
        code: files that the user allowed to be run: see `saved_model.load_model`.
    """

    run: Path
    images: tuple[str, ...] = ()
    split: str = "test"
    subjects: int = 20
    method: MethodName = MethodName.gradcam
    target: str | None = None
    layer: str | None = None
    baseline: BaselineName = BaselineName.air
    regions: Path | None = None
    people: Path | None = None
    code: tuple[Path, ...] = ()

    @property
    def folder(self) -> Path:
        """Where the explanation goes."""
        return self.run / "explanations" / self.method.value


def explain(request: ExplainRequest, on_progress: Callable[[int, int], None]) -> dict[str, Any]:
    """Explain, write, and return what summary.json says.

    Raises:
        InputError: something asked for is not there or does not fit; nothing was changed.
    """
    _check(request)
    wants_mean = request.baseline is BaselineName.mean and request.method is not MethodName.gradcam
    if request.images:
        chosen = subjects.raw(request.run, request.images, request.people, request.code)
    else:
        chosen = subjects.held_out(
            request.run, request.split, request.subjects, mean=wants_mean, code=request.code
        )
    target = _target(request, chosen)
    method = Method(request.method, request.layer, chosen.mean)
    settings = method.settings(chosen.model)
    work = request.folder.with_name(f".{request.folder.name}.partial")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        summary = _Explaining(request, chosen, method, target, work).summary(settings, on_progress)
        record.write_json(work / "summary.json", summary)

        def write_page() -> None:
            html = page.render(summary, phantom=request.regions is not None or _is_phantom(request))
            atomic.write_text(work / "index.html", html)

        _attempt(request, "index.html", write_page)
        shutil.rmtree(request.folder, ignore_errors=True)
        work.replace(request.folder)
    except BaseException:  # Ctrl-C, too
        shutil.rmtree(work, ignore_errors=True)
        raise
    return summary


@dataclass
class _Explaining:
    """One explanation on its way into the folder `work`."""

    request: ExplainRequest
    chosen: ExplainedRun
    method: Method
    target: int | None
    work: Path
    people: dict[str, set[str]] = field(default_factory=dict)

    def summary(self, settings: dict[str, Any], on_progress: Callable[[int, int], None]) -> dict[str, Any]:
        request, chosen = self.request, self.chosen
        shape: Any = tuple(int(n) for n in chosen.model.inputs[0].shape[1:4])
        group = ClassMaps(shape, chosen.voxel_size)
        random = [
            sanity.randomised(chosen.model, seed) for seed in range(_RANDOMISED * bool(request.regions))
        ]
        summaries: list[dict[str, Any]] = []
        shares: list[regions.RegionShares] = []
        on_progress(0, chosen.count)
        for subject in chosen.each:
            said, one = self._subject(subject, group, random)
            summaries.append(said)
            shares += one
            on_progress(len(summaries), chosen.count)
        overlap = group.overlap()
        mni = chosen.registered or overlap >= MNI_OVERLAP
        summary: dict[str, Any] = {
            "run": str(request.run),
            "of": chosen.of,
            "task": chosen.task,
            "classes": list(chosen.classes),
            "method": request.method.value,
            "class": request.target,
            "explained": self._explained(),
            "settings": settings,
            "weights_sha256": record.read_json(request.run / "result.json").get("best_weights_sha256"),
            "space": {"mni_like": mni, "overlap": round(overlap, 4)},
            "outside_head": _mean([one["outside_head"] for one in summaries]),
            "groups": self._groups(group, mni=mni),
            "subjects": summaries,
        }
        if request.regions is not None:
            figures = regions.pooled(shares)
            summary["regions"] = {
                "cohort": str(request.regions),
                "changed_mm": regions.CHANGED_MM,
                "randomised_networks": _RANDOMISED,
                "pooled": figures,
            }
        return summary

    def _subject(
        self, subject: ExplainedScan, group: ClassMaps, random: list[keras.Model]
    ) -> tuple[dict[str, Any], list[regions.RegionShares]]:
        answer = self._answer(subject)
        target = self.target if self.target is not None or not self.chosen.classes else answer["number"]
        values, figures = self.method.maps(self.chosen.model, subject.volume, target, subject.covariates)
        anatomy = subject.volume[..., 0]
        label = subject.label if subject.label and self.chosen.classes else answer["predicted"]
        label = label if self.chosen.classes else "all"
        inside = head(anatomy)
        group.add(label, values, anatomy, subject.affine, inside)
        self.people.setdefault(label, set()).add(subject.person)
        entry: dict[str, Any] = {
            "subject": subject.name,
            "person": subject.person,
            "source": subject.source,
            "label": subject.label,
            "predicted": answer["predicted"],
            "probability": answer["probability"],
            "class": self.chosen.classes[target] if target is not None and self.chosen.classes else None,
            "outside_head": share_outside(values, inside),
            **figures,
            **self._write(
                subject.name, values, anatomy, subject.affine, page.said({**answer, "label": subject.label})
            ),
        }
        if self.request.regions is None:
            return entry, []
        regions.check_image(self.request.regions, subject.source, subject.source_sha256)
        truth = regions.truth(self.request.regions, subject.source, anatomy.shape, subject.scan_affine)
        others = [
            truth.share(self.method.maps(model, subject.volume, target, subject.covariates)[0])
            for model in random
        ]
        mean = _mean(others)
        shares = regions.RegionShares(subject.person, truth.share(values), mean, truth.chance)
        return {**entry, "share": shares.trained, "share_randomised": mean, "chance": shares.chance}, [shares]

    def _answer(self, subject: ExplainedScan) -> dict[str, Any]:
        """What the network says: number of the class, its name and probability, or a number as text."""
        given = score.inputs(self.chosen.model, subject.volume[None], subject.covariates)
        outputs = np.asarray(self.chosen.model(given, training=False), np.float64)[0]
        if not self.chosen.classes:
            return {"number": None, "predicted": f"{outputs[0]:.4g}", "probability": None}
        number = int(outputs.argmax())
        probability = round(float(special.softmax(outputs)[number]), 6)
        return {"number": number, "predicted": self.chosen.classes[number], "probability": probability}

    def _write(
        self, name: str, values: np.ndarray, anatomy: np.ndarray, affine: np.ndarray, caption: str
    ) -> dict[str, str]:
        """Write a subject's map and pictures; return their names."""
        unit = _UNITS[self.request.method]
        title = f"{name} · {caption}"
        names = {"nifti": f"{name}.nii.gz", "picture": f"{name}.png", "mosaic": f"{name}_mosaic.png"}
        self._nifti(names["nifti"], values, affine)
        size = self.chosen.voxel_size
        for key, draw in (("picture", pictures.three_planes), ("mosaic", pictures.mosaic)):
            self._picture(names[key], functools.partial(draw, anatomy, values, size, title, unit))
        return names

    def _picture(self, name: str, draw: Callable[[], bytes]) -> bool:
        """Write a picture; returns whether it could be drawn. The map that it shows is written already."""
        return _attempt(self.request, name, lambda: atomic.write_bytes(self.work / name, draw()))

    def _nifti(self, name: str, values: np.ndarray, affine: np.ndarray) -> None:
        content = files.nifti(
            values.astype(np.float32), affine, description=f"cingulum {self.method.name.value}"
        )
        atomic.write_bytes(self.work / name, content)

    def _groups(self, group: ClassMaps, *, mni: bool) -> list[dict[str, Any]]:
        """Write the mean map of each class, with its pictures."""
        made = []
        stems = subjects.file_names_of_means(self.chosen.classes)
        kind = page.method_name(self.request.method.value)
        for label, (count, values, volume) in sorted(group.means(mni=mni).items()):
            stem = stems[label]
            self._nifti(f"{stem}.nii.gz", values, group.affine)
            people = len(self.people[label])
            of = page.scans_of(count, people)
            title = f"{kind}, mean of {of}" + (f", {label}" if self.chosen.classes else "")
            draw: dict[str, Callable[[], bytes]] = {
                f"{stem}_mosaic.png": functools.partial(
                    pictures.mosaic,
                    volume,
                    values,
                    self.chosen.voxel_size,
                    title,
                    _UNITS[self.request.method],
                )
            }
            if mni:
                glass = functools.partial(pictures.glass_brain, values, group.affine, title)
                draw = {f"{stem}_glass.png": glass, **draw}
            drawn = [name for name, picture in draw.items() if self._picture(name, picture)]
            made.append(
                {
                    "name": label,
                    "n": count,
                    "subjects": people,
                    "nifti": f"{stem}.nii.gz",
                    "pictures": drawn,
                }
            )
        return made

    def _explained(self) -> str:
        if not self.chosen.classes:
            return "the predicted number"
        of = self.request.target or "each subject's predicted class"
        return f"log-odds of {of}"


def _mean(shares: Sequence[float | None]) -> float | None:
    """Return the mean of those that are known; None without one."""
    known = [share for share in shares if share is not None]
    return float(np.mean(known)) if known else None


def _attempt(request: ExplainRequest, name: str, make: Callable[[], object]) -> bool:
    """Make what shows the maps, which are on disk."""
    remedy = f"cingulum explain {typed(request.run)} --method {request.method.value}, as before"
    return attempt(f"{request.folder / name}", make, remedy=remedy, note=tell)


def _check(request: ExplainRequest) -> None:
    if request.subjects < 1:
        raise InputError(f"--subjects {request.subjects}: must be at least 1", cure="Give 1 or more.")
    if request.layer is not None and request.method is not MethodName.gradcam:
        raise InputError(
            f"--layer has no meaning for {request.method.value}",
            cure="Leave it out, or choose --method gradcam.",
        )
    if request.images and request.baseline is BaselineName.mean:
        raise InputError(
            "--baseline mean: raw images have no mean training volume",
            cure="Leave --baseline out: air is used.",
        )
    if request.regions is not None:
        regions.check_cohort(request.regions)
    if request.folder.exists() and not (request.folder / "summary.json").is_file():
        raise InputError(
            f"{request.folder}: exists already and is not an explanation",
            cure="Move it away, then try again.",
            path=request.folder,
        )


def _target(request: ExplainRequest, chosen: ExplainedRun) -> int | None:
    """Return the number of the requested class; None without a request."""
    if request.target is None:
        return None
    if request.target not in chosen.classes:
        known = ", ".join(chosen.classes) if chosen.classes else "(none: it predicts a number)"
        raise InputError(
            f"{request.run}: has no class {request.target!r}; its classes are {known}",
            cure="Choose one of them, or leave --class out.",
            path=request.run,
        )
    return chosen.classes.index(request.target)


def _is_phantom(request: ExplainRequest) -> bool:
    """Whether the run was trained on phantoms, as its shard set's source says."""
    try:
        from trainer.data.shards.shards import ShardSet

        config = record.load_config(record.RunFolder(request.run))
        return "phantom" in ShardSet.open(config.data.shards).source.lower()
    except InputError:
        return False

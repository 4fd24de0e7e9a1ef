"""What `cingulum explain` left in a run folder: explanations/<method>/ with summary.json and pictures."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.report.story import ReportMaterial, read_json

MOST_PICTURES = 6
# A page that carries more than this is slow to open on a phone.
LARGEST_PICTURE = 600_000
# Names of methods in summary.json, and on the page.
_WORDS = {"gradcam": "Grad-CAM", "integrated-gradients": "Integrated gradients", "occlusion": "Occlusion"}
# The keys of summary.json that are shown, in words.
_FACTS = {
    "explained": "Explained",
    "settings.layer": "Layer",
    "settings.grid": "Its grid",
    "settings.baseline": "Compared with",
    "settings.steps": "Steps",
    "space.mni_like": "Brains lie where the MNI152 brain does",
    "space.overlap": "Overlap with the MNI152 brain (Dice)",
    "outside_head": "Share of the maps outside the head",
    "regions.cohort": "Cohort with the truth",
    "regions.changed_mm": "Counted as changed, from mm",
    "regions.randomised_networks": "Networks with randomised weights",
    "regions.pooled.n": "Scans with the truth",
    "regions.pooled.subjects": "Subjects with the truth",
    "regions.pooled.empty": "Scans with an empty map",
    "regions.pooled.trained.mean": "Share of the map on changed voxels",
    "regions.pooled.randomised.mean": "The same of randomised networks",
    "regions.pooled.chance.mean": "The same by chance",
    "regions.pooled.above_chance.mean": "Above chance",
    "regions.pooled.above_randomised.mean": "Above randomised networks",
}
# What the page says in another place, or need not say.
_ELSEWHERE = ("run", "of", "task", "classes", "method", "class", "weights_sha256")
_SIGNATURE = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class Attribution:
    """One method of attribution.

    Attributes:
        name: of the method, as its summary or its folder says.
        facts: figures of the summary, in words.
        pictures: (caption, data address) of each picture.
        left_out: pictures in the folder that are not shown here.
    """

    name: str
    facts: tuple[tuple[str, str], ...]
    pictures: tuple[tuple[str, str], ...]
    left_out: int


def read(story: ReportMaterial) -> list[Attribution]:
    """Return the methods in alphabetical order; what cannot be read is a note."""
    folder = story.folder / "explanations"
    attributions = []
    for method in sorted(path for path in folder.glob("[!.]*") if path.is_dir()):
        summary = read_json(story, f"explanations/{method.name}/summary.json")
        pictures, left_out = _pictures(method, summary)
        if not summary and not pictures:
            continue
        name = str(summary.get("method") or method.name)
        explained, weights = summary.get("weights_sha256"), story.result.get("best_weights_sha256")
        if explained and weights and explained != weights:
            story.notes.append(f"explanations/{method.name} explains other weights than this run's.")
        facts = tuple(in_words({key: value for key, value in summary.items() if key not in _ELSEWHERE}))
        attributions.append(Attribution(_WORDS.get(name, name), facts, tuple(pictures), left_out))
    return attributions


def in_words(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield every number and word of a summary with its name for people; lists and long
    words are left out.
    """
    for key, value in tree.items():
        path = f"{prefix}{key}"
        # What a later version adds has no words here yet.
        name = _FACTS.get(path) or path.replace("_", " ").replace(".", ", ").capitalize()
        if isinstance(value, dict):
            yield from in_words(value, f"{path}.")
        elif isinstance(value, bool):
            yield name, "yes" if value else "no"
        elif isinstance(value, float):
            yield name, f"{value:.3f}"
        elif isinstance(value, (int, str)) and len(str(value)) < 80:
            yield name, str(value)


def _pictures(folder: Path, summary: dict[str, Any]) -> tuple[list[tuple[str, str]], int]:
    """(caption, data address) of the means of each class, then of subjects; and how many are not shown."""
    every = {path.name: path for path in sorted(folder.glob("*.png"))}
    captions = _captions(summary) or {name: name.removesuffix(".png").replace("_", " ") for name in every}
    shown: list[tuple[str, str]] = []
    for name, caption in captions.items():
        path = every.get(name)
        if path is None or len(shown) == MOST_PICTURES:
            continue
        try:
            content = path.read_bytes() if path.stat().st_size <= LARGEST_PICTURE else b""
        except OSError:
            content = b""
        if content.startswith(_SIGNATURE):
            shown.append((caption, "data:image/png;base64," + base64.b64encode(content).decode()))
    return shown, len(every) - len(shown)


def _captions(summary: dict[str, Any]) -> dict[str, str]:
    """File name -> caption, of the pictures that the summary names."""
    captions: dict[str, str] = {}
    for group in _objects(summary.get("groups")):
        for name in group.get("pictures") or ():
            captions[str(name)] = f"mean of {group.get('n')} scans, {group.get('name')}"
    for subject in _objects(summary.get("subjects")):
        if subject.get("picture"):
            true = f"is {subject['label']}, " if subject.get("label") else ""
            said = f"{subject.get('subject')}: {true}called {subject.get('predicted')}"
            captions[str(subject["picture"])] = said
    return captions


def _objects(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []

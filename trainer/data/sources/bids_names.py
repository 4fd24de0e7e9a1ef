"""BIDS file names: `key-value` entities joined by underscores, then a suffix such as `T1w`."""

from __future__ import annotations

from pathlib import Path

from trainer.data.images.reading import stem

# What derivatives call the space of the subject's own anatomical image (BIDS, "Spatial references").
_OWN_SPACE = frozenset({"T1w", "T2w", "anat", "orig", "individual", "scanner"})


def entities(path: Path) -> dict[str, str]:
    """Return the entities of a file name, in its order; the suffix is left out."""
    parts = (part.partition("-") for part in stem(path).split("_")[:-1])
    return {key: value for key, dash, value in parts if dash}


def bids_suffix(path: Path) -> str:
    """Return what comes after the last underscore: `T1w`, `dseg`, ..."""
    return stem(path).rsplit("_", 1)[-1]


def contradict(one: dict[str, str], other: dict[str, str]) -> bool:
    """Return whether two names cannot be of the same scan: an entity of both differs, or the space does.

    `desc`, `label`, `seg`, `atlas` and `res` say what was made of a scan, not which scan it was.
    """
    shared = (set(one) & set(other)) - {"desc", "label", "seg", "atlas", "res", "space"}
    return any(one[key] != other[key] for key in shared) or _space(one) != _space(other)


def best_match(image: Path, files: list[Path]) -> list[Path]:
    """Return those files that fit an image best, of those that are or belong to other scans of a folder.

    Most entities shared with the image's name, then fewest of their own. One file is a match, several are a
    tie, none means that all contradict the image's name.
    """
    own = entities(image)
    fitting = [file for file in files if not contradict(own, entities(file))]

    def rank(file: Path) -> tuple[int, int]:
        its = entities(file)
        same = sum(own.get(key) == value for key, value in its.items())
        return same, -len(its)

    best = max(map(rank, fitting), default=None)
    return [file for file in fitting if rank(file) == best]


def _space(names: dict[str, str]) -> str | None:
    space = names.get("space")
    return None if space in _OWN_SPACE else space

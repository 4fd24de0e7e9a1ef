"""BIDS file names: `key-value` entities joined by underscores, then a suffix such as `T1w`; `--run`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from trainer.data.images.findings import Finding, bad, warning
from trainer.data.images.reading import stem, suffix
from trainer.data.sources.file_names import first_three
from trainer.data.sources.joins import id_key
from trainer.errors import CohortError

# What derivatives call the space of the subject's own anatomical image (BIDS, "Spatial references").
_OWN_SPACE = frozenset({"T1w", "T2w", "anat", "orig", "individual", "scanner"})
_BIDS_NAME = re.compile(r"sub-[A-Za-z0-9+]+(_[A-Za-z0-9]+-[A-Za-z0-9+]+)*_[A-Za-z0-9]+")
_DATATYPES = frozenset({
    "anat", "func", "dwi", "fmap", "perf", "pet", "meg", "eeg", "ieeg", "beh", "micr", "nirs", "motion",
    "mrs",
})  # fmt: skip
# BIDS 1.10, "Magnetic Resonance Imaging", and its derivatives.
_ANATOMICAL = frozenset({
    "T1w", "T2w", "PDw", "T2starw", "T2star", "FLAIR", "FLASH", "PD", "PDT2", "inplaneT1", "inplaneT2",
    "angio", "VFA", "IRT1", "MP2RAGE", "MESE", "MEGRE", "MTR", "MTS", "MPM", "UNIT1", "T1rho", "MTsat",
    "T1map", "T2map", "T2starmap", "R1map", "R2map", "R2starmap", "PDmap", "MTRmap", "MWFmap", "MTVmap",
    "Chimap", "S0map", "M0map", "TB1map", "RB1map", "defacemask", "mask", "dseg", "probseg",
})  # fmt: skip


def entities(path: Path) -> dict[str, str]:
    """Return the entities of a file name, in its order; the suffix is left out."""
    parts = (part.partition("-") for part in stem(path).split("_")[:-1])
    return {key: value for key, dash, value in parts if dash}


def bids_suffix(path: Path) -> str:
    """Return what comes after the last underscore: `T1w`, `dseg`, ..."""
    return stem(path).rsplit("_", 1)[-1]


def is_image_of(path: Path, contrast: str) -> bool:
    """Return whether a file name is that of a contrast's image, and says of which subject."""
    named = stem(path).endswith(f"_{contrast}") and "sub" in entities(path)
    return bool(suffix(path)) and named and not path.name.startswith(".")


def name_findings(path: Path, subject: str, session: str | None) -> tuple[Finding, ...]:
    """Return what a file name says against its folders, or against BIDS.

    Args:
        path: of an image.
        subject: that of the folder.
        session: that of the folder; None where there is none.
    """
    names = entities(path)
    move = "Move the file to the folders of its name, or rename it; look which of them is right."
    if id_key(names["sub"]) != id_key(subject):
        what = f"is of subject {subject} by its folder, and of subject {names['sub']} by its name."
        return (bad("other-subject", what, move),)
    if "ses" in names and (session is None or id_key(names["ses"]) != id_key(session)):
        what = f"is of {f'session {session}' if session else 'no session'} by its folder, and of session "
        return (bad("other-session", f"{what}{names['ses']} by its name.", move),)
    if not _BIDS_NAME.fullmatch(stem(path)) or (session is not None and "ses" not in names):
        what = "has a name that is not quite BIDS, and was taken by its folder and its contrast."
        return (
            warning("bids-name", what, "Names are sub-ID[_ses-ID][_key-value]_T1w, of letters and digits."),
        )
    return ()


def not_taken(root: Path, taken: Iterable[Path], contrasts: Sequence[str]) -> list[Finding]:
    """Return a warning for image files below `sub*` whose name or folder is not BIDS, so that none is read.

    Other contrasts and maps under BIDS names, and folders of other kinds of data, are as they should be.
    """
    read_paths = set(taken)
    names = []
    folders = [path for path in root.iterdir() if path.is_dir() and path.name.lower().startswith("sub")]
    for path in sorted(file for folder in folders for file in folder.rglob("*")):
        place = path.relative_to(root)
        if path in read_paths or not suffix(path) or path.is_dir() or _is_hidden(place):
            continue
        above = place.parts[:-1]
        proper = above[-1] in _DATATYPES and len(above) == 2 + above[1].startswith("ses-")
        anatomical = _BIDS_NAME.fullmatch(stem(path)) and bids_suffix(path) in _ANATOMICAL
        if not (proper and above[0].startswith("sub-") and (above[-1] != "anat" or anatomical)):
            names.append(place.as_posix())
    if not names:
        return []
    what = f"{len(names)} image files" if len(names) > 1 else "1 image file"
    message = f"{what} below sub*, not read since names or folders are not BIDS: {first_three(names)}."
    cure = f"Name them sub-ID/[ses-ID/]anat/sub-ID[_ses-ID]_{contrasts[0]}.nii.gz, or ignore this."
    return [warning("not-bids", message, cure)]


def _is_hidden(place: Path) -> bool:
    return any(part.startswith(".") for part in place.parts)


def contradict(first: dict[str, str], other: dict[str, str]) -> bool:
    """Return whether two names cannot be of the same scan: their space or a shared entity differs as an id.

    `desc`, `label`, `seg`, `atlas` and `res` say what was made of a scan, not which scan it was.
    """
    shared = (set(first) & set(other)) - {"desc", "label", "seg", "atlas", "res", "space"}
    return any(id_key(first[key]) != id_key(other[key]) for key in shared) or _space(first) != _space(other)


def best_match(image: Path, files: list[Path]) -> list[Path]:
    """Return the files of a folder that fit an image best.

    Most entities shared with the image's name, then fewest of their own. One file is a match, several are a
    tie, none means that all contradict the image's name.
    """
    own = entities(image)
    fitting = [file for file in files if not contradict(own, entities(file))]

    def rank(file: Path) -> tuple[int, int]:
        its = entities(file)
        same = sum(key in own and id_key(own[key]) == id_key(value) for key, value in its.items())
        return same, -len(its)

    best = max(map(rank, fitting), default=None)
    return [file for file in fitting if rank(file) == best]


def _space(names: dict[str, str]) -> str | None:
    space = names.get("space")
    return None if space in _OWN_SPACE else space


def run_of(path: Path) -> int | None:
    """Return the run that a file name states, leading zeros ignored; None where it states none."""
    run = entities(path).get("run", "")
    return int(run) if run.isascii() and run.isdigit() else None


def check_run(paths: Iterable[Path], run: int, root: Path) -> None:
    """Check that an image has the run.

    Raises:
        CohortError: none has it; the cure lists the runs that exist.
    """
    runs = sorted({n for n in map(run_of, paths) if n is not None})
    if run not in runs:
        there = ", ".join(map(str, runs)) or "none"
        raise CohortError(
            f"{root}: no image has the run {run}.",
            cure=f"Its runs are: {there}. Choose one, or leave out --run.",
        )


def of_run(paths: Sequence[Path], run: int | None) -> list[tuple[Path, tuple[Finding, ...]]]:
    """Return the images to take, and the findings on each.

    In a folder that has the run asked for, its images are taken; else those without a run in their names. In
    a folder that has other runs only, the first of these stands for the scan, as a bad image.
    """
    if run is None:
        return [(path, ()) for path in paths]
    taken: list[tuple[Path, tuple[Finding, ...]]] = []
    for folder in dict.fromkeys(path.parent for path in paths):
        beside = [path for path in paths if path.parent == folder]
        fitting = [p for p in beside if run_of(p) == run] or [p for p in beside if run_of(p) is None]
        if fitting:
            taken += [(path, ()) for path in fitting]
        else:
            there = sorted({n for n in map(run_of, beside) if n is not None})
            taken.append((beside[0], (_missing(run, there),)))
    return taken


def _missing(run: int, there: list[int]) -> Finding:
    names = ", ".join(map(str, there))
    cure = "Give the intended run this number, or leave the subject out with --on-error skip."
    return bad("missing-run", f"has no run {run}, but {names}.", cure)

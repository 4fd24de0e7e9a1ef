"""Which series of a study is its T1-weighted image, and why the others are not. Pure.

The rules are shown in docs/how-to/dicom.md. They go by what descriptions say and, where these say nothing, by
how was measured: descriptions differ from one hospital to the next, a localizer is one everywhere.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from dataclasses import dataclass

from trainer.data.dicom.series import Series

# A word may touch underscores and digits, and planes of slices: `SagT1`, `sT2W`.
_BEFORE = r"(?<![a-z])(?:sag|ax|tra|cor|3d|[sw])?"
_T1 = re.compile(
    _BEFORE + r"(t1(?!\d)|uni(?![a-z])|tfl(?!.?b1))|mp-?2?rage|mpr(?![a-z])|spgr|bravo|3d.?tfe", re.IGNORECASE
)
_OTHER = re.compile(
    _BEFORE + r"(t2(?!\d)|b[01](?!\d)|swi|trace|perf|dess|(adc|epi|p?c?asl|mra|pdw?|tof)(?![a-z0-9]))|"
    r"flair|bold|fmri|ep2d|stir|swan|qsm|dwi|dti|diff|tof3d|angio|s3di|field.?map|phase|spectro|proton|megre|"
    r"ciss|fiesta|trufi",
    re.IGNORECASE,
)
_LOCALIZER = re.compile(r"locali[sz]|scout|survey|3.?plane", re.IGNORECASE)
_DERIVED = re.compile(
    r"(?<![a-z])(mip(?![a-z])|reformat|screen|subtract|inv.?[12](?!\d)|t1.?map|t1_images)", re.IGNORECASE
)
_NO_AGENT = re.compile(
    r"(?<![a-z])(no|non|pre|without|w.?o)[-_ ]*(contrast|gad|gd|c(?![a-z]))\w*", re.IGNORECASE
)
_AGENT = re.compile(
    r"(?<![a-z])(gad|gd(?![a-z])|post(?![a-z])|post.?[cg]|km(?![a-z])|ce(?![a-z])|c\+)|contrast|\+c(?![a-z])",
    re.IGNORECASE,
)
_OTHER_PARTS = re.compile(
    r"SPINE|^NECK$|CHEST|HEART|CARDIAC|BREAST|ABDOMEN|LIVER|PELVIS|PROSTATE|HIP$|SHOULDER|ELBOW|WRIST|HAND|"
    r"KNEE|ANKLE|FOOT|EXTREMITY"
)
_DERIVED_KINDS = frozenset((
    "CSA MPR", "CSAPARALLEL", "MIP", "MPR", "PROJECTION IMAGE", "REFORMATTED", "SCREEN SAVE",
))  # fmt: skip
_NO_MAGNITUDES = frozenset((
    "P", "PHASE", "PHASE MAP", "R", "REAL", "I", "IMAGINARY", "F", "FAT", "OP", "OPP_PHASE", "OUT_PHASE",
))  # fmt: skip

# Fewer slices are no whole head, nor are those that reach less far; they may be this thick, in mm.
_FEWEST_SLICES, _LEAST_MM, _THICKEST_MM = 60, 100.0, 3.0
# T1 by how was measured: a short echo, with an inversion before a train of readings or a short repetition.
_LONGEST_ECHO_MS, _INVERSION_MS = 8.0, (400.0, 1500.0)
_LONGEST_REPETITION_MS, _SMALLEST_FLIP = 50.0, 8.0


@dataclass(frozen=True)
class SeriesVerdict:
    """What becomes of a series.

    Attributes:
        series: that is judged.
        is_taken: whether it is the T1-weighted image of its study.
        reason: why it is not; of the one that is, what should be looked at, or nothing.
    """

    series: Series
    is_taken: bool
    reason: str


def choose(study: Sequence[Series], patterns: Sequence[str] = ()) -> list[SeriesVerdict]:
    """Judge the series of a study; at most one of them is taken.

    Args:
        study: its series.
        patterns: of descriptions as in a shell, case ignored, the most wanted first; in place of the rules
            for what is T1-weighted.
    """
    reasons = [_unusable(one) or (_unmatched(one, patterns) if patterns else _no_t1(one)) for one in study]
    candidates = [one for one, reason in zip(study, reasons, strict=True) if not reason]
    taken = max(candidates, key=lambda one: _rank(one, patterns), default=None)
    verdicts = []
    for series, reason in zip(study, reasons, strict=True):
        if series is taken:
            verdicts.append(SeriesVerdict(series, is_taken=True, reason=_doubt(series, patterns)))
        elif taken is None or reason:
            verdicts.append(SeriesVerdict(series, is_taken=False, reason=reason))
        else:
            number = taken.acquisition.number
            name = "another series" if number is None else f"series {number}"
            is_alike = _rank(series, patterns)[:-1] == _rank(taken, patterns)[:-1]
            why = f"{name} is taken{', which is alike and later' if is_alike else ''}"
            verdicts.append(SeriesVerdict(series, is_taken=False, reason=why))
    return verdicts


def _unusable(series: Series) -> str:
    """Return why a series is no volume, whatever it shows."""
    if series.acquisition.modality != "MR":
        return f"modality {series.acquisition.modality or 'not said'}"
    if series.slices < 2:
        return "no volume: a single slice, or slices without a place"
    if missing := series.missing_between:
        return f"{missing} of {series.slices + missing} slices are missing"
    if series.volumes != 1:
        return f"{len(series.positions)} slices at {series.slices} places: several volumes"
    return "its slices are not evenly spaced" if series.is_uneven else ""


def _unmatched(series: Series, patterns: Sequence[str]) -> str:
    return "" if _matching(series, patterns) is not None else "does not match --series"


def _matching(series: Series, patterns: Sequence[str]) -> int | None:
    """Return the number of the first pattern that a series matches."""
    name = series.acquisition.description.casefold()
    matches = (fnmatch.fnmatchcase(name, pattern.casefold()) for pattern in patterns)
    return next((number for number, is_match in enumerate(matches) if is_match), None)


def _no_t1(series: Series) -> str:
    """Return why a series is not the T1-weighted image of a head; empty where it may be."""
    acquisition, kind = series.acquisition, _kind(series)
    name, thick = acquisition.description, series.spacing_mm or 0.0
    is_small = series.slices < _FEWEST_SLICES or series.slices * thick < _LEAST_MM or thick > _THICKEST_MM
    missing = series.missing_of_expected
    reasons = (
        (_LOCALIZER.search(name) or "LOCALIZER" in kind, "a localizer"),
        (kind & _NO_MAGNITUDES, f"no magnitude, or of fat: {', '.join(sorted(kind & _NO_MAGNITUDES))}"),
        (kind & _DERIVED_KINDS, f"derived: {', '.join(sorted(kind & _DERIVED_KINDS))}"),
        (_DERIVED.search(name), "derived, by its description"),
        (_OTHER.search(name), "another contrast, by its description"),
        (acquisition.has_agent or _AGENT.search(_NO_AGENT.sub("", name)), "with a contrast agent"),
        (_OTHER_PARTS.search(acquisition.body_part), f"body part {acquisition.body_part}"),
        (is_small, f"{series.slices} slices of {thick:.3g} mm"),
        (missing, f"{missing} of {len(series.positions) + series.more + missing} images are missing"),
        (not _T1.search(name) and not _is_measured_as_t1(series), "not T1-weighted, by name and by times"),
    )
    return next((reason for applies, reason in reasons if applies), "")


def _kind(series: Series) -> set[str]:
    return {word.upper() for word in series.key.kind}


def _is_measured_as_t1(series: Series) -> bool:
    acquisition, echo = series.acquisition, series.key.echo_ms
    if echo is None or echo > _LONGEST_ECHO_MS or acquisition.volume != "3D":
        return False
    inversion, repetition = acquisition.inversion_ms, acquisition.repetition_ms
    if inversion is not None and _INVERSION_MS[0] <= inversion <= _INVERSION_MS[1]:
        return True
    is_short = repetition is not None and repetition <= _LONGEST_REPETITION_MS
    return is_short and (acquisition.flip_degrees or 0.0) >= _SMALLEST_FLIP


def _rank(series: Series, patterns: Sequence[str]) -> tuple[float, ...]:
    """Return a key by which the best is the largest; the rules are in their order, the number last."""
    acquisition, kind = series.acquisition, _kind(series)
    return (
        -(_matching(series, patterns) or 0),
        not _no_t1(series),
        bool(_T1.search(acquisition.description)),
        "DERIVED" not in kind or "UNI" in kind,
        "NORM" in kind,
        -(series.key.echo_ms or 0.0),
        -round(max(series.voxel_mm, default=0.0), 1),
        acquisition.number or 0,
    )


def _doubt(series: Series, patterns: Sequence[str]) -> str:
    """Return what should be looked at in a series that is taken; nothing where all is as it should be."""
    doubts = []
    if patterns and (reason := _no_t1(series)):
        doubts.append(reason)
    elif not patterns and not _T1.search(series.acquisition.description):
        doubts.append("T1-weighted by its times alone: no name says so")
    if series.lost:
        doubts.append(f"{series.lost} numbers of its images are missing")
    return "; ".join(doubts)

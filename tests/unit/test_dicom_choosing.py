"""Of a study's series one is its T1-weighted image; each other one says why it is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from trainer.data.dicom.choosing import choose
from trainer.data.dicom.headers import Acquisition, SeriesKey, SliceFile
from trainer.data.dicom.patient import ScannedPerson
from trainer.data.dicom.series import Series

PATIENT = ScannedPerson("P1", "F", 70.0, frozenset(), "", ("20110301", "090000"))
MPRAGE = Acquisition(
    number=2,
    description="t1_mprage_sag",
    modality="MR",
    volume="3D",
    repetition_ms=2300.0,
    inversion_ms=900.0,
    flip_degrees=9.0,
    scanner="",
    body_part="HEAD",
    has_agent=False,
    slice_mm=1.0,
    pixel_mm=(1.0, 1.0),
    expected=None,
)


def series(
    number: int = 2,
    kind: tuple[str, ...] = ("ORIGINAL", "PRIMARY", "M"),
    echo: float | None = 2.98,
    slices: int = 176,
    spacing: float = 1.0,
    positions: tuple[float, ...] | None = None,
    lost: int = 0,
    **acquired: Any,
) -> Series:
    places = tuple(spacing * k for k in range(slices)) if positions is None else positions
    key = SeriesKey("1.2", f"1.2.{number}", kind, echo, (1.0, 0.0, 0.0, 0.0, 1.0, 0.0), 256, 256)
    files = tuple(SliceFile(f"1.2.{k}", f"{k}.dcm", (place,), k, (1, 1)) for k, place in enumerate(places))
    return Series(key, PATIENT, replace(MPRAGE, number=number, **acquired), files, places, lost=lost)


def reasons(*study: Series, patterns: tuple[str, ...] = ()) -> list[str]:
    """Why each series is not taken; of the one that is, nothing."""
    verdicts = choose(study, patterns)
    assert sum(verdict.is_taken for verdict in verdicts) <= 1
    return ["" if verdict.is_taken else verdict.reason for verdict in verdicts]


@pytest.mark.parametrize(
    "name",
    ["t1_mprage_sag_p2_iso", "MP-RAGE", "t1_mpr_ns", "sT1W_3D_TFE", "FSPGR BRAVO", "Ax SPGR", "SagT1_SPACE"],
)
def test_names_that_say_t1_are_taken_whatever_the_times(name):
    assert reasons(series(description=name, inversion_ms=None, echo=20.0)) == [""]


@pytest.mark.parametrize(
    ("description", "reason"),
    [
        ("localizer", "a localizer"),
        ("AAhead_scout", "a localizer"),
        ("t2_space_sag", "another contrast, by its description"),
        ("Sag 3D T2 FLAIR", "another contrast, by its description"),
        ("ep2d_diff_mddw_64", "another contrast, by its description"),
        ("rsfMRI_BOLD", "another contrast, by its description"),
        ("tof_fl3d", "another contrast, by its description"),
        ("3DTOF", "another contrast, by its description"),
        ("sT2W_3D_TFE", "another contrast, by its description"),
        ("rsfMRI", "another contrast, by its description"),
        ("tfl_b1map", "another contrast, by its description"),
        ("s3DI_MC_HR", "another contrast, by its description"),
        ("t1_mprage_sag_GD", "with a contrast agent"),
        ("T1 3D +C", "with a contrast agent"),
        ("Ax T1 C+", "with a contrast agent"),
        ("MPRAGE_CE", "with a contrast agent"),
        ("t1_postcontrast", "with a contrast agent"),
        ("t1_mp2rage_INV1", "derived, by its description"),
        ("mp2rage_T1_Images", "derived, by its description"),
        ("t1_mprage_reformat", "derived, by its description"),
    ],
)
def test_descriptions_of_what_is_no_plain_t1_are_told(description, reason):
    assert reasons(series(description=description)) == [reason]


@pytest.mark.parametrize(
    "description",
    ["headcoil", "Brain postural", "superfast", "rest1_SBRef", "mprage_pre_contrast", "T1 no Gd"],
)
def test_parts_of_words_say_nothing(description):
    assert reasons(series(description=description)) == [""]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kind": ("ORIGINAL", "PRIMARY", "P")}, "no magnitude, or of fat: P"),
        ({"kind": ("ORIGINAL", "PRIMARY", "FAT")}, "no magnitude, or of fat: FAT"),
        ({"body_part": "CSPINE"}, "body part CSPINE"),
        ({"slices": 80, "spacing": 0.5}, "80 slices of 0.5 mm"),
        ({"kind": ("DERIVED", "SECONDARY", "MPR")}, "derived: MPR"),
        ({"has_agent": True}, "with a contrast agent"),
        ({"slices": 24, "spacing": 6.0}, "24 slices of 6 mm"),
        ({"modality": "CT"}, "modality CT"),
        ({"positions": (0.0,)}, "no volume: a single slice, or slices without a place"),
        ({"positions": tuple(range(100)) * 2}, "200 slices at 100 places: several volumes"),
        ({"positions": (*range(50), *range(52, 100))}, "2 of 100 slices are missing"),
        ({"expected": 192}, "16 of 192 images are missing"),
        ({"positions": (*range(50), *(k + 0.4 for k in range(50, 100)))}, "its slices are not evenly spaced"),
    ],
)
def test_what_is_measured_tells_what_names_do_not(changes, reason):
    if "positions" in changes:
        changes["positions"] = tuple(sorted(map(float, changes["positions"])))
    assert reasons(series(**changes)) == [reason]


def test_without_a_name_times_tell():
    unnamed = {"description": "Sag volume"}
    (verdict,) = choose([series(**unnamed)])
    assert verdict.is_taken and verdict.reason == "T1-weighted by its times alone: no name says so"
    short = {"inversion_ms": None, "repetition_ms": 25.0, "flip_degrees": 30.0}
    assert reasons(series(**unnamed, **short)) == [""]
    other = "not T1-weighted, by name and by times"
    assert reasons(series(**unnamed, **{**short, "flip_degrees": 4.0})) == [other]
    assert reasons(series(**unnamed, echo=20.0)) == [other]
    assert reasons(series(**unnamed, volume="2D")) == [other]


def test_of_several_the_best_is_taken_and_the_others_say_which():
    normalised = series(3, ("ORIGINAL", "PRIMARY", "M", "NORM"))
    assert reasons(series(2), normalised) == ["series 3 is taken", ""]
    assert reasons(series(2), series(5)) == ["series 5 is taken, which is alike and later", ""]
    finer = series(5, ("DERIVED", "PRIMARY", "M"), slices=250, spacing=0.7, pixel_mm=(0.7, 0.7))
    assert reasons(series(2), finer) == ["", "series 2 is taken"]  # which was interpolated
    assert reasons(series(2), series(5, spacing=1.5)) == ["", "series 2 is taken"]
    assert reasons(series(2, echo=1.7), series(2, echo=3.6)) == ["", "series 2 is taken"]
    named, unnamed = series(2, spacing=1.2), series(5, description="volume")
    assert reasons(named, unnamed) == ["", "series 2 is taken"]


def test_a_pattern_counts_in_place_of_names_and_times_but_takes_no_broken_series():
    broken = series(6, description="special sag", positions=(*range(50), *range(52, 100)))
    study = series(2), series(4, description="Special Axial", slices=40), broken
    missing = "2 of 100 slices are missing"
    assert reasons(*study, patterns=("SPECIAL*",)) == ["does not match --series", "", missing]
    assert reasons(*study, patterns=("nothing", "t1*", "special ax*")) == ["", "series 2 is taken", missing]


def test_of_what_a_pattern_matches_what_the_rules_would_take_comes_first():
    agent = series(5, description="t1_mprage_sag_GD")
    assert reasons(series(2), agent, patterns=("*mprage*",)) == ["", "series 2 is taken"]
    (verdict,) = choose([agent], ("*mprage*",))
    assert verdict.is_taken and verdict.reason == "with a contrast agent"
    assert reasons(series(expected=192), patterns=("*mprage*",)) == [""]  # the header may count others


def test_numbers_that_are_missing_are_to_be_looked_at():
    (verdict,) = choose([series(lost=3)])
    assert verdict.is_taken and verdict.reason == "3 numbers of its images are missing"

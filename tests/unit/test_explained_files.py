"""What an explanation leaves: safe file names, cuts through the brain, words instead of keys."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from trainer.explain import subjects
from trainer.explain.group import share_outside
from trainer.explain.page import mostly_outside, scans_of
from trainer.explain.pictures import peak
from trainer.explain.regions import RegionShares, pooled
from trainer.explain.subjects import distinct
from trainer.report.attributions import in_words

HOSTILE = [
    "../../etc/passwd", "..", ".", "", ".hidden", "a b", "a/b", "a\\b", "a:b?*<>|\"'#%&", "mean_AD",
    "Müller", unicodedata.normalize("NFD", "Müller"), "患者一", "x" * 400, "é" * 300, "nul\x00", "new\nline",
    "x", "x", "x_2", "X", "y_mosaic", "y",
]  # fmt: skip


def test_names_of_explained_subjects_are_safe_and_kept_apart():
    names = distinct(HOSTILE, taken=["mean_AD"])
    files = [f"{name}{ending}" for name in names for ending in (".nii.gz", ".png", "_mosaic.png")]
    assert len({file.casefold() for file in files}) == len(files)
    assert "mean_AD" not in names
    for name in names:
        assert name and not name.startswith((".", "-")) and len(f"{name}_mosaic.png".encode()) < 200
        assert all(letter.isalnum() or letter in "._-" for letter in name)
        assert name == unicodedata.normalize("NFC", name)


@pytest.mark.parametrize("names", [["sub-0003", "sub-0003_ses-1"], ["Müller", "患者一"]])
def test_names_that_are_safe_stay(names):
    assert distinct(names) == names


def ball(side: int = 24) -> np.ndarray:
    """A bright ball in dark air, with a dark ventricle in its middle, float32 (side, side, side)."""
    axes = np.meshgrid(*(np.linspace(-1, 1, side),) * 3, indexing="ij")
    radius = np.sqrt(sum(axis**2 for axis in axes))
    noise = np.random.default_rng(0).normal(0, 0.02, radius.shape)
    return (np.where((radius < 0.7) & (radius > 0.25), 1.0, -1.0) + noise).astype(np.float32)


def test_cuts_go_through_the_largest_value_inside_the_brain():
    values = np.zeros((24, 24, 24), np.float32)
    values[2:4, 2:4, 2:4] = 9.0  # in the air
    values[15, 9, 14] = 1.0
    assert peak(values, ball()) == (15, 9, 14)
    values[12, 12, 12] = 3.0  # a ventricle is inside
    assert peak(values, ball()) == (12, 12, 12)


@pytest.mark.parametrize("volume", [np.zeros((8, 8, 8), np.float32), np.full((8, 8, 8), 3.0, np.float32)])
def test_without_a_brain_cuts_go_through_the_largest_value(volume):
    values = np.zeros((8, 8, 8), np.float32)
    values[5, 2, 3] = 1.0
    assert peak(values, volume) == (5, 2, 3)


def test_subjects_are_explained_with_all_their_scans_and_only_subjects_are_counted(monkeypatch):
    volumes = [
        SimpleNamespace(subject=f"s{row // 3}", session=f"M{row % 3}", label=("NC", "AD")[row // 3 % 2],
                        source=f"{row}.nii", source_sha256="", affine=np.eye(4), scan_affine=np.eye(4))
        for row in range(12)
    ]  # fmt: skip
    shards = SimpleNamespace(
        volumes=volumes, voxel_size=(1, 1, 1), preprocessing={}, read=lambda row: np.zeros((2, 2, 2, 1))
    )
    data = SimpleNamespace(
        task=SimpleNamespace(name="classification", classes=("NC", "AD")), patches=None, shards=shards,
        rows=lambda split: range(12), covariates_for=lambda rows: None,
    )  # fmt: skip
    monkeypatch.setattr(subjects.finished_run, "open_run", lambda *_: (None, None, data, None))
    chosen = subjects.held_out(Path("run"), "test", 3, mean=False)
    scans = [(scan.person, scan.name) for scan in chosen.each]
    assert chosen.count == len(scans) == 9 and {person for person, _ in scans} == {"s0", "s1", "s2"}
    assert scans[:2] == [("s0", "sub-s0_ses-M0"), ("s1", "sub-s1_ses-M0")]  # of all classes in turn
    assert scans_of(9, 3) == "9 scans of 3 subjects" and scans_of(1, 1) == "1 scan of 1 subject"


def test_shares_of_many_scans_of_four_subjects_have_no_interval():
    shares = [RegionShares(f"s{k // 5}", 0.2 + k / 100, 0.1, 0.05) for k in range(20)]
    found = pooled(shares)
    assert (found["n"], found["subjects"], found["trained"]["interval"]) == (20, 4, None)


def test_a_summary_is_told_in_words():
    summary = {
        "explained": "log-odds of AD",
        "settings": {"layer": "stage1_relu", "grid": "8 × 8 × 8"},
        "space": {"mni_like": True, "overlap": 0.93},
        "regions": {
            "cohort": "data/cohort",
            "changed_mm": 0.5,
            "randomised_networks": 5,
            "pooled": {"n": 9, "empty": 1, "trained": {"mean": 0.31, "interval": [0.2, 0.4]}},
        },
        "of_a_later_version": {"is_new": False},
    }
    assert list(in_words(summary)) == [
        ("Explained", "log-odds of AD"),
        ("Layer", "stage1_relu"),
        ("Its grid", "8 × 8 × 8"),
        ("Brains lie where the MNI152 brain does", "yes"),
        ("Overlap with the MNI152 brain (Dice)", "0.930"),
        ("Cohort with the truth", "data/cohort"),
        ("Counted as changed, from mm", "0.500"),
        ("Networks with randomised weights", "5"),
        ("Scans with the truth", "9"),
        ("Scans with an empty map", "1"),
        ("Share of the map on changed voxels", "0.310"),
        ("Of a later version, is new", "no"),
    ]


def test_a_map_that_lies_mostly_outside_the_head_is_said_to():
    inside = np.zeros((4, 4, 4), bool)
    inside[1:3] = True
    values = np.ones((4, 4, 4), np.float32)
    values[0] = -2.0
    assert share_outside(values, inside) == pytest.approx(0.6)
    assert share_outside(np.zeros_like(values), inside) is None
    assert mostly_outside(0.6).startswith("60% of these maps lies outside the head")
    assert not mostly_outside(0.5) and not mostly_outside(None)

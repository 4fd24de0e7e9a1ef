"""Nothing of the held-out subjects leaks: labels drawn by lot are worth an AUC of 0.5, and no more.

Images are made-up heads in NIfTI files, not brains. They go the whole way: import with its normalisation,
folds, training, held-out predictions, pooled figures. Every person was scanned twice and is easily known
again, so that a network that has seen one scan of a person knows the label of the other.
"""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import nibabel
import numpy as np
import pytest
import yaml
from scipy.ndimage import gaussian_filter

from cingulum.cli import app

PEOPLE = 100
EDGE = 20


def scan(person: int, visit: int, *, ill: bool) -> np.ndarray:
    """A head float32 (20, 20, 20): anatomy of its own, noise of the visit, and a cavity, wider in the ill."""
    own, chance = np.random.default_rng(person), np.random.default_rng((person, visit))
    x, y, z = np.meshgrid(*(np.linspace(-1, 1, EDGE),) * 3, indexing="ij")
    radius = np.sqrt((x / 0.75) ** 2 + (y / 0.85) ** 2 + (z / 0.8) ** 2)
    anatomy = gaussian_filter(own.normal(size=(EDGE,) * 3), 1.5)
    brain = 500 + 150 * anatomy / anatomy.std() + chance.normal(0, 30, (EDGE,) * 3)
    brain = np.where(radius < (0.4 if ill else 0.25) + own.normal(0, 0.04), 150.0, brain)
    gain = chance.uniform(0.5, 2)  # a scanner's own units
    return (np.where(radius < 1, np.clip(brain, 50, None), 0) * gain).astype(np.float32)


@pytest.fixture(scope="module")
def cohort(tmp_path_factory) -> Path:
    """A table of images: the true diagnosis, and one drawn by lot for each person."""
    folder = tmp_path_factory.mktemp("cohort")
    drawn = np.random.default_rng(11).permutation(PEOPLE) % 2
    lines = []
    for person in range(PEOPLE):
        for visit in (1, 2):
            path = folder / f"{person:03d}-{visit}.nii"
            voxels = scan(person, visit, ill=person % 2 == 1)
            nibabel.save(nibabel.Nifti1Image(voxels, np.diag([9.0, 9.0, 9.0, 1.0])), path)
            lines.append(
                {
                    "image": path.name,
                    "subject": f"p{person:03d}",
                    "session": f"v{visit}",
                    "diagnosis": ("NC", "AD")[person % 2],
                    "lot": ("tails", "heads")[drawn[person]],
                }
            )
    write_table(folder / "people.csv", lines)
    # The mistake that is made in practice: each scan is taken for a person of its own.
    strangers = [{**line, "subject": f"{line['subject']}{line['session']}"} for line in lines]
    write_table(folder / "strangers.csv", strangers)
    return folder


def write_table(path: Path, lines: list[dict[str, str]]) -> None:
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, list(lines[0]))
        table.writeheader()
        table.writerows(lines)


def crossval(cohort: Path, folder: Path, *, people: str, label: str, leaks: str = "stop") -> int:
    """Import and cross-validate; returns the exit code."""
    shards = folder / "shards"
    line = ["import", str(cohort / people), str(shards), "--label", label, "--size", "16", "--workers", "1"]
    assert app.run(line) == 0
    run = {
        "name": "cv",
        "runs": str(folder),
        "data": {"shards": str(shards), "split": {"folds": 2, "validation": 0.1}, "leaks": leaks},
        "model": {"name": "tiny", "width": 8},
        "train": {
            "epochs": 20,
            "global_batch": 8,
            "threads": 1,
            "deterministic": True,
            "optimizer": {"name": "adamw", "learning_rate": 0.005},
        },
    }
    (folder / "cv.yaml").write_text(yaml.safe_dump(run))
    return app.run(["crossval", str(folder / "cv.yaml"), "--side-by-side", "2"])


def pooled_auc(folder: Path) -> tuple[float, list[float], int]:
    said = json.loads((folder / "cv" / "crossval.json").read_text())
    auc = said["pooled"]["auc"]
    return auc["value"], auc["interval"], said["subjects"]


@pytest.mark.slow
def test_labels_drawn_by_lot_are_worth_nothing(cohort, tmp_path):
    assert crossval(cohort, tmp_path, people="people.csv", label="lot") == 0
    auc, (low, high), subjects = pooled_auc(tmp_path)
    assert subjects == PEOPLE
    assert low < 0.5 < high, f"AUC {auc:.3f}, {low:.3f} to {high:.3f}"


@pytest.mark.slow
def test_true_labels_of_an_easy_cohort_are_learned(cohort, tmp_path):
    assert crossval(cohort, tmp_path, people="people.csv", label="diagnosis") == 0
    _, (low, _), _ = pooled_auc(tmp_path)
    assert low > 0.8


@pytest.mark.slow
def test_a_leak_would_be_seen(cohort, tmp_path):
    """Scans of a person in two folds give the lot away: the first test can fail."""
    assert crossval(cohort, tmp_path, people="strangers.csv", label="lot", leaks="ignore") == 0
    _, (low, _), _ = pooled_auc(tmp_path)
    assert low > 0.5


@pytest.mark.slow
def test_a_person_under_two_names_is_found_before_the_first_fold_is_trained(cohort, tmp_path, capsys):
    assert crossval(cohort, tmp_path, people="strangers.csv", label="lot") == 2
    said = capsys.readouterr().err
    assert re.search(r"nearly the same image.* p(\d+)v1 .* p\1v2 ", said), said
    assert not (tmp_path / "cv").exists()

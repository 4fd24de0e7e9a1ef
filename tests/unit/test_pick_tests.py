"""What `make test-deep ABOUT=...` and `make test-changed` pick: every file of tests is about something."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pick_tests
import pytest
import yaml

ROOT = Path(__file__).parents[2]
TOOL = ROOT / "tools" / "pick_tests.py"
GATE = {
    file: [] if names == "all" else names
    for files in yaml.safe_load((ROOT / "tests/gate.yaml").read_text()).values()
    for file, names in files.items()
}
SUBJECTS = pick_tests.subjects()
SLOW = {path for folder in pick_tests.FOLDERS[1:] for path in (ROOT / "tests" / folder).glob("test_*.py")}


def names(paths: set[Path]) -> set[str]:
    return {path.stem.removeprefix("test_") for path in paths}


def test_every_file_of_tests_but_those_of_one_thing_each_is_of_a_subject():
    assert set().union(*(one.files() for one in SUBJECTS.values())) == SLOW


@pytest.mark.parametrize("name", SUBJECTS)
def test_a_subject_is_about_what_is_there_and_each_of_its_names_means_a_file(name):
    for one in SUBJECTS[name].about:
        module = ROOT / one.replace(".", "/")
        assert module.is_dir() or module.with_suffix(".py").is_file() or list(ROOT.glob(one)), one
    for one in SUBJECTS[name].tests:
        assert pick_tests.Subject((), (one,)).files(), one


@pytest.mark.parametrize("file", [pytest.param(file, id=file) for file in GATE])
def test_what_the_gate_runs_is_there(file):
    folder, name = file.split("/")
    text = (ROOT / "tests" / folder / f"test_{name}.py").read_text()
    for beginning in GATE[file]:
        assert f"def test_{beginning.partition('[')[0]}" in text, beginning


def test_every_test_that_the_gate_leaves_out_is_run_by_its_subject():
    assert set().union(*(pick_tests.deep(name) for name in SUBJECTS)) == pick_tests.deep("all")


def test_what_is_changed_picks_its_subjects_those_of_what_imports_it_and_unit_tests_that_name_it():
    picked, files = pick_tests.changed(["trainer/leases/lease.py"])
    assert {"leases", "runs"} <= set(picked) and "models" not in picked
    assert {"one_writer", "lease_model", "lease"} <= names(files)
    assert "export" not in names(files) and "windows" not in names(files)


def test_what_everything_imports_picks_nearly_everything():
    picked, _ = pick_tests.changed(["trainer/errors.py"])
    raises_none = {"docs", "gate", "augmentation"}
    assert set(SUBJECTS) - raises_none == set(picked)


def test_a_changed_helper_picks_the_files_that_name_it_also_by_another_helper():
    picked, files = pick_tests.changed(["tests/helpers/draws.py"])
    assert picked == [] and {"fuzz_shards", "hostile_scripts"} <= names(files)
    _, files = pick_tests.changed(["tests/helpers/network_cases.py"])
    assert {"networks", "placed_cases"} <= names(files)


def test_a_file_that_is_no_code_picks_by_its_pattern_and_a_decision_nothing():
    picked, files = pick_tests.changed(["docker/Dockerfile"])
    assert picked == ["containers"] and "docker" in names(files)
    assert pick_tests.changed(["docs/decisions/0001-installation.md"]) == ([], set())


@pytest.mark.parametrize(
    ("words", "said"),
    [(["deep", "dta"], "ABOUT=dta: known are all, docs, data"), (["changed", "x y"], "x y")],
)
def test_what_is_not_known_is_refused(words, said):
    done = subprocess.run(
        [sys.executable, TOOL, *words], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr

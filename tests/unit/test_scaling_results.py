import subprocess
import sys

import pytest
from made_up_study import make_row, make_study
from wording import fails_with

from cingulum.bench.scaling import conduct
from trainer.bench.scaling.cells import Cell, MeasuredCell, key
from trainer.bench.scaling.results import ROWS, StudyResults, read
from trainer.errors import InputError, WorldError

SMALL = {"models": ("vgg",), "ranks": (1, 2), "strategies": ("data",), "hosts": (0,), "bandwidths": (None,)}
SMALL |= {"emulated": False, "cpus": None}


def measured(cell, testbed, progress, *, hosts=None):
    return make_row(cell)


def never(cell, testbed, progress, *, hosts=None):
    raise AssertionError(f"measured again: {cell.describe()}")


def go(study, folder, measure, *, retry=False):
    with StudyResults(folder) as results:
        return conduct.conduct(study, results, retry=retry, measure=measure, train=measure)


def test_a_line_that_was_cut_short_is_dropped_and_its_cell_is_missing(tmp_path):
    rows = [MeasuredCell(Cell("tiny", ranks=n), float(n)) for n in (1, 2, 4)]
    with StudyResults(tmp_path) as results:
        for row in rows:
            results.add(row)
    path = tmp_path / ROWS
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        complete = whole[:cut].count(b"\n")
        found, unreadable = read(tmp_path)
        assert (list(found.values()), unreadable) == (rows[:complete], 0)
    with StudyResults(tmp_path) as results:  # the last byte, a newline, is missing
        assert results.missing(tuple(row.cell for row in rows), retry=False) == [rows[2].cell]
        results.add(rows[2])
    assert path.read_bytes() == whole


def test_a_line_that_cannot_be_read_costs_its_cell_only(tmp_path):
    with StudyResults(tmp_path) as results:
        results.add(MeasuredCell(Cell("tiny")))
    (tmp_path / ROWS).write_bytes(b"\xff\n[]\n" + (tmp_path / ROWS).read_bytes())
    found, unreadable = read(tmp_path)
    assert (list(found), unreadable) == ([key(Cell("tiny"))], 2)


def test_of_two_rows_of_a_cell_the_last_counts(tmp_path):
    with StudyResults(tmp_path) as results:
        results.add(MeasuredCell(Cell("tiny"), error="no"))
        assert results.missing((Cell("tiny"),), retry=True) == [Cell("tiny")]
        results.add(MeasuredCell(Cell("tiny"), 2.0))
        assert results.missing((Cell("tiny"),), retry=True) == []
    assert read(tmp_path)[0][key(Cell("tiny"))].samples_per_second == 2.0


def test_two_studies_cannot_write_to_one_folder(tmp_path):
    line = (
        "import pathlib, sys; from trainer.bench.scaling.results import StudyResults; "
        "StudyResults(pathlib.Path(sys.argv[1])).__enter__()"
    )
    with StudyResults(tmp_path):
        said = subprocess.run([sys.executable, "-c", line, str(tmp_path)], capture_output=True, text=True)
    assert "InputError" in said.stderr and "another study is being measured" in said.stderr


def test_a_study_that_was_stopped_goes_on_with_the_cell_it_was_at(tmp_path):
    study = make_study(**SMALL)
    seen = []

    def interrupted(cell, testbed, progress, *, hosts=None):
        if len(seen) == 2:
            raise KeyboardInterrupt
        seen.append(cell)
        return make_row(cell)

    with pytest.raises(KeyboardInterrupt):
        go(study, tmp_path, interrupted)
    assert [row.cell for row in read(tmp_path)[0].values()] == seen
    rows = go(study, tmp_path, measured)
    assert [*seen, *(row.cell for row in rows)] == list(study.cells())
    assert go(study, tmp_path, never) == []


def test_a_cell_that_fails_is_a_row_and_the_study_goes_on(tmp_path):
    study = make_study(**SMALL)

    def failing(cell, testbed, progress, *, hosts=None):
        if cell.ranks == 2:
            raise WorldError("rank 1 was lost.", cure="Look after it.")
        if cell.scaling == "weak":
            raise ZeroDivisionError("division by zero")
        return make_row(cell)

    rows = go(study, tmp_path, failing)
    assert [row.error for row in rows] == [
        None,
        "rank 1 was lost.",
        "ZeroDivisionError: division by zero",
        "rank 1 was lost.",
    ]
    assert go(study, tmp_path, never) == []
    assert [row.error for row in go(study, tmp_path, measured, retry=True)] == [None] * 3


def test_two_studies_in_a_folder_share_its_page(tmp_path):
    for model in ("vgg", "resnet18"):
        go(make_study(**{**SMALL, "models": (model,)}), tmp_path, measured)
    page = (tmp_path / "scaling.html").read_text()
    assert "Scaling of vgg, resnet18" in page and "8 of 8 cells" in page


def test_in_an_allocation_there_are_no_more_hosts_than_it_has(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_NODELIST", "node[1-2]")
    assert conduct.allocation() == ("node1", "node2")
    asked = {**SMALL, "ranks": (1, 2), "hosts": (2,)}
    conduct.check(make_study(**asked))
    with fails_with(InputError):
        conduct.check(make_study(**{**asked, "strategies": ("parameter-server",)}))
    with fails_with(InputError):
        conduct.check(make_study(**{**asked, "bandwidths": ("1gbit",)}))


def test_links_are_those_of_emulated_hosts(monkeypatch):
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    with fails_with(InputError):
        conduct.check(make_study(**{**SMALL, "bandwidths": ("1gbit",)}))
    with fails_with(InputError):
        conduct.check(make_study(**{**SMALL, "hosts": (2,), "bandwidths": ("fast",)}))

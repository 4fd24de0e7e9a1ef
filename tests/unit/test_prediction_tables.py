"""Tables of predictions and the names of label maps: nothing is lost, nothing is replaced."""

from __future__ import annotations

from pathlib import Path

from wording import fails_with

from trainer.errors import ImageError, RunError
from trainer.inference import results
from trainer.inference.requests import SubjectImages, file_names
from trainer.inference.results import Results


def resumed(path: Path, task: str, row: dict) -> dict:
    """A row as it comes back when a table is gone on with."""
    columns = ("image", *results.columns(task, ("0", "1"), several=False), "error")
    table = Results(columns, {"run": "a"}, path)
    table.add([{"image": "7.nii", "error": None, **row}])
    table.write()
    again = Results(columns, {"run": "a"}, path)
    again.resume()
    return again.rows[0]


def test_a_class_that_is_called_a_number_keeps_its_name(tmp_path):
    row = resumed(tmp_path / "t.csv", "classification", {"predicted": "1", "p_0": 0.25, "p_1": 0.75})
    assert row == {"image": "7.nii", "predicted": "1", "p_0": 0.25, "p_1": 0.75, "error": None}


def test_a_predicted_number_is_a_number_again(tmp_path):
    assert resumed(tmp_path / "t.csv", "regression", {"predicted": 71.25})["predicted"] == 71.25


def test_a_cell_that_is_no_number_is_damage(tmp_path):
    path = tmp_path / "t.csv"
    with fails_with(RunError):
        resumed(path, "regression", {"predicted": "often"})


def requests(*names: str) -> list[SubjectImages]:
    return [SubjectImages(name, (Path(name),)) for name in names]


def test_label_maps_are_told_apart_by_their_folders():
    found = file_names(requests("a/t1.nii", "b/t1.nii.gz"), "_dseg.nii.gz")
    assert set(found.values()) == {Path("a/t1_dseg.nii.gz"), Path("b/t1_dseg.nii.gz")}


def test_a_label_map_never_takes_the_place_of_another():
    with fails_with(ImageError):
        file_names(requests("a/t1.nii", "a/t1.nii.gz"), "_dseg.nii.gz")

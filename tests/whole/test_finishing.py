"""The end of a run: what was computed is on disk before what may fail, and --resume makes the rest."""

from __future__ import annotations

import html
import json
import re
import shutil
import time
from pathlib import Path
from types import ModuleType

import pytest
import tiny_runs

from cingulum.cli import app
from cingulum.service.run_facts import RunPageFacts
from trainer import report
from trainer.data.shards.shards import ShardSet
from trainer.leases.claims import Owner
from trainer.leases.lease import Lease
from trainer.report import baseline, cases, figure
from trainer.run_folder.checkpoint_checks import fingerprint
from trainer.run_folder.record import RunFolder
from trainer.run_folder.run_record import VERSION
from trainer.runs import outcome
from trainer.runs.loop import Training
from trainer.tasks.classification import Classification

# In the order in which they are written; of the figures, the first. With result.json the run is finished.
COMPUTED = ("model.keras", "test.csv", "test.json", "run.json", "result.json")
OTHERS = ("baseline.json", ".png", "report.html")
OF_A_SESSION = {"input_wait_share", "start"}


class Killed(BaseException):
    """As by SIGKILL: nothing that it meets on its way out may write or remove a file."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A run that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    shards = tiny_runs.make_shards(folder / "shards", tissue=True)
    changes = {"train__deterministic": False, "train__epochs": 2, "checkpoint__every_steps": None}
    assert app.run(["train", str(tiny_runs.write_config(folder, shards, "run", **changes))]) == 0
    return folder / "run"


def test_a_run_says_the_version_of_its_record_and_where_its_images_came_from(whole):
    said = json.loads((whole / "run.json").read_text())
    source = ShardSet.open(whole.parent / "shards").source
    assert source and (said["version"], said["shards"]["source"]) == (VERSION, source)


def resume(folder: Path) -> int:
    return app.run(["train", str(folder / "config.yaml"), f"runs={folder.parent}", "--resume"])


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
    for name in COMPUTED:
        kill_at(name, monkeypatch, folder)
        assert not (folder / "result.json").exists()
    for name in OTHERS:
        kill_at(name, monkeypatch, folder)
        assert (folder / "result.json").exists()
    assert "finished already; writing what is missing: baseline.json, report.html." in capsys.readouterr().err
    assert resume(folder) == 0

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
    error = capsys.readouterr().err
    assert "the weights of the best epoch are missing" in error and f"rm {folder}/result.json; " in error
    assert tiny_runs.result(folder) == said


def test_a_finished_run_whose_checkpoints_are_gone_is_finished_and_what_it_lost_comes_from_its_network(
    whole, tmp_path, capsys
):
    folder = Path(shutil.copytree(whole, tmp_path / "run"))
    shutil.rmtree(folder / "checkpoints")
    (folder / "evaluation" / "test.json").unlink()
    assert resume(folder) == 0
    assert "is finished already; writing what is missing: evaluation/test.json" in capsys.readouterr().err
    assert files(folder) == {name for name in files(whole) if not name.startswith("checkpoints/")}
    for path in ("model.keras", "evaluation/test.json", "result.json", "metrics.jsonl"):
        assert (folder / path).read_bytes() == (whole / path).read_bytes(), path


def test_a_finished_run_whose_last_checkpoint_is_damaged_is_not_trained_again(whole, tmp_path, capsys):
    folder = Path(shutil.copytree(whole, tmp_path / "run"))
    last = folder / "checkpoints" / f"step-{tiny_runs.steps(folder)[-1]:08d}"
    (last / "optimizer.npz").write_bytes(b"damaged")
    before = {name: (folder / name).read_bytes() for name in ("metrics.jsonl", "result.json", "model.keras")}
    assert resume(folder) == 0
    error = capsys.readouterr().err
    assert "is finished already." in error and "resumed from" not in error
    assert before == {name: (folder / name).read_bytes() for name in before}


def test_a_run_whose_checkpoints_were_removed_is_not_trained_over(whole, tmp_path, capsys):
    folder = Path(shutil.copytree(whole, tmp_path / "run"))
    shutil.rmtree(folder / "checkpoints")
    before = {name: (folder / name).read_bytes() for name in ("metrics.jsonl", "result.json")}
    more = ["train", str(folder / "config.yaml"), f"runs={folder.parent}", "train.epochs=3", "--resume"]
    assert app.run(more) == 2
    said = capsys.readouterr().err
    assert "checkpoints/ is empty" in said and f"remove {folder}" in said
    assert before == {name: (folder / name).read_bytes() for name in before}


def finish_anew(whole: Path, folder: Path) -> Path:
    """A copy of the run that has done its last step and nothing else."""
    shutil.copytree(whole, folder)
    for left in ("evaluation", "figures"):
        shutil.rmtree(folder / left)
    for left in ("model.keras", "baseline.json", "report.html", "result.json"):
        (folder / left).unlink()
    return folder


@pytest.mark.parametrize(
    ("broken", "name", "lost", "command"),
    [
        (report, "write", {"report.html", "figures/"}, "cingulum report "),
        (baseline, "tissue_baseline", {"baseline.json"}, "cingulum train "),
        (outcome.records, "energy", {"figures/"}, "cingulum train "),
    ],
    ids=["report", "baseline", "energy"],
)
def test_an_error_in_a_part_is_one_line_with_its_command_and_the_run_is_finished(
    whole, tmp_path, monkeypatch, capsys, broken: ModuleType, name: str, lost: set[str], command: str
):
    folder = finish_anew(whole, tmp_path / "run")

    def fail(*arguments: object, **options: object) -> None:
        raise ZeroDivisionError("nobody expected this")

    with monkeypatch.context() as patch:
        patch.setattr(broken, name, fail)
        assert resume(folder) == 0
    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    # Where the time went, a section of the report, has the energy, too.
    assert len(warnings) == (2 if name == "energy" else 1)
    assert "ZeroDivisionError: nobody expected this, test_finishing.py:" in warnings[0]
    assert f"To make it: {command}{folder}" in warnings[0]
    missing = files(whole) - files(folder)
    assert {re.sub("/.*", "/", path) for path in missing} == lost
    ours, theirs = tiny_runs.result(folder), tiny_runs.result(whole)
    assert ours["test"] == theirs["test"] and ours["best"] == theirs["best"]

    assert resume(folder) == 0
    assert "is finished already" in capsys.readouterr().err
    assert files(folder) == files(whole)
    ours = tiny_runs.result(folder)
    assert ours.keys() == theirs.keys() and ours.get("energy_wh") == theirs.get("energy_wh")


def test_a_report_that_takes_longer_than_the_limit_is_given_up_and_the_run_is_finished(
    whole, tmp_path, monkeypatch, capsys
):
    folder = finish_anew(whole, tmp_path / "run")

    def slow(*arguments: object, **options: object) -> None:
        try:
            time.sleep(60)
        except Exception:
            time.sleep(60)

    with monkeypatch.context() as patch:
        patch.setattr(report, "write", slow)
        assert app.run(
            ["train", str(folder / "config.yaml"), f"runs={folder.parent}", "guards.timeout_s=8", "--resume"]
        ) == 0  # fmt: skip
    said = capsys.readouterr().err
    assert "report.html could not be made (it took longer than 8 s)" in said
    assert f"cingulum report {folder}" in said and "no progress" not in said
    assert tiny_runs.result(folder)["test"] == tiny_runs.result(whole)["test"]
    assert app.run(["report", str(folder)]) == 0
    assert files(folder) == files(whole)


def test_metrics_that_cannot_be_computed_leave_the_predictions_and_the_result_and_resume_adds_them(
    whole, tmp_path, monkeypatch, capsys
):
    folder = finish_anew(whole, tmp_path / "run")

    def fail(*arguments: object, **options: object) -> None:
        raise ValueError("of this split")

    with monkeypatch.context() as patch:
        patch.setattr(Classification, "metrics", fail)
        assert resume(folder) == 0
    said = capsys.readouterr().err
    assert "evaluation/test.json could not be made (ValueError: of this split" in said
    assert (folder / "evaluation" / "test.csv").read_bytes() == (
        whole / "evaluation" / "test.csv"
    ).read_bytes()
    assert "test" not in tiny_runs.result(folder) and (folder / "report.html").is_file()

    assert resume(folder) == 0
    assert (
        "missing: evaluation/validation.json, evaluation/test.json, the test metrics"
        in capsys.readouterr().err
    )
    assert files(folder) == files(whole)
    assert tiny_runs.result(folder)["test"] == tiny_runs.result(whole)["test"]


@pytest.mark.parametrize(
    ("broken", "name", "words"),
    [(cases, "pictures", "Pictures of"), (figure, "write_png", "loss.png could not be drawn")],
    ids=["section", "figure"],
)
def test_a_section_or_a_figure_that_fails_leaves_the_rest_of_the_report(
    whole, tmp_path, monkeypatch, capsys, broken: ModuleType, name: str, words: str
):
    folder = Path(shutil.copytree(whole, tmp_path / "run"))
    (folder / "report.html").unlink()

    def fail(*arguments: object, **options: object) -> None:
        raise ZeroDivisionError("in a picture")

    monkeypatch.setattr(broken, name, fail)
    assert app.run(["report", str(folder)]) == 0
    said = capsys.readouterr().err
    assert words in said and "ZeroDivisionError: in a picture" in said
    assert "Reproducibility record" in (folder / "report.html").read_text()


def test_a_run_that_is_asked_to_stop_while_it_finishes_is_finished_without_its_parts(
    whole, tmp_path, monkeypatch, capsys
):
    folder = finish_anew(whole, tmp_path / "run")
    made = outcome._make

    def asked(training, name, result):
        training.stop.requested = True
        return made(training, name, result)

    with monkeypatch.context() as patch:
        patch.setattr(outcome, "_make", asked)
        assert resume(folder) == 0
    said = capsys.readouterr().err
    assert (
        "is finished; as asked to stop, without " in said
        and "report.html. To make it: cingulum train" in said
    )
    assert tiny_runs.result(folder)["test"] == tiny_runs.result(whole)["test"]
    assert resume(folder) == 0 and files(folder) == files(whole)


@pytest.fixture(scope="module")
def rated(tmp_path_factory) -> Path:
    """A run whose second epoch is the best, its third the second best, its last the worst but one."""
    folder = tmp_path_factory.mktemp("rated")
    shards = tiny_runs.make_shards(folder / "shards")
    changes = {
        "train__deterministic": False,
        "checkpoint__every_steps": None,
        "checkpoint__keep": 4,
        "train__early_stopping": {"metric": "val_auc", "patience": 9},
    }
    scores = iter([0.5, 0.9, 0.8, 0.7])
    validate = Training._validate
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Training, "_validate", lambda self: {**validate(self), "val_auc": next(scores)})
        assert app.run(["train", str(tiny_runs.write_config(folder, shards, "run", **changes))]) == 0
    assert tiny_runs.result(folder / "run")["kept"] == {"epoch": 2, "step": 12}
    return folder / "run"


def flip(path: Path) -> None:
    """Damage a byte in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def step(folder: Path, epoch: int) -> Path:
    return folder / "checkpoints" / f"step-{6 * epoch:08d}"


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda path: flip(path / "averaged.keras"), "averaged.keras does not match its checksum"),
        (shutil.rmtree, "No such file or directory"),
        (lambda path: (path / "manifest.json").write_text("{"), "manifest.json cannot be read"),
    ],
    ids=["weights", "removed", "manifest"],
)
def test_a_run_whose_best_checkpoint_is_damaged_keeps_the_best_whole_one_and_says_so_everywhere(
    rated, tmp_path, capsys, damage, problem
):
    folder = Path(shutil.copytree(rated, tmp_path / "run"))
    (folder / "result.json").unlink()
    damage(step(folder, 2))
    assert resume(folder) == 0
    log = capsys.readouterr().err
    said = tiny_runs.result(folder)
    why = said["kept"]["why"]
    assert (
        why.startswith("Epoch 2 has the best val_auc, 0.9, but its checkpoint is not whole (")
        and problem in why
    )
    assert why.endswith(
        "the weights are those of epoch 3 (val_auc, 0.8), the best whose checkpoint is whole."
    )
    assert f"warning: {why}" in log
    assert (said["kept"]["epoch"], said["kept"]["step"], said["best"]) == (3, 18, tiny_runs.rows(folder)[2])
    assert (folder / "model.keras").read_bytes() == (step(folder, 3) / "averaged.keras").read_bytes()

    page = html.unescape((folder / "report.html").read_text())
    assert page.count(why) == 3  # at its top, in the methods, in the notes
    assert app.run(["evaluate", str(folder), "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["loss"] == pytest.approx(said["test"]["loss"], rel=1e-5)
    assert f"note: {folder}: {why}" in shown.err
    assert app.run(["export", str(folder)]) == 0
    card = json.loads((folder / "export" / "model_card.json").read_text())
    assert (card["training"]["best_epoch"], card["training"]["other_epoch"]) == (3, why)
    assert "the weights are those of epoch 3" in (folder / "export" / "MODEL_CARD.md").read_text()
    best = RunPageFacts().best(RunFolder(folder))
    assert best is not None and (best.epoch, best.value) == (3, 0.8)


def test_of_whole_checkpoints_without_a_score_none_is_called_the_best(rated, tmp_path, capsys):
    folder = Path(shutil.copytree(rated, tmp_path / "run"))
    (folder / "result.json").unlink()
    shutil.rmtree(step(folder, 1))
    shutil.rmtree(step(folder, 2))
    shutil.rmtree(step(folder, 3))
    cursor = json.loads((step(folder, 4) / "cursor.json").read_text())
    for row in cursor["rows"][2:]:
        row["val_auc"] = None
    (step(folder, 4) / "cursor.json").write_text(json.dumps(cursor))
    manifest = json.loads((step(folder, 4) / "manifest.json").read_text())
    manifest["files"]["cursor.json"] = fingerprint(step(folder, 4) / "cursor.json")
    (step(folder, 4) / "manifest.json").write_text(json.dumps(manifest))
    assert resume(folder) == 0
    said = tiny_runs.result(folder)
    assert said["best"] is None and said["kept"]["epoch"] == 4
    assert said["kept"]["why"].endswith("those of epoch 4, the last whose checkpoint is whole.")


def test_a_last_checkpoint_that_is_damaged_before_the_end_is_written_again_from_memory(
    rated, tmp_path, monkeypatch, capsys
):
    shards = tiny_runs.make_shards(tmp_path / "shards")
    changes = {"train__deterministic": False, "train__epochs": 2, "checkpoint__every_steps": None}
    config = tiny_runs.write_config(tmp_path, shards, "run", **changes)
    finish = outcome.finish

    def damaged(training, cache):
        for path in training.folder.checkpoints.iterdir():
            flip(path / "model.keras")
        return finish(training, cache)

    monkeypatch.setattr(outcome, "finish", damaged)
    assert app.run(["train", str(config)]) == 0
    assert "is damaged; it is written again, from memory." in capsys.readouterr().err
    folder = tmp_path / "run"
    assert tiny_runs.result(folder)["kept"]["epoch"] == 2
    assert (folder / "model.keras").read_bytes() == (step(folder, 2) / "averaged.keras").read_bytes()


def test_a_finished_run_keeps_its_network_where_only_its_best_checkpoint_is_damaged(rated, tmp_path, capsys):
    folder = Path(shutil.copytree(rated, tmp_path / "run"))
    flip(step(folder, 2) / "averaged.keras")
    (folder / "evaluation" / "test.csv").unlink()
    assert resume(folder) == 0
    for name in ("result.json", "model.keras", "evaluation/test.csv"):
        assert (folder / name).read_bytes() == (rated / name).read_bytes(), name

    flip(folder / "model.keras")
    (folder / "evaluation" / "test.csv").unlink()
    assert resume(folder) == 2
    assert "neither model.keras nor" in capsys.readouterr().err

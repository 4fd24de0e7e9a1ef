"""`cingulum crossval`: really trained folds, stopped, killed and resumed, end with the very same figures."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tiny_runs import make_shards, result, steps, write_config

from cingulum.cli import app
from trainer.crossval import folds as plans
from trainer.report import crossval_page

ROOT = Path(__file__).parents[2]
FILES = ("crossval.json", "crossval.csv", "predictions.csv")


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> Path:
    return make_shards(tmp_path_factory.mktemp("data") / "shards")


def config_of(folder: Path, shards: Path) -> Path:
    """Two folds of a second each, with many checkpoints and one thread, whatever else runs."""
    changes = {"train__epochs": 3, "train__threads": 1, "checkpoint__every_steps": 1}
    return write_config(folder, shards, "cv", **changes, data__split={"folds": 2})


@contextlib.contextmanager
def crossval(*arguments: object) -> Iterator[subprocess.Popen]:
    """The command as a process in a session of its own, as in a terminal; ended with all that it started."""
    process = subprocess.Popen(
        [sys.executable, "-m", "cingulum", "crossval", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            for each in [*psutil.Process(process.pid).children(recursive=True), process]:
                with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
                    each.kill()
        process.wait()


def finish(*arguments: object) -> tuple[int, str, str]:
    with crossval(*arguments) as process:
        out, err = process.communicate(timeout=150)
    return process.returncode, out, err


@pytest.fixture(scope="module")
def reference(tmp_path_factory, shards) -> Path:
    """The folder of a cross-validation that nothing interrupted, one fold after the other."""
    folder = tmp_path_factory.mktemp("reference")
    code, out, err = finish(config_of(folder, shards))
    assert code == 0, err
    assert "auc" in out and "fold 1, seed 0: AUC" in err
    return folder / "cv"


def without(reference: Path, folder: Path, *names: str) -> Path:
    """A copy of the cross-validation without the runs `names`, and without figures."""
    copy = shutil.copytree(reference, folder / "cv")
    for name in (*names, *FILES):
        path = copy / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return copy


def wait_until_saved(run: Path, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 90
    while not (run / "checkpoints").is_dir() or not steps(run):
        assert process.poll() is None and time.monotonic() < deadline, f"{run} never saved"
        time.sleep(0.01)


def assert_same(ours: Path, theirs: Path) -> None:
    for name in FILES:
        assert (ours / name).read_text() == (theirs / name).read_text(), name
    for k in (0, 1):
        runs = [result(folder / f"fold-{k}-seed-0") for folder in (ours, theirs)]
        assert runs[0]["weights_sha256"] == runs[1]["weights_sha256"]


@pytest.mark.slow
def test_every_subject_is_predicted_by_the_network_that_never_saw_it(reference):
    with (reference / "predictions.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [int(line["row"]) for line in lines] == list(range(32))
    for line in lines:
        facts = json.loads((reference / f"fold-{line['fold']}-seed-0" / "run.json").read_text())
        assert int(line["row"]) in facts["split"]["test"]
    summary = json.loads((reference / "crossval.json").read_text())
    assert (summary["subjects"], summary["folds"], summary["seeds"]) == (32, 2, [0])
    assert summary["pooled"]["auc"]["value"] > 0.9
    assert [run["metrics"]["n"] for run in summary["per_fold"]] == [16, 16]
    assert "held-out" in (reference / "fold-0-seed-0.log").read_text()


@pytest.mark.slow
def test_finished_folds_are_skipped_and_the_figures_made_again(reference, tmp_path, capsys):
    copy = without(reference, tmp_path)
    assert app.run(["crossval", str(copy / "crossval.yaml"), f"runs={tmp_path}", "--json"]) == 0
    said = capsys.readouterr()
    assert "2 of 2 runs are finished already" in said.err
    assert json.loads(said.out) == json.loads((reference / "crossval.json").read_text())
    assert_same(copy, reference)


@pytest.mark.slow
def test_an_error_in_its_report_leaves_the_figures_of_a_cross_validation(
    reference, tmp_path, capsys, monkeypatch
):
    copy = without(reference, tmp_path)

    def fail(folder: Path) -> None:
        raise ZeroDivisionError("in a chart")

    monkeypatch.setattr(crossval_page, "render", fail)
    assert app.run(["crossval", str(copy / "crossval.yaml"), f"runs={tmp_path}", "--json"]) == 0
    said = capsys.readouterr()
    assert "report.html could not be made (ZeroDivisionError: in a chart" in said.err
    assert f"cingulum report {copy}" in said.err
    assert json.loads(said.out) == json.loads((reference / "crossval.json").read_text())


@pytest.mark.slow
def test_a_fold_that_is_killed_goes_on_and_changes_no_figure(reference, tmp_path):
    copy = without(reference, tmp_path, "fold-1-seed-0")
    line = [copy / "crossval.yaml", f"runs={tmp_path}"]
    with crossval(*line) as process:
        wait_until_saved(copy / "fold-1-seed-0", process)
        (training,) = psutil.Process(process.pid).children()
        training.kill()
        _, err = process.communicate(timeout=150)
    assert process.returncode == 137, err
    assert "fold 1, seed 0 was killed by signal 9" in err and "Traceback" not in err
    assert not (copy / "crossval.json").exists() and not (copy / "fold-1-seed-0" / "result.json").exists()

    code, _, err = finish(*line)
    assert code == 0, err
    assert "resumed from" in (copy / "fold-1-seed-0.log").read_text()
    assert_same(copy, reference)


@pytest.mark.slow
def test_side_by_side_stopped_and_resumed_is_as_one_after_the_other(reference, tmp_path):
    copy = without(reference, tmp_path, "fold-0-seed-0", "fold-1-seed-0")
    line = [copy / "crossval.yaml", f"runs={tmp_path}", "--side-by-side", 2]
    with crossval(*line) as process:
        wait_until_saved(copy / "fold-0-seed-0", process)
        # The other fold may be done before this one has saved, where it had the cores for itself.
        finished = (copy / "fold-1-seed-0" / "result.json").exists()
        assert finished or len(psutil.Process(process.pid).children()) == 2
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=150)
    assert process.returncode == 75, err
    assert re.search(r"[12] of 2 runs are left to do, their state is saved", err), err

    code, _, err = finish(*line)
    assert code == 0, err
    assert_same(copy, reference)


@pytest.mark.slow
def test_ctrl_c_lets_the_ranks_of_a_fold_save(reference, tmp_path):
    copy = without(reference, tmp_path, "fold-1-seed-0")
    with crossval(copy / "crossval.yaml", f"runs={tmp_path}", "--ranks", 2) as process:
        wait_until_saved(copy / "fold-1-seed-0", process)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does, to all that are in the foreground
        _, err = process.communicate(timeout=150)
    assert process.returncode == 75, err
    assert "1 of 2 runs are left to do" in err
    assert f"stopped at step {steps(copy / 'fold-1-seed-0')[-1]}" in (copy / "fold-1-seed-0.log").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("keep_going", [False, True])
def test_a_fold_that_fails_is_told_in_its_own_words_with_its_exit_code(tmp_path, shards, keep_going):
    line = [config_of(tmp_path, shards), "model.options={dropuot: 0.1}", *["--keep-going"] * keep_going]
    code, _, err = finish(*line)
    assert code == 2, err
    assert "fold 0, seed 0 failed with exit code 2" in err and "dropuot" in err and "Traceback" not in err
    assert (tmp_path / "cv" / "fold-1-seed-0.log").exists() == keep_going
    assert ("fold 1, seed 0 failed" in err) == keep_going
    assert not (tmp_path / "cv" / "crossval.json").exists()


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert app.run(["crossval", *map(str, arguments)]) == 2
    errors = capsys.readouterr().err
    assert errors.count("error: ") == 1 and "Traceback" not in errors
    return errors


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("train.epochs=4", "train.epochs was 3 and is 4 now"),
        ("train.seed=1", "train.seed was 0 and is 1 now"),
        ("data.split.folds=3", "data.split.folds was 2 and is 3 now"),
    ],
)
def test_another_configuration_is_refused_by_the_key_that_differs(reference, capsys, change, words):
    before = {path: path.stat().st_mtime_ns for path in reference.rglob("*")}
    said = refused(capsys, reference / "crossval.yaml", f"runs={reference.parent}", change)
    assert words in said and "crossval.yaml" in said
    assert {path: path.stat().st_mtime_ns for path in reference.rglob("*")} == before


@pytest.mark.slow
def test_other_data_are_refused(reference, tmp_path, capsys):
    other = make_shards(tmp_path / "other", subjects=28)
    assert "other data" in refused(
        capsys, reference / "crossval.yaml", f"runs={reference.parent}", f"data.shards={other}"
    )


def test_two_at_once_on_one_folder_are_refused(tmp_path, shards, capsys):
    config = config_of(tmp_path, shards)
    with plans.working(plans.plan(config, folds=None, seeds=1)):
        said = refused(capsys, config)
    assert "is at work" in said and str(os.getpid()) in said


def test_the_folder_of_a_run_is_refused(tmp_path, shards, capsys):
    (tmp_path / "cv").mkdir()
    (tmp_path / "cv" / "config.yaml").write_text("")
    assert "is the folder of a single run" in refused(capsys, config_of(tmp_path, shards))


@pytest.mark.parametrize(
    "environment", [{"OMPI_COMM_WORLD_SIZE": "1"}, {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"}]
)
def test_within_mpirun_or_srun_it_is_refused(tmp_path, shards, capsys, monkeypatch, environment):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert "--ranks" in refused(capsys, config_of(tmp_path, shards))


def test_a_dry_run_shows_every_run_and_writes_nothing(tmp_path, shards, capsys):
    config = config_of(tmp_path, shards)
    assert app.run(["crossval", str(config), "--seeds", "2", "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert [run["run"] for run in plan["runs"]] == [f"fold-{f}-seed-{s}" for s in (0, 1) for f in (0, 1)]
    assert {run["state"] for run in plan["runs"]} == {"new"}
    assert all(sum(run["split"].values()) == 32 and run["split"]["test"] == 16 for run in plan["runs"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cv.yaml"]


def test_a_fold_without_enough_subjects_is_refused_before_anything_is_written(tmp_path, shards, capsys):
    assert "too few for 20 folds" in refused(capsys, config_of(tmp_path, shards), "--folds", 20)
    assert not (tmp_path / "cv").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "model", "figure"),
    [
        ({"name": "regression"}, {"name": "tiny", "width": 2}, "mae"),
        ({"name": "segmentation"}, {"name": "unet3d", "width": 4, "options": {"depth": 2}}, "dice"),
    ],
)
def test_other_tasks_are_pooled_by_their_own_figures(tmp_path, task, model, figure):
    shards = make_shards(tmp_path / "shards", subjects=12, maps=True)
    config = write_config(tmp_path, shards, "cv", task=task, model=model, train__epochs=2)
    code, out, err = finish(config, "--folds", 2, "--side-by-side", 2, "--json")
    assert code == 0, err
    said = json.loads(out)
    value, (low, high) = said["pooled"][figure]["value"], said["pooled"][figure]["interval"]
    assert said["task"] == task["name"] and low < value < high
    # Folds of six subjects each: the pooled mean is that of the two folds.
    assert value == pytest.approx(said["over_folds"][figure]["mean"], abs=1e-4)
    assert figure in err.lower()


@pytest.mark.slow
def test_folds_that_were_trained_as_tasks_of_an_array_are_pooled_afterwards(reference, shards, tmp_path):
    config = config_of(tmp_path, shards)
    # Both at once and in a folder that is not there yet, as a scheduler starts them.
    with crossval(config, "--fold", 0) as first, crossval(config, "--fold", 1, "--seed", 0) as second:
        for process in (first, second):
            _, err = process.communicate(timeout=150)
            assert process.returncode == 0, err
    assert not (tmp_path / "cv" / "crossval.json").exists()
    code, _, err = finish(config)
    assert code == 0, err
    assert "2 of 2 runs are finished already" in err
    assert_same(tmp_path / "cv", reference)


@pytest.mark.slow
def test_ranks_that_were_started_train_one_fold_together(shards, tmp_path, launch):
    words = [config_of(tmp_path, shards), "train.epochs=1", "--fold", "1"]
    done = launch(2, ROOT / "cingulum" / "__main__.py", "crossval", *words)
    assert done.exit_code == 0, done.err
    assert result(tmp_path / "cv" / "fold-1-seed-0")["world_size"] == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--fold", "2"], "There is no fold 2 with seed 0: the folds are 0 to 1, the seeds 0"),
        (["--fold", "0", "--seed", "3"], "There is no fold 0 with seed 3"),
        (["--seed", "0"], "Add --fold I"),
    ],
)
def test_a_fold_that_is_not_there_is_refused(shards, tmp_path, capsys, words, said):
    assert app.run(["crossval", str(config_of(tmp_path, shards)), *words]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "cv").exists()

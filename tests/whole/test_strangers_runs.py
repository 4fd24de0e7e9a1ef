"""A run folder may be a stranger's: no command runs code because the folder's files name it."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from pathlib import Path

import keras
import pytest
import yaml
from made_images import nifti
from tiny_runs import make_shards, write_config
from wording import fails_with

from cingulum.cli import app
from trainer import models, transfer
from trainer.errors import RunError
from trainer.inference.saved_model import load_model
from trainer.models import own_code
from trainer.run_folder.record import RunFolder

# A network file that says when it is run.
OWN = """
from pathlib import Path
import keras
from trainer import models
with Path({marker!r}).open("a") as file:
    file.write("ran ")


@keras.saving.register_keras_serializable("strangers")
class Doubled(keras.layers.Layer):
    def call(self, x):
        return 2 * x


def build(shape, classes, *, width=2):
    model = models.build("tiny", shape, classes, width=width)
    return keras.Model(model.input, Doubled()(model.output))
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A folder with a run of a network in `its_own.py`, and a second run to compare it with."""
    folder = tmp_path_factory.mktemp("trained")
    shards = make_shards(folder / "shards", subjects=16)
    file = folder / "its_own.py"
    file.write_text(OWN.format(marker=str(folder / "marker")))
    changes = {"train__epochs": 1, "train__deterministic": False, "train__optimizer": {"name": "sgd"}}
    config = write_config(folder, shards, "run", model__name=f"{file}:build", model__options={}, **changes)
    assert app.run(["train", str(config)]) == 0
    forget(folder)
    shutil.copytree(folder / "run", folder / "other")
    return folder


@pytest.fixture
def folder(trained, tmp_path) -> Path:
    """A copy of them, in which nothing of the own file has run."""
    for name in ("run", "other"):
        shutil.copytree(trained / name, tmp_path / name)
    shutil.copy(trained / "its_own.py", tmp_path)
    forget(trained)
    yield tmp_path
    forget(trained)


def forget(trained: Path) -> None:
    """Undo what running the file did."""
    (trained / "marker").unlink(missing_ok=True)
    keras.saving.get_custom_objects().pop("strangers>Doubled", None)
    sys.modules.pop("cingulum_own_its_own", None)
    own_code._registered_by.clear()
    refusing = own_code.NeighboursRefused
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, refusing)]


def with_a_plain_network(run: Path) -> Path:
    """The run's config names the own file, and its model.keras needs nothing of it."""
    models.build("tiny", (16, 16, 16, 1), 2, width=2).save(run / "model.keras")
    return run


def commands(run: Path, scan: Path) -> list[list[str]]:
    """Every command that opens a run's network."""
    asked = (["predict", run, scan], ["evaluate", run], ["explain", run, "--subjects", "1"], ["export", run])
    return [[str(argument) for argument in command] for command in asked]


def test_the_record_says_which_file_a_network_came_from(trained):
    said = json.loads((trained / "run" / "run.json").read_text())["code"]
    file = trained / "its_own.py"
    assert said == {"file": str(file), "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
    assert own_code.recorded("tiny") is None
    assert own_code.recorded("trainer.models:build")["file"] == models.__file__


def test_no_command_runs_the_file_that_a_run_names(folder, trained, capsys):
    run = with_a_plain_network(folder / "run")
    reading = [["report", str(run)], ["compare", str(run), str(folder / "other")], ["diagnose", str(run)]]
    for command in [*commands(run, nifti(folder / "sub-1_T1w.nii.gz")), *reading]:
        assert app.run(command) == 0, (command, capsys.readouterr().err)
    assert "layers" in transfer.start(models.build("tiny", (16, 16, 16, 1), 2, width=2), run)
    assert not (trained / "marker").exists()


def test_a_network_with_a_layer_of_its_own_is_refused_and_the_option_named(folder, trained, capsys):
    for command in commands(folder / "run", nifti(folder / "sub-1_T1w.nii.gz")):
        capsys.readouterr()
        assert app.run(command) == 2
        said = capsys.readouterr().err
        assert "'strangers>Doubled'" in said and "--allow-code FILE" in said and "its_own.py" in said
        assert "Traceback" not in said
    with fails_with(RunError):
        transfer.start(models.build("tiny", (16, 16, 16, 1), 2, width=2), folder / "run")
    assert not (trained / "marker").exists()


def test_the_file_that_a_run_was_trained_with_is_run_where_the_user_names_it(folder, trained, capsys):
    for command in commands(folder / "run", nifti(folder / "sub-1_T1w.nii.gz")):
        forget(trained)
        assert app.run([*command, "--allow-code", str(folder / "its_own.py")]) == 0, capsys.readouterr().err
        assert (trained / "marker").read_text() == "ran "
    # Two runs of one file: it is run once.
    forget(trained)
    ask = ["predict", str(folder / "run"), str(folder / "sub-1_T1w.nii.gz"), "--ensemble"]
    assert app.run([*ask, str(folder / "other"), "--allow-code", str(folder / "its_own.py")]) == 0
    assert (trained / "marker").read_text() == "ran "


def test_a_changed_file_is_refused_with_both_hashes(folder, trained, capsys):
    right = hashlib.sha256((folder / "its_own.py").read_bytes()).hexdigest()
    changed = folder / "its_own.py"
    changed.write_text(changed.read_text() + "\n# changed\n")
    wrong = hashlib.sha256(changed.read_bytes()).hexdigest()
    assert app.run(["export", str(folder / "run"), "--allow-code", str(changed)]) == 2
    said = capsys.readouterr().err
    assert right in said and wrong in said
    assert app.run(["export", str(folder / "run"), "--allow-code", str(folder / "nowhere.py")]) == 2
    assert "there is no such file" in capsys.readouterr().err
    assert not (trained / "marker").exists()


@pytest.mark.parametrize("reachable", [True, False])
@pytest.mark.parametrize("line", ["import beside", "from package_beside import inner", "import beside_too"])
def test_a_file_beside_the_allowed_one_is_not_imported(folder, trained, monkeypatch, line, reachable):
    """Its hash is nowhere: only the file that the run was trained with is compared."""
    hacked = f"import pathlib; pathlib.Path({str(folder / 'hacked')!r}).touch()"
    (folder / "beside.py").write_text(hacked)
    (folder / "package_beside").mkdir()
    (folder / "package_beside" / "inner.py").write_text(hacked)
    (folder / "beside_too.py").symlink_to(folder / "beside.py")
    file = folder / "its_own.py"
    file.write_text(f"{line}\n{file.read_text()}")
    record = folder / "run" / "run.json"
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    record.write_text(json.dumps({**json.loads(record.read_text()), "code": {"sha256": sha256}}))
    if reachable:
        monkeypatch.syspath_prepend(folder)
    with fails_with(RunError) as caught:
        load_model(RunFolder(folder / "run"), [file])
    assert "PYTHONPATH" in str(caught.value)
    assert not (folder / "hacked").exists() and not (trained / "marker").exists()


def test_a_module_from_elsewhere_may_be_imported_by_the_allowed_file(
    folder, trained, monkeypatch, tmp_path_factory
):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "of_the_users_own.py").write_text("")
    monkeypatch.syspath_prepend(elsewhere)
    own_code.refuse_neighbours(folder / "its_own.py")
    import of_the_users_own  # noqa: F401

    load_model(RunFolder(folder / "run"), [folder / "its_own.py"])
    assert (trained / "marker").exists()


def test_a_compiled_copy_beside_the_file_is_not_run(folder, trained, tmp_path):
    """Python would take it for the file's own, by time and size."""
    import importlib.util
    import py_compile

    file = folder / "its_own.py"
    evil = tmp_path / "evil.py"
    evil.write_text(f"import pathlib; pathlib.Path({str(tmp_path / 'hacked')!r}).touch()")
    cached = Path(importlib.util.cache_from_source(str(file)))
    py_compile.compile(str(evil), cfile=str(cached), doraise=True)
    content = bytearray(cached.read_bytes())
    content[8:16] = int(file.stat().st_mtime).to_bytes(4, "little") + file.stat().st_size.to_bytes(
        4, "little"
    )
    cached.write_bytes(content)
    load_model(RunFolder(folder / "run"), [file])
    assert not (tmp_path / "hacked").exists() and (trained / "marker").exists()


def test_what_a_run_without_a_record_or_without_code_is_told(folder, trained, capsys):
    record = folder / "run" / "run.json"
    said = json.loads(record.read_text())
    del said["code"]
    record.write_text(json.dumps(said))
    assert app.run(["export", str(folder / "run")]) == 2
    assert "--allow-code FILE (the run does not record which" in capsys.readouterr().err
    record.write_text(json.dumps({**said, "code": None}))
    assert app.run(["export", str(folder / "run"), "--allow-code", str(folder / "its_own.py")]) == 2
    assert "trained without code of its own" in capsys.readouterr().err
    assert not (trained / "marker").exists()
    record.write_text(json.dumps(said))
    assert app.run(["export", str(folder / "run"), "--allow-code", str(folder / "its_own.py")]) == 0
    assert "does not record with which code it was trained" in capsys.readouterr().err


def test_resuming_runs_the_command_lines_own_file_only(folder, trained, capsys):
    """--resume reads the folder's config to compare it, and runs nothing that it names."""
    config = yaml.safe_load((folder / "run" / "config.yaml").read_text())
    mine = folder / "mine.yaml"
    mine.write_text(yaml.safe_dump({**config, "runs": str(folder), "model": {"name": "tiny", "width": 2}}))
    assert app.run(["train", str(mine), "--resume"]) == 2
    assert "was started with another configuration: model.name" in capsys.readouterr().err
    assert not (trained / "marker").exists()

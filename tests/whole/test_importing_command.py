"""`cingulum import` as typed: what it prints, its exit codes, and signals."""

from __future__ import annotations

import csv
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from io import TextIOWrapper
from pathlib import Path
from typing import TextIO

import numpy as np
import psutil
import pytest
import typer
from made_images import MIRRORED, affine, bids, head, image_of, nifti, written
from typer.testing import CliRunner
from wording import fails_with

from cingulum.cli.from_model import with_options
from cingulum.cli.import_ import import_images
from trainer.data.shards.shards import ShardSet
from trainer.errors import CingulumError, CohortError, ConfigError, ShardError

app = typer.Typer()
app.command("import")(with_options(import_images))


def invoke(*arguments: object, **options):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], **options)


def test_it_imports_and_says_what_it_did(tmp_path):
    root = bids(tmp_path / "b", 4)
    done = invoke(root, tmp_path / "set", "--size", 16, "--workers", 1)
    assert done.exit_code == 0, done.output
    assert "4 volumes (AD 2, NC 2)" in done.stdout
    assert "qc.html" in done.stdout
    assert "is already done" in invoke(root, tmp_path / "set", "--size", 16).stdout
    shards = ShardSet.open(tmp_path / "set")
    assert (shards.shape, shards.voxel_size) == ((16, 16, 16, 1), (12.0, 12.0, 12.0))


def test_json_is_all_that_standard_output_holds(tmp_path):
    root = bids(tmp_path / "b", 4)
    image_of(root, 2).write_bytes(b"")
    done = invoke(root, tmp_path / "set", "--size=16", "--workers=1", "--on-error=skip", "--json")
    told = json.loads(done.stdout)
    assert (told["volumes"], told["classes"]) == (3, {"AD": 1, "NC": 2})
    assert told["left_out"][0]["findings"][0]["code"] == "empty-file"
    assert told["content_hash"] == ShardSet.open(tmp_path / "set").content_hash


def test_a_dry_run_names_bad_images_and_writes_nothing(tmp_path):
    root = bids(tmp_path / "b", 4)
    image_of(root, 2).write_bytes(b"")
    done = invoke(root, tmp_path / "set", "--size=16", "--workers=1", "--dry-run", "--on-error=skip")
    assert done.exit_code == 0
    assert "3 images can be imported (AD 1, NC 2), 1 cannot" in done.stdout
    assert "sub-02/anat/sub-02_T1w.nii.gz: is empty (0 bytes)" in done.stdout
    assert not (tmp_path / "set").exists()


def _finished(root: Path, target: Path, *options: str) -> None:
    assert invoke(root, target, "--size=16", "--workers=1", *options).exit_code == 0


def _locked(root: Path, target: Path) -> TextIO:
    (target / ".import").mkdir(parents=True)
    lock = (target / ".import" / "lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


# What is there before, and the options: the rehearsal ends as the import that follows it.
REHEARSED: dict[str, tuple[Callable[[Path, Path], object], list[str]]] = {
    "all is well": (lambda root, target: None, []),
    "a bad image": (lambda root, target: image_of(root, 2).write_bytes(b""), []),
    "a bad image left out": (lambda root, target: image_of(root, 2).write_bytes(b""), ["--on-error=skip"]),
    "one class left": (
        lambda root, target: [image_of(root, n).write_bytes(b"") for n in (0, 2)],
        ["--on-error=skip"],
    ),
    "already done": (_finished, []),
    "done with another size": (_finished, ["--size=24"]),
    "done with another size, to be replaced": (_finished, ["--size=24", "--overwrite"]),
    "something else is there": (lambda root, target: target.mkdir() or (target / "x").touch(), []),
    "something else to overwrite": (
        lambda root, target: target.mkdir() or (target / "x").touch(),
        ["--overwrite"],
    ),
    "a file is there": (lambda root, target: target.touch(), []),
    "a file above": (lambda root, target: target.parent.touch(), []),
    "bricks too large": (lambda root, target: None, ["--bricks=16"]),
    "another import at work": (_locked, []),
    "nothing to choose a codec by": (
        lambda root, target: [image_of(root, n).write_bytes(b"") for n in range(4)],
        ["--codec=auto", "--on-error=skip"],
    ),
}


@pytest.mark.parametrize("case", REHEARSED)
def test_a_dry_run_ends_as_the_import_does(tmp_path, case):
    prepare, options = REHEARSED[case]
    root = bids(tmp_path / "b", 4)
    target = (tmp_path / "above" if case == "a file above" else tmp_path) / "set"
    held = prepare(root, target)
    before = _tree(tmp_path)
    command = [root, target, "--size=16", "--workers=1", *options]
    rehearsed = invoke(*command, "--dry-run")
    assert _tree(tmp_path) == before
    done = invoke(*command)
    if isinstance(held, TextIOWrapper):
        held.close()
    assert type(rehearsed.exception) is type(done.exception)
    assert rehearsed.exit_code == done.exit_code
    if isinstance(done.exception, CingulumError):
        assert rehearsed.exception.exit_code == 2
    # Before it chooses a codec, the import has not seen what is wrong with each image.
    if isinstance(done.exception, CingulumError) and "--codec=auto" not in options:
        assert rehearsed.exception.message == done.exception.message
    assert ("is already done" in rehearsed.stdout) == ("is already done" in done.stdout)


def _tree(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_a_target_whose_name_is_not_utf8_is_refused_before_anything_is_written(tmp_path):
    root = bids(tmp_path / "b", 2)
    target = tmp_path / os.fsdecode(b"caf\xe9")
    error = invoke(root, target, "--size=16", "--workers=1").exception
    assert isinstance(error, ShardError)
    assert r"caf\xe9" in error.message
    assert not target.exists()


def test_files_of_other_formats_are_told_also_where_the_import_fails(tmp_path):
    root = bids(tmp_path / "b", 4)
    image_of(root, 2).write_bytes(b"")
    (image_of(root, 0).parent / "x.mha").write_bytes(b"x")
    for options in (["--dry-run"], [], ["--on-error=skip"]):
        done = invoke(root, tmp_path / "set", "--size=16", "--workers=1", *options)
        assert done.stderr.count("1 file of MetaImage (.mha, .mhd) is not read") == 1


def test_equal_warnings_are_one_line_with_a_count_and_three_names(tmp_path):
    root = bids(tmp_path / "b", 6)
    for number in range(5):
        nifti(image_of(root, number), seed=number, data=head((20, 24, 22), number)[:, :, 4:8])
    done = invoke(root, tmp_path / "set", "--size=16", "--workers=1")
    assert done.exit_code == 0
    (line,) = [line for line in done.stderr.splitlines() if "covers only" in line]
    names = ", ".join(f"sub-0{n}/anat/sub-0{n}_T1w.nii.gz" for n in range(3))
    assert line.startswith(f"warning: small-extent, 5 images ({names}, ...): covers only 32 mm")
    rows = list(csv.DictReader((tmp_path / "set" / "qc.csv").read_text().splitlines()))
    assert sum("small-extent" in row["findings"] for row in rows) == 5


def contradicting(root: Path) -> Path:
    """Write a cohort of which one image has left and right exchanged in its qform."""
    bids(root, 4)
    written(image_of(root, 1), data=head(seed=1), qform=MIRRORED)
    return root


def test_transforms_that_contradict_each_other_are_told_everywhere_and_chosen_by_an_option(tmp_path):
    root = contradicting(tmp_path / "b")
    done = invoke(root, tmp_path / "set", "--size=16", "--workers=1")
    assert done.exit_code == 0
    [line] = [line for line in done.stderr.splitlines() if "contradict each other" in line]
    assert line.startswith("warning: ") and "sub-01" in line and "left and right exchanged" in line
    rows = list(csv.DictReader((tmp_path / "set" / "qc.csv").read_text().splitlines()))
    assert [row["xform"] for row in rows] == ["sform"] * 4
    assert ["xform" in row["findings"].split() for row in rows] == [False, True, False, False]
    assert "contradict each other" in rows[1]["messages"] and "--xform qform" in rows[1]["cures"]
    assert "contradict each other" in (tmp_path / "set" / "qc.html").read_text()
    assert "xform" not in ShardSet.open(tmp_path / "set").preprocessing

    written(image_of(root, 0), sform=np.diag([-1.0, 1, 1, 1]) @ affine(), qform_code=0)
    other = invoke(root, tmp_path / "other", "--size=16", "--workers=1", "--xform=qform")
    assert "transform" not in other.stderr and "contradict each other" not in other.stderr
    rows = list(csv.DictReader((tmp_path / "other" / "qc.csv").read_text().splitlines()))
    assert [row["xform"] for row in rows] == ["sform", "qform", "sform", "sform"]
    assert rows[1]["messages"] == rows[2]["messages"]
    assert rows[0]["findings"].split().count("xform") == 1
    shards = ShardSet.open(tmp_path / "other")
    assert shards.preprocessing["xform"] == "qform"
    assert not np.array_equal(shards.read(1), ShardSet.open(tmp_path / "set").read(1))


def test_another_transform_is_another_import(tmp_path):
    root = contradicting(tmp_path / "b")
    assert invoke(root, tmp_path / "set", "--size=16", "--workers=1").exit_code == 0
    with fails_with(ShardError):
        invoke(root, tmp_path / "set", "--size=16", "--workers=1", "--xform=qform", catch_exceptions=False)
    again = invoke(root, tmp_path / "set", "--size=16", "--workers=1", "--xform=qform", "--overwrite")
    assert again.exit_code == 0
    assert "is already done" in invoke(root, tmp_path / "set", "--size=16", "--xform=qform").stdout


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        (["--size=4"], ConfigError),
        (["--spacing=0"], ConfigError),
        (["--size=1000"], ConfigError),
        (["--label=nothing"], CohortError),
        (["--contrast=T2w"], CohortError),
        (["--labels=nowhere.csv"], CohortError),
        (["--classes=AD"], CohortError),
        (["--classes=AX,NC"], CohortError),
    ],
)
def test_an_impossible_option_is_named_and_nothing_written(tmp_path, options, kind):
    root = bids(tmp_path / "b", 2)
    error = invoke(root, tmp_path / "set", "--workers=1", *options).exception
    assert isinstance(error, kind)
    assert error.exit_code == 2
    assert error.cure
    with pytest.raises(ShardError):
        ShardSet.open(tmp_path / "set")


_COMMAND = """
import sys, time
import trainer.data.importing.import_work as import_work
examine = import_work.examine
def slow(task):
    time.sleep(0.1)
    return examine(task)
import_work.examine = slow
import cingulum.cli.app
if __name__ == "__main__":
    cingulum.cli.app.main()
"""


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 75), (signal.SIGUSR2, 75), (signal.SIGINT, 130)]
)
def test_a_signal_stops_it_and_the_same_command_goes_on(tmp_path, number, code):
    root, target, script = bids(tmp_path / "b", 8), tmp_path / "set", tmp_path / "command.py"
    script.write_text(_COMMAND)
    line = [str(root), str(target), "--size=16", "--workers=1", "--volumes-per-shard=2"]
    process = subprocess.Popen(
        [sys.executable, str(script), "import", *line], stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not (target / ".import" / "shard-00000.json").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(number)
    _, said = process.communicate(timeout=30)
    assert process.returncode == code
    assert "Traceback" not in said
    if number != signal.SIGINT:
        assert "goes on where it stopped" in said
    done = invoke(*line)
    assert done.exit_code == 0
    assert "kept from before" in done.stdout
    assert len(ShardSet.open(target)) == 8


def test_an_impatient_ctrl_c_ends_the_import_and_all_its_workers(tmp_path):
    root, target, script = bids(tmp_path / "b", 8), tmp_path / "set", tmp_path / "command.py"
    # Workers that take their time to end, so that the second Ctrl-C meets the clearing up.
    busy = "with held_back(signal.SIGTERM): time.sleep(0.5)"
    imports = "import signal; from trainer.data.workers import held_back\n"
    script.write_text(imports + _COMMAND.replace("time.sleep(0.1)", busy))
    line = [str(root), str(target), "--size=16", "--workers=2", "--volumes-per-shard=2"]
    process = subprocess.Popen(
        [sys.executable, str(script), "import", *line],
        start_new_session=True, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not (target / ".import" / "shard-00000.json").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    workers = psutil.Process(process.pid).children(recursive=True)
    assert len(workers) >= 2
    for _ in range(2):
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the parent and its workers alike
        time.sleep(0.02)
    try:
        _, said = process.communicate(timeout=10)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "Traceback" not in said
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert alive == []
    done = invoke(*line)
    assert done.exit_code == 0
    assert "kept from before" in done.stdout


def test_its_help_loads_no_library_that_is_slow():
    text = "import sys, cingulum.cli.import_; print({'numpy', 'nibabel', 'h5py'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def converters(root: Path) -> Path:
    """Two subjects of two sessions each: 01 is NC and then AD, the age of one session is not known."""
    rows = ["image,subject,session,diagnosis,age"]
    for subject, labels in (("01", ("NC", "AD")), ("02", ("AD", "AD"))):
        for number, label in enumerate(labels):
            name = nifti(root / f"{subject}_{number}.nii", seed=int(subject) * 10 + number).name
            rows.append(f"{name},{subject},M{12 * number:02d},{label},{'' if name == '02_1.nii' else 60}")
    (root / "t.csv").write_text("\n".join(rows) + "\n")
    return root / "t.csv"


def test_changing_labels_are_told_kept_with_the_set_and_part_of_its_settings(tmp_path):
    table, options = converters(tmp_path), ("--size=16", "--workers=1")
    done = invoke(table, tmp_path / "set", *options)
    assert done.exit_code == 0, done.output
    assert "4 volumes (AD 3, NC 1)" in done.stdout
    shown = " ".join(done.output.split())
    assert (
        "1 of 2 subjects have sessions of different labels (diagnosis): 01 (NC at M00, AD at M12)." in shown
    )
    assert "1 of 4 images have no age: 02 M12." in shown
    sheet = json.loads((tmp_path / "set" / "qc.json").read_text())
    assert sheet["label_changes"] == {"01": ["NC at M00", "AD at M12"]}
    assert "NC at M00" in (tmp_path / "set" / "qc.html").read_text()
    assert (
        json.loads((tmp_path / "set" / "import.json").read_text())["label_changes"] == sheet["label_changes"]
    )

    again = invoke(table, tmp_path / "set", *options, "--label-change=first")
    assert "label_change None (now 'first')" in str(again.exception)
    first = invoke(table, tmp_path / "set", *options, "--label-change=first", "--overwrite")
    assert "4 volumes (AD 2, NC 2)" in first.stdout
    assert "is already done" in invoke(table, tmp_path / "set", *options, "--label-change=first").stdout
    refused = invoke(table, tmp_path / "other", *options, "--label-change=error")
    assert isinstance(refused.exception, CohortError)
    assert not (tmp_path / "other").exists()

"""`--codec auto` picks what is read fastest here, says why, and stays with it."""

from __future__ import annotations

import errno
import json

import numpy as np
import pytest
import typer
from made_images import bids, image_of
from shard_sets import volume_of
from typer.testing import CliRunner
from wording import fails_with

from cingulum.cli.data import inspect_shards
from cingulum.cli.from_model import with_options
from cingulum.cli.import_ import import_images
from trainer.data.images.preprocess import Recipe, prepare
from trainer.data.importing import codec_choice
from trainer.data.importing.codec_choice import MeasuredCodec, choose, disk_speed, pick
from trainer.data.importing.import_request import ImportRequest
from trainer.data.importing.importing import run
from trainer.data.shards import codecs, stored_types
from trainer.data.shards.layout import StorageLayout
from trainer.data.shards.shards import ShardSet
from trainer.data.shards.verify import verify
from trainer.errors import CingulumError, CohortError, ShardError

app = typer.Typer()
app.command("import")(with_options(import_images))


def invoke(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def request(source, target, **others) -> ImportRequest:
    given = {"size": 16, "workers": 1, "codec": "auto", **others}
    return ImportRequest(source=source, target=target, volumes_per_shard=2, **given)


@pytest.fixture(scope="module")
def cohort(tmp_path_factory):
    return bids(tmp_path_factory.mktemp("cohort") / "cohort", 5)


@pytest.fixture
def fast_disk(monkeypatch):
    monkeypatch.setattr(codec_choice, "DISK_BYTES", 1 << 20)
    monkeypatch.setattr(codec_choice, "disk_speed", lambda folder: 1e9)


def test_the_slower_of_disk_and_decoding_counts():
    rows = [
        MeasuredCodec("a", 400, 4.0, 1.0),
        MeasuredCodec("b", 100, 1.0, 3.0),
        MeasuredCodec("c", 200, 2.0, 1.5),
    ]
    assert [round(row.volumes_per_s, 3) for row in rows] == [0.25, 0.333, 0.5]
    assert [row.bound_by for row in rows] == ["the disk", "decoding", "the disk"]
    assert pick(rows).codec == "c"


def test_of_codecs_as_fast_as_each_other_the_smallest_is_taken():
    rows = [
        MeasuredCodec("a", 400, 1.0, 1.0),
        MeasuredCodec("b", 100, 1.04, 1.0),
        MeasuredCodec("c", 50, 1.06, 1.0),
    ]
    assert pick(rows).codec == "b"


@pytest.mark.parametrize("bricks", [None, 4])
def test_a_slow_disk_wants_small_volumes_and_a_fast_one_quick_decoding(monkeypatch, tmp_path, bricks):
    shape = (12, 12, 12, 1)
    arrays = [volume_of(row, shape) for row in range(3)]
    layout = StorageLayout(shape, stored_types.stored_dtype("float16"), "gzip", bricks)
    monkeypatch.setattr(codec_choice, "disk_speed", lambda folder: 1.0)
    slow = choose(arrays, layout, tmp_path, threads=2)
    sizes = {row.codec: row.stored_bytes for row in slow.measured}
    assert set(sizes) == set(codecs.CODECS)
    assert sizes["none"] == (12**3 * 2)
    assert slow.codec == min(sizes, key=sizes.get)
    assert "bound by the disk" in slow.why
    assert (slow.threads, slow.volumes) == (2, 3)
    monkeypatch.setattr(codec_choice, "disk_speed", lambda folder: 1e30)
    times = iter([3.0, 5.0, 1.0, 2.0, 4.0])
    monkeypatch.setattr(codec_choice, "seconds_each", lambda work, threads: next(times))
    quick = choose(arrays, layout, tmp_path, threads=2)
    assert quick.codec == codecs.CODECS[2]
    assert "bound by decoding" in quick.why
    assert json.loads(json.dumps(quick.to_json()))["codec"] == quick.codec


@pytest.mark.parametrize("dtype", stored_types.STORED_TYPES)
def test_every_type_can_be_measured(monkeypatch, tmp_path, dtype):
    monkeypatch.setattr(codec_choice, "disk_speed", lambda folder: 1e9)
    given = volume_of(0, dtype="float16" if dtype == "float16" else "float32")
    choice = choose(
        [given], StorageLayout(given.shape, stored_types.stored_dtype(dtype), "none"), tmp_path, 1
    )
    assert choice.measured[0].stored_bytes == given.size * stored_types.stored_dtype(dtype).itemsize


def test_the_best_of_several_rounds_counts(monkeypatch):
    clock = iter([0.0, 8.0, 10.0, 14.0, 20.0, 26.0])
    monkeypatch.setattr(codec_choice.time, "perf_counter", lambda: next(clock))
    done: list[int] = []
    assert codec_choice.seconds_each(done.append, threads=2) == 4.0 / 8
    assert sorted(done) == sorted([*range(8)] * 3)


def test_measuring_the_disk_leaves_nothing_behind(tmp_path):
    assert 1e5 < disk_speed(tmp_path, 2 << 20) < 1e12
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_cannot_be_written_is_named_with_a_way_out(tmp_path):
    with fails_with(ShardError) as error:
        disk_speed(tmp_path / "nowhere")
    assert "--codec blosc-lz4" in error.value.cure


def test_a_full_disk_is_said_to_be_full(tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(codec_choice.os, "fsync", full)
    with fails_with(CingulumError) as error:
        disk_speed(tmp_path, 2 << 20)
    assert error.value.exit_code == 1
    assert list(tmp_path.iterdir()) == []


def test_a_choice_is_recorded_and_a_rerun_does_not_choose_anew(cohort, tmp_path, monkeypatch, fast_disk):
    monkeypatch.setattr(codec_choice, "pick", lambda rows: rows[-1])
    target = tmp_path / "set"
    result = run(request(cohort, target))
    assert result.codec == codecs.CODECS[-1] == ShardSet.open(target).codec
    assert result.codec_choice["codec"] == result.codec
    assert result.codec_choice["why"].startswith(f"{result.codec}: ")
    assert json.loads((target / "import.json").read_text())["codec_choice"] == result.codec_choice
    monkeypatch.setattr(codec_choice, "pick", lambda rows: rows[0])
    again = run(request(cohort, target))
    assert (again.already_done, again.codec, again.codec_choice) == (True, result.codec, result.codec_choice)
    anew = run(request(cohort, target, overwrite=True))
    assert (anew.already_done, anew.codec) == (False, "none")


class Stop(BaseException):
    pass


@pytest.mark.parametrize("stop_after", [0, 3])
def test_a_stopped_import_goes_on_with_the_codec_that_it_chose(
    cohort, tmp_path, monkeypatch, fast_disk, stop_after
):
    def stop(progress):
        if progress.done > stop_after:
            raise Stop

    monkeypatch.setattr(codec_choice, "pick", lambda rows: rows[1])
    with pytest.raises(Stop):
        run(request(cohort, tmp_path / "set"), stop)
    monkeypatch.setattr(codec_choice, "pick", lambda rows: rows[0])
    result = run(request(cohort, tmp_path / "set"))
    assert (result.codec, result.kept) == ("gzip", 2 if stop_after else 0)
    run(request(cohort, tmp_path / "named", codec="gzip"))
    for path in (tmp_path / "named").glob("*"):
        if path.name != "import.json":
            assert (tmp_path / "set" / path.name).read_bytes() == path.read_bytes()


def test_a_set_whose_codec_was_named_is_another_request(cohort, tmp_path, fast_disk):
    run(request(cohort, tmp_path / "set", codec="gzip"))
    with fails_with(ShardError):
        run(request(cohort, tmp_path / "set"))


def test_without_a_usable_image_nothing_can_be_chosen(tmp_path, fast_disk):
    root = bids(tmp_path / "b", 2)
    for number in (0, 1):
        image_of(root, number).write_bytes(b"")
    with fails_with(CohortError) as error:
        run(request(root, tmp_path / "set"))
    assert "--dry-run" in error.value.cure
    assert not (tmp_path / "set").exists()


def test_as_typed_it_prints_a_table_and_one_line_that_says_why(cohort, tmp_path, fast_disk):
    done = invoke(cohort, tmp_path / "set", "--size", 16, "--workers", 1, "--codec", "auto")
    assert done.exit_code == 0, done.output
    codec = ShardSet.open(tmp_path / "set").codec
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("codec ")]
    assert line.startswith(f"codec {codec}: ")
    assert "volumes/s, bound by" in line
    assert all(name in done.stdout for name in codecs.CODECS)
    again = invoke(cohort, tmp_path / "set", "--size", 16, "--codec", "auto", "--json")
    told = json.loads(again.stdout)
    assert (told["codec"], told["codec_choice"]["codec"]) == (codec, codec)
    assert len(told["codec_choice"]["measured"]) == len(codecs.CODECS)


def test_a_named_codec_is_not_measured(cohort, tmp_path, monkeypatch):
    monkeypatch.setattr(codec_choice, "choose", None)
    told = json.loads(invoke(cohort, tmp_path / "set", "--size", 16, "--workers", 1, "--json").stdout)
    assert (told["codec"], told["codec_choice"]) == ("blosc-lz4", None)


@pytest.mark.parametrize("dtype", ["bfloat16", "int16"])
def test_an_import_in_bricks_holds_what_prepare_makes_whatever_the_workers(cohort, tmp_path, dtype, capsys):
    for workers in (1, 2):
        done = invoke(
            cohort, tmp_path / str(workers), "--size=16", f"--workers={workers}", f"--dtype={dtype}",
            "--bricks=8", "--codec=blosc-zstd-bit",
        )  # fmt: skip
        assert done.exit_code == 0, done.output
    for path in (tmp_path / "1").iterdir():
        assert path.read_bytes() == (tmp_path / "2" / path.name).read_bytes()
    shards = ShardSet.open(tmp_path / "1")
    recipe = Recipe.of_size(16, dtype=dtype)
    for volume in shards.volumes:
        assert np.array_equal(shards.read(volume.id), prepare(cohort / volume.source, recipe).array)
    assert verify(tmp_path / "1") == []
    assert json.loads((tmp_path / "1" / "import.json").read_text())["request"]["bricks"] == 8
    inspect_shards(tmp_path / "1")
    shown = capsys.readouterr().out
    assert "bricks of 8 voxels" in shown
    assert "blosc-zstd-bit" in shown
    assert f", {dtype}" in shown
    ratio = len(shards) * 16**3 * 2 / sum(volume.nbytes for volume in shards.volumes)
    assert f"({ratio:.2f} : 1)" in shown
    other = invoke(cohort, tmp_path / "1", "--size=16", f"--dtype={dtype}", "--codec=blosc-zstd-bit")
    assert isinstance(other.exception, ShardError)
    assert "bricks 8 (now None)" in other.exception.message


def test_bricks_as_large_as_volumes_are_refused_before_anything_is_written(cohort, tmp_path):
    done = invoke(cohort, tmp_path / "set", "--size", 16, "--bricks", 16)
    assert isinstance(done.exception, ShardError)
    assert "bricks of 16 voxels" in done.exception.message
    assert not (tmp_path / "set").exists()

"""`cingulum verify` finds every damaged byte and names whose volume it is; `cingulum inspect` counts."""

from __future__ import annotations

import dataclasses
import json
import os

import pytest
from shard_sets import META, SHAPE, flip_byte, make_mapped_set, make_shard_set, meta_of, volume_of
from test_shards import rewrite_index
from typer.testing import CliRunner
from wording import fails_with

from cingulum.cli.data import inspect_shards, verify_shards
from trainer.data.shards import codecs, shard_image
from trainer.data.shards.shard_writer import ShardWriter
from trainer.data.shards.shards import ShardSet
from trainer.data.shards.summary import summary
from trainer.data.shards.verify import ShardFault, verify
from trainer.errors import ShardError


@pytest.mark.parametrize("codec", codecs.CODECS)
def test_an_undamaged_set_has_no_problems(tmp_path, codec):
    make_shard_set(tmp_path, codec=codec)
    progress = []
    assert verify(tmp_path, lambda done, total: progress.append((done, total))) == []
    assert progress == [(done, 10) for done in range(1, 11)]


def test_a_damaged_volume_is_named_with_its_subject(tmp_path):
    volume = make_shard_set(tmp_path).volumes[7]
    flip_byte(tmp_path / volume.shard, volume.offset + 3)
    assert verify(tmp_path) == [ShardFault("shard-00001.h5", "its checksum does not match", 7, "sub-07")]


def test_every_byte_counts(tmp_path):
    make_shard_set(tmp_path, 2, per_shard=2)
    path = tmp_path / "shard-00000.h5"
    good = path.read_bytes()
    for offset in range(0, len(good), 101):
        path.write_bytes(good)
        flip_byte(path, offset)
        assert verify(tmp_path), offset


def test_damage_outside_the_volumes_is_told_apart(tmp_path):
    make_shard_set(tmp_path)
    flip_byte(tmp_path / "shard-00002.h5", 9)
    (problem,) = verify(tmp_path)
    assert (problem.shard, problem.volume) == ("shard-00002.h5", None)
    assert "outside its volumes" in problem.what


@pytest.mark.parametrize("key", ["xxh3", "map_xxh3"])
def test_an_xxh3_that_is_not_that_of_the_chunk_is_a_problem(tmp_path, key):
    make_mapped_set(tmp_path)
    rewrite_index(tmp_path, lambda index: index["volumes"][3].update({key: "0" * 16}), sign=True)
    (problem,) = verify(tmp_path)
    assert (problem.volume, problem.subject) == (3, "sub-03")
    of_map = "label map: " if key == "map_xxh3" else ""
    assert problem.what == of_map + "its XXH3 does not match"


def test_all_damage_is_listed_not_only_the_first(tmp_path):
    shards = make_shard_set(tmp_path, 12, per_shard=3)
    flip_byte(tmp_path / "shard-00000.h5", shards.volumes[0].offset)
    flip_byte(tmp_path / "shard-00000.h5", shards.volumes[2].offset)
    (tmp_path / "shard-00001.h5").unlink()
    last = shards.volumes[8]
    os.truncate(tmp_path / "shard-00002.h5", last.offset + 1)
    found = [str(problem) for problem in verify(tmp_path)]
    assert found[:3] == [
        "shard-00000.h5: volume 0 (subject sub-00): its checksum does not match",
        "shard-00000.h5: volume 2 (subject sub-02): its checksum does not match",
        "shard-00001.h5: is missing",
    ]
    assert found[3].startswith(f"shard-00002.h5: has {last.offset + 1} bytes, not ")
    assert found[4:] == ["shard-00002.h5: volume 8 (subject sub-08): the file ends too soon"]


def test_a_set_whose_hdf5_tells_another_subject_is_a_problem(tmp_path, monkeypatch):
    """Correct checksums over wrong content: only the reference reader can see it."""
    writer = ShardWriter(tmp_path, SHAPE, "float16", meta=META)
    build = shard_image.build

    def build_wrongly(content, *how):
        return build(dataclasses.replace(content, metas=[meta_of(5), *content.metas[1:]]), *how)

    monkeypatch.setattr(shard_image, "build", build_wrongly)
    writer.finish([writer.write_shard(0, [(volume_of(0), meta_of(0)), (volume_of(1), meta_of(1))])])
    (problem,) = verify(tmp_path)
    assert (problem.volume, problem.what) == (0, "its subject or label in the shard differs from the index")


def test_a_file_is_not_called_missing(tmp_path):
    (tmp_path / "file").touch()
    with fails_with(ShardError):
        verify(tmp_path / "file")


def test_without_an_index_there_is_nothing_to_verify(tmp_path):
    make_shard_set(tmp_path)
    (tmp_path / "index.json").unlink()
    with fails_with(ShardError):
        verify(tmp_path)


def test_the_verify_command_exits_2_with_a_line_per_problem(tmp_path, capsys):
    volume = make_shard_set(tmp_path).volumes[7]
    assert verify_shards(tmp_path) == 0
    assert "whole and undamaged" in capsys.readouterr().out
    flip_byte(tmp_path / volume.shard, volume.offset)
    assert verify_shards(tmp_path) == 2
    output = capsys.readouterr()
    assert output.out == "shard-00001.h5: volume 7 (subject sub-07): its checksum does not match\n"
    assert "--overwrite" in output.err
    assert verify_shards(tmp_path, as_json=True) == 2
    assert json.loads(capsys.readouterr().out) == {
        "path": str(tmp_path),
        "ok": False,
        "problems": [
            {
                "shard": "shard-00001.h5",
                "volume": 7,
                "subject": "sub-07",
                "what": "its checksum does not match",
            }
        ],
    }


def test_a_summary_counts_people_by_label(tmp_path):
    content = summary(make_shard_set(tmp_path, 9))
    assert content["labels"] == {
        "AD": {"volumes": 5, "subjects": 5, "sex": {"F": 5}, "age": {"mean": 64.0, "min": 60.0, "max": 68.0}},
        "NC": {"volumes": 4, "subjects": 4, "sex": {"M": 4}, "age": {"mean": 64.0, "min": 61.0, "max": 67.0}},
    }
    assert (content["volumes"], content["subjects"], content["shards"]) == (9, 9, 3)
    assert content["bytes"] == sum(path.stat().st_size for path in tmp_path.glob("*.h5"))
    assert content["bytes_decoded"] == 9 * 6 * 5 * 4 * 2
    assert [example["subject"] for example in content["examples"]] == [f"sub-0{i}" for i in range(5)]


def test_a_summary_shows_volumes_without_label_age_and_sex(tmp_path):
    writer = ShardWriter(tmp_path, SHAPE, "float16", meta=META)
    unknown = meta_of(0).__class__("x", "x.nii", "0" * 64, meta_of(0).affine)
    writer.finish([writer.write_shard(0, [(volume_of(0), unknown)])])
    shards = ShardSet.open(tmp_path)
    assert shards.labels == ()
    assert summary(shards)["labels"] == {
        "(none)": {"volumes": 1, "subjects": 1, "sex": {"unknown": 1}, "age": None}
    }
    inspect_shards(tmp_path)


def test_the_inspect_command_shows_what_matters(tmp_path, capsys):
    make_shard_set(tmp_path, 9)
    inspect_shards(tmp_path)
    shown = capsys.readouterr().out
    for fact in ("9 of 9 subjects, in 3 shards", "6 x 5 x 4 x 1", "float16", "blosc-lz4", "2 x 2 x 2.5 mm"):
        assert fact in shown
    for fact in ("method zscore", "diagnosis", "5 F", "64.0 (60-68)", "sub-03", "and 4 more"):
        assert fact in shown
    inspect_shards(tmp_path, as_json=True)
    assert json.loads(capsys.readouterr().out) == summary(ShardSet.open(tmp_path))


@pytest.mark.parametrize("command", [inspect_shards, verify_shards])
def test_the_help_has_an_example(command):
    import typer

    app = typer.Typer(rich_markup_mode=None)
    app.command()(command)
    shown = CliRunner().invoke(app, ["--help"])
    assert shown.exit_code == 0
    assert "shards/phantom" in shown.output
    assert "--json" in shown.output

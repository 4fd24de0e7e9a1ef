"""What programs are told of an error: its code and its objects, by --json and from rank to rank."""

from __future__ import annotations

import ast
import copy
import json
from pathlib import Path

import pytest
from shard_sets import flip_byte, make_shard_set

from cingulum.cli import app
from trainer import errors
from trainer.errors import CingulumError, ConfigError, FoldError, RunError, ShardError
from trainer.ranks.agreement import Agreed, agree


def with_json() -> list[list[str]]:
    """A failing command line of each command that has --json: a file is missing, or an option is wrong."""
    found, waiting = [], [([], app.command_line())]
    while waiting:
        words, command = waiting.pop()
        if hasattr(command, "commands"):
            waiting += [([*words, name], one) for name, one in command.commands.items()]
        elif any("--json" in option.opts for option in command.params):
            arguments = [one for one in command.params if one.param_type_name == "argument" and one.required]
            makes = words == ["phantom"]
            wrong = ["none/none.yaml" for _ in arguments]
            found.append([*words, *(wrong if wrong and not makes else ["--no-such-option"])])
    return sorted(found)


def classes(kind: type[CingulumError] = CingulumError) -> list[type[CingulumError]]:
    beneath = [one for one in kind.__subclasses__() if one.__module__ == errors.__name__]
    return [kind, *(found for one in beneath for found in classes(one))]


def last_line(text: str) -> dict:
    return json.loads(text.splitlines()[-1])["error"]


class Ranks:
    """Two ranks, of which the second failed."""

    rank, size, hosts = 0, 2, ("n1", "n2")

    def __init__(self, sent: list) -> None:
        self.sent = sent

    def allgather_object(self, mine: object) -> list:
        return [mine, self.sent]


def test_each_class_has_a_code_of_its_own():
    codes = [vars(kind)["code"] for kind in classes()]
    assert len(set(codes)) == len(codes) > 20
    assert all(code.replace("_", "").isupper() for code in codes)


@pytest.mark.parametrize("kind", classes())
def test_an_error_keeps_its_objects_on_its_way_between_processes(kind):
    error = kind("what.", cure="Mend it.")
    error.path, error.key, error.rank = "a/b", "train.seed", 3
    came = copy.copy(error)  # by `__reduce__`, as pickle does
    assert type(came) is kind and (came.message, came.cure) == ("what.", "Mend it.")
    assert came.objects == {"path": "a/b", "key": "train.seed", "rank": 3}


def test_what_is_not_known_is_not_told():
    assert RunError("what.").objects == {}
    assert ShardError("what.", path="a", rank=0).objects == {"path": "a", "rank": 0}


def test_an_error_that_ranks_agree_on_names_the_rank_that_failed():
    sent = ["ShardError", "a: is damaged.", None, {"path": "a"}]
    with pytest.raises(Agreed) as agreed:
        agree(Ranks(sent), lambda: None)
    error = agreed.value.error
    assert type(error) is ShardError and error.objects == {"path": "a", "rank": 1}
    assert error.message == "[rank 1 @ n2] a: is damaged."


def test_a_damaged_shard_set_is_told_as_an_object(tmp_path, capsys):
    make_shard_set(tmp_path / "set")
    index = tmp_path / "set" / "index.json"
    index.write_text(index.read_text()[:-20])
    assert app.run(["verify", str(tmp_path / "set"), "--json"]) == 2
    said = capsys.readouterr()
    error = last_line(said.out)
    assert (error["code"], error["path"]) == ("SHARD_DAMAGED", str(index))
    assert error["message"] in said.err and error["cure"] in said.err


def test_without_json_nothing_is_on_standard_output(tmp_path, capsys):
    assert app.run(["verify", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().out == ""


def test_a_volume_that_changed_is_damage_and_names_its_file(tmp_path):
    shards = make_shard_set(tmp_path)
    volume = shards.volumes[1]
    flip_byte(tmp_path / volume.shard, volume.offset + volume.nbytes // 2)
    with pytest.raises(errors.DamagedShardError) as damaged:
        shards.read(1)
    assert damaged.value.objects == {"path": str(tmp_path / volume.shard)}


def test_a_configuration_that_is_wrong_names_its_file_and_its_key(tmp_path, capsys):
    path = tmp_path / "run.yaml"
    path.write_text("{name: r, data: {shards: s}, train: {epochs: 0, seeed: 1}}")
    assert app.run(["train", str(path), "--json", "--dry-run"]) == 2
    error = last_line(capsys.readouterr().out)
    assert (error["code"], error["path"], error["key"]) == ("CONFIG_INVALID", str(path), "train.epochs")
    path.write_text("{name: r, data: {shards: s}}")
    assert app.run(["train", str(path), "train.seed=-1", "--json", "--dry-run"]) == 2
    error = last_line(capsys.readouterr().out)
    assert error["key"] == "train.seed" and "path" not in error  # the command line is wrong, not the file


def test_a_command_line_that_is_not_understood_is_told_as_an_object(capsys):
    assert app.run(["verify", "a", "--json", "--no-such-option"]) == 2
    said = capsys.readouterr()
    error = last_line(said.out)
    assert error["code"] == "USAGE" and "--no-such-option" in error["message"]
    assert "Usage:" in said.err and "Usage:" not in said.out


def test_a_file_that_the_system_refuses_is_named(tmp_path):
    with pytest.raises(FileNotFoundError) as refused:
        (tmp_path / "none").read_text()
    error = errors.of_files(refused.value)
    assert (error.code, error.objects) == ("INPUT_UNUSABLE", {"path": str(tmp_path / "none")})


def test_the_exit_code_of_a_fold_is_that_of_its_training():
    assert FoldError("fold 1 failed.", exit_code=3).exit_code == 3
    assert ConfigError("what.").exit_code == 2


def without_objects(source: str) -> list[str]:
    """The errors about a file or folder, `{path}: ...`, that are raised without their path."""
    found = []
    for call in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and node.args):
        kind, message = getattr(call.func, "id", ""), call.args[0]
        starts = isinstance(message, ast.JoinedStr) and isinstance(message.values[0], ast.FormattedValue)
        if starts and kind in OF_FILES and "path" not in {keyword.arg for keyword in call.keywords}:
            found.append(ast.unparse(call))
    return found


OF_FILES = ("RunError", "ShardError", "ScratchError", "LeakError", "Fenced")
ROOMS = ("crossval", "explain", "export", "inference", "leases", "metrics", "models", "run_folder", "runs")


@pytest.mark.parametrize("room", ROOMS)
def test_an_error_about_a_file_or_folder_has_its_path(room):
    files = sorted((Path(errors.__file__).parent / room).glob("*.py"))
    assert len(files) > 2 and [one for file in files for one in without_objects(file.read_text())] == []


@pytest.mark.parametrize("command", with_json(), ids=" ".join)
def test_each_command_with_json_tells_its_failure_as_an_object(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code = app.run([*command, "--json"])
    error = last_line(capsys.readouterr().out)
    assert code in (1, 2) and error["code"] and error["message"]


def test_a_relative_path_that_is_not_there_is_told_with_the_place_where_it_was_looked_for(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    said = errors.as_text(
        errors.RunError("runs/none: there is no such run.", cure="Make one.", path="runs/none")
    )
    assert said.splitlines()[2] == f"  Looked for: {tmp_path}/runs/none"
    (tmp_path / "there").touch()
    for path in ("there", tmp_path / "none", None):
        assert "Looked for" not in errors.as_text(errors.RunError("there is no such run.", path=path))

"""Configurations and site profiles as files that nobody should be able to hurt us with."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest
from wording import fails_with

from jobs.schedulers import site_profiles
from trainer import config
from trainer.errors import ConfigError, JobError, RunError
from trainer.report import story
from trainer.run_folder.record import RunFolder, load_config

HEAD = "name: a\ndata: {shards: s}\n"
LAUGHS = (
    HEAD
    + "model:\n  options:\n    a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]\n"
    + "".join(f"    a{n}: &a{n} [" + ", ".join([f"*a{n - 1}"] * 9) + "]\n" for n in range(1, 9))
)

# What is in the file, and what is said of it.
BAD = {
    "brackets": (HEAD + "model: {options: " + "[" * 5000 + "]" * 5000 + "}\n", "line 3: .*32 deep"),
    "brackets that never close": ("[" * 100_000, "line 1: .*32 deep"),
    "indented lists": ("- " * 5000 + "a", "line 1: .*32 deep"),
    "a billion laughs": (LAUGHS, r"line \d+: more than 10,000 values"),
    "an alias of itself": (HEAD + "model: {options: &a {b: *a}}\n", r"line 3: the alias \*a stands for"),
    "an unknown alias": (HEAD + "model: *a\n", "is not YAML: line 3, column 8: found undefined alias 'a'"),
    "a text repeated": (
        HEAD + f"model:\n  options:\n    a: &a {'x' * 500_000}\n    b: [{'*a, ' * 500}]\n",
        "more than 10,000 values",
    ),
    "a key twice": (HEAD + "name: b\n", "line 3: the key 'name' is there twice, in line 1 and in line 3"),
    "a section twice": (
        HEAD + "train: {epochs: 1}\nmodel: {}\ntrain: {epochs: 2}\n",
        "'train' .* in line 3 and in line 5",
    ),
    "a key of a section twice": (
        HEAD + "train:\n  schedule:\n    final: 0.1\n    final: 0.2\n",
        "'final' .* in line 5 and in line 6",
    ),
    "a key twice in a line": (HEAD + "train: {epochs: 1, epochs: 2}\n", "'epochs' .* line 3 and in line 3"),
    "a list as a key": (HEAD + "? [a]\n: b\n", "line 3: a key is a word"),
    "a tag": (HEAD + "model: !!python/name:os.system\n", "line 3: the tag .* is not taken"),
    "a number of 5,000 digits": (HEAD + f"train: {{seed: {'9' * 5000}}}", "line 3: a number of 5000 digits"),
    "half a number": (HEAD + "train: {seed: 0x_}", "line 3: 0x_ is no number"),
    "base 60": (HEAD + f"train: {{seed: 1{':59' * 50_000}}}", "line 3: a number of 150001 digits"),
    "a character that no text has": (HEAD + "model: \x07\n", r"line 3: a character .* \(U\+0007\)"),
    "two documents": (HEAD + "---\n" + HEAD, "is not YAML: line 3"),
    "a large file": (HEAD + "#" * 2**21, "is larger than 1 MiB"),
    "a megabyte of unknown keys": (
        "".join(f"{'k' * 90}{n}: 1\n" for n in range(4_000)),
        r"unknown key(.|\n)*\nand \d+ more\.$",
    ),
    "a long value": (HEAD + f"train: {{epochs: {'x' * 900_000}}}", "train.epochs: must be a whole number"),
    "a long key": (HEAD + f"{'x' * 1000}: 1\n", "unknown key 'xxx"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_hostile_file_is_refused_at_once_in_a_few_lines(case, tmp_path):
    text, said = BAD[case]
    path = tmp_path / "a.yaml"
    path.write_text(text)
    began = time.process_time()
    with pytest.raises(ConfigError) as caught:
        config.load(path)
    assert time.process_time() - began < 5  # minutes, without bounds
    message = str(caught.value).replace(str(tmp_path) + "/", "")
    assert re.search(said, message)
    assert sum(1 + len(line) // 80 for line in message.splitlines()) <= 24
    assert "lol, lol" not in message
    assert len(message) < 2500


def test_site_profiles_and_changes_on_the_command_line_are_read_within_the_same_bounds(tmp_path):
    path = tmp_path / "site.yaml"
    for text, said in (BAD["brackets"], BAD["a billion laughs"], BAD["a section twice"]):
        path.write_text(text)
        with pytest.raises(JobError, match=said):
            site_profiles.load(str(path))
    with fails_with(ConfigError):
        config.parse(HEAD, ["model.options=" + "[" * 5000])
    with fails_with(ConfigError):
        config.parse(HEAD, ["model.options" + ".a" * 5000 + "=1"])
    with fails_with(ConfigError):
        config.parse(HEAD, ["model.options={a: 1, a: 2}"])


def test_the_configuration_of_a_run_folder_is_read_within_bounds(tmp_path):
    folder = RunFolder(tmp_path)
    folder.config.write_text(BAD["brackets"][0])
    with fails_with(RunError):
        load_config(folder)
    assert "config.yaml is damaged." in story.read(tmp_path).notes


# Each of these would be waited for, or read until memory ends, by a plain read.
ENDLESS = """
import sys
from pathlib import Path
from jobs.schedulers import site_profiles
from trainer import config
from trainer.errors import InputError
for path in sys.argv[1:]:
    for load in (config.load, lambda path: site_profiles.load(str(path))):
        try:
            load(Path(path))
        except InputError as error:
            print(error)
"""


def test_what_is_no_ordinary_file_is_named_and_never_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "binary.yaml").write_bytes(bytes(range(256)))
    (tmp_path / "zeros.yaml").symlink_to("/dev/zero")
    names = ("pipe", "folder", "binary", "zeros")
    done = subprocess.run(
        [sys.executable, "-c", ENDLESS, *(str(tmp_path / f"{name}.yaml") for name in names)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (2**32, 2**32)),
    )
    for name, why in zip(
        names, ("pipe or a device", "directory", "not UTF-8", "pipe or a device"), strict=True
    ):
        assert len(re.findall(rf"{name}\.yaml: cannot be read as a text file .*{why}", done.stdout)) == 2


def test_what_people_write_is_read_as_before(tmp_path):
    text = """
    base: &base {probability: 0.5}
    """
    with fails_with(ConfigError):
        config.parse(HEAD + text.replace("    ", ""))
    aliased = HEAD.replace("shards: s", "shards: s, augment: {blur: &b {probability: 0.5}, gamma: *b}")
    made = config.parse(aliased, ["data.augment.blur.probability=0.1"]).data.augment
    assert (made.blur.probability, made.gamma.probability) == (0.1, 0.5)  # not both
    merged = HEAD + "model:\n  options:\n    a: &a {x: 1, y: 2}\n    b: {<<: *a, y: 3}\n"
    assert config.parse(merged).model.options["b"] == {"x": 1, "y": 3}
    assert config.parse(HEAD, ["data.classes=[2001-01-01, 'NO']"]).data.classes == ("2001-01-01", "NO")
    assert config.parse(HEAD, ["data.augment.scale=1e-2"]).data.augment.scale == 0.01
    path = Path(tmp_path / "windows.yaml")
    path.write_bytes(b"\xef\xbb\xbf" + HEAD.replace("\n", "\r\n").encode())
    assert config.load(path).name == "a"

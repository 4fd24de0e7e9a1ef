"""The command line of one rank in a container."""

from __future__ import annotations

import csv

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from wording import fails_with

from jobs import containers
from trainer.errors import JobError

ARGV = ("cingulum", "train", "run.yaml")
text = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


def test_a_rank_runs_its_command_in_the_image() -> None:
    assert containers.wrap(ARGV, "/images/c.sif", ["/data"], 0, {}) == (
        *("apptainer", "exec", "--no-eval", "--no-home"),
        "--mount=type=bind,source=/data,destination=/data",
        "/images/c.sif",
        *ARGV,
    )


def test_the_driver_comes_in_with_gpus_only() -> None:
    assert "--nv" in containers.wrap(ARGV, "/c.sif", [], 4, {})
    assert "--nv" not in containers.wrap(ARGV, "/c.sif", [], 0, {})


def test_the_home_folder_is_seen_when_asked_for() -> None:
    assert "--no-home" not in containers.wrap(ARGV, "/c.sif", [], 0, {}, home=True)


def test_a_folder_to_be_read_is_no_folder_to_be_written() -> None:
    line = containers.wrap(ARGV, "/c.sif", ["/a", "/b"], 0, {}, readonly=["/b", "/a/x"])
    assert [word for word in line if word.startswith("--mount")] == [
        "--mount=type=bind,source=/a,destination=/a",
        "--mount=type=bind,source=/b,destination=/b,ro",
        "--mount=type=bind,source=/a/x,destination=/a/x,ro",
    ]


def test_options_of_the_site_come_after_ours_and_before_the_image() -> None:
    line = containers.wrap(ARGV, "/c.sif", ["/a"], 0, {}, folder="/a", options=["--bind=/scratch"])
    assert line[-6:] == ("--pwd=/a", "--bind=/scratch", "/c.sif", *ARGV)


def test_what_the_launcher_tells_a_rank_is_not_cleaned_away() -> None:
    line = containers.wrap(ARGV, "/c.sif", ["/data"], 1, {"A": "1"})
    assert not {"--cleanenv", "-e", "--contain", "-c", "--containall", "-C", "--pid", "--ipc"} & set(line)


def test_singularity_gets_variables_under_its_own_name() -> None:
    line = containers.wrap(ARGV, "/c.sif", [], 0, {"A": "1"}, program="singularity")
    assert line[:4] == ("env", "SINGULARITYENV_A=1", "singularity", "exec")


@given(path=text, value=text, word=text)
@example(path='a\nb "c", d', value="", word="")
def test_hostile_text_stays_in_its_own_word(path: str, value: str, word: str) -> None:
    line = containers.wrap(["cingulum", word], "/c.sif", ["/" + path], 0, {"A": value})
    assert line[:3] == ("env", f"APPTAINERENV_A={value}", "apptainer")
    assert line[-3:] == ("/c.sif", "cingulum", word)
    (fields,) = csv.reader([line[6].removeprefix("--mount=")], strict=True)
    assert fields == ["type=bind", f"source=/{path}", f"destination=/{path}"]
    assert len(line) == 10


@pytest.mark.parametrize("image", ["c.sif", "--nv", "", "docker://x"])
def test_an_image_must_be_an_absolute_path(image: str) -> None:
    with fails_with(JobError):
        containers.wrap(ARGV, image, [], 0, {})


def test_a_bind_must_be_an_absolute_path() -> None:
    with fails_with(JobError):
        containers.wrap(ARGV, "/c.sif", ["data"], 0, {})


@pytest.mark.parametrize("name", ["", "A=B", "1A", "A B", "A\nB", "Ä"])
def test_the_name_of_a_variable_must_be_one(name: str) -> None:
    with fails_with(JobError):
        containers.wrap(ARGV, "/c.sif", [], 0, {name: "x"})


def test_nothing_to_run_is_refused() -> None:
    with fails_with(JobError):
        containers.wrap([], "/c.sif", [], 0, {})

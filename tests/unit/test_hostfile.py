"""Hosts from a hostfile and from Slurm's variables."""

from __future__ import annotations

import pytest
from wording import fails_with

from jobs.local import hostfile
from jobs.schedulers.slurm import allocation
from trainer.errors import JobError


def test_slots_may_be_written_in_both_ways_or_left_out() -> None:
    text = "# our hosts\nn1 slots=2\n\nn2:4  # the big one\nn3\n"
    assert hostfile.parse(text, "hosts", default_slots=3) == {"n1": 2, "n2": 4, "n3": 3}


def test_a_name_on_several_lines_has_the_slots_of_all() -> None:
    assert hostfile.parse("a\nb\na\na\n", "hosts", default_slots=8) == {"a": 3, "b": 8}
    assert hostfile.parse("a slots=2\na slots=3\na\n", "hosts", default_slots=8) == {"a": 6}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("-oProxyCommand=reboot", "is not the name of a host"),
        ("user@n1", "is not the name of a host"),
        ("n1;reboot", "is not the name of a host"),
        ("n$(x)", "is not the name of a host"),
        ("n1-", "is not the name of a host"),
        ("n1 slots=0", "'slots=0' is not understood"),
        ("n1 slots=two", "'slots=two' is not understood"),
        ("n1 max_slots=4", "'max_slots=4' is not understood"),
        ("n1:", "'slots=' is not understood"),
    ],
)
def test_a_bad_line_is_named_with_its_number(line: str, said: str) -> None:
    with fails_with(JobError) as caught:
        hostfile.parse(f"n0\n{line}\n", "hosts", default_slots=1)
    assert said in caught.value.message


def test_a_file_without_hosts_is_an_error() -> None:
    with fails_with(JobError):
        hostfile.parse("# nothing\n", "hosts", default_slots=1)


@pytest.mark.parametrize(
    ("short", "hosts"),
    [
        ("n1", ["n1"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[08-10,2],gpu-1", ["n08", "n09", "n10", "n2", "gpu-1"]),
        ("r[1-2]n[5-6]", ["r1n5", "r1n6", "r2n5", "r2n6"]),
        ("a.x,b[1].y", ["a.x", "b1.y"]),
    ],
)
def test_slurms_short_form_is_spelled_out(short: str, hosts: list[str]) -> None:
    assert allocation.expand(short) == hosts


@pytest.mark.parametrize("short", ["n[3-1]", "n[a-b]", "n[1-", "", "n[1-9999999999]", "a;b"])
def test_what_slurm_would_not_write_is_refused(short: str) -> None:
    with fails_with(JobError):
        allocation.expand(short)


def test_tasks_per_node_are_spelled_out() -> None:
    assert allocation.tasks_per_node("2(x3),1") == [2, 2, 2, 1]
    with fails_with(JobError):
        allocation.tasks_per_node("2x3")

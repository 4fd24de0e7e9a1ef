"""The file of a profile: what it says, what is refused in it; equal operations; links from round trips."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import pytest
from wording import fails_with

from trainer.errors import InputError
from trainer.planning import links
from trainer.planning.kept_files import MOST_BYTES
from trainer.planning.links import HostLink, Timed
from trainer.planning.placement.operations import Operation, Reading, Weight
from trainer.planning.placement.windows import Sliding
from trainer.planning.profile import Profile
from trainer.strategies.placed.profiling import links as link_probe
from trainer.strategies.placed.profiling import operations

LINK = {"latency_s": 0.001, "bytes_per_second": 1e6}
SLOW = {**LINK, "bytes_per_second": 0}


def operation(name, **more):
    return {
        "name": name, "kind": "convolution", "layer": name, "measured": name, "flops": 1e9,
        "parameter_bytes": 432, "output_bytes": 4096,
        "forward_s": [0.25, 0.5], "forward_spread_s": [0.0, 0.0],
        "backward_s": [0.5, 1.0], "backward_spread_s": [0.125, 0.0], **more,
    }  # fmt: skip


def tree(**more):
    return {
        "version": 1, "network": "tiny", "sample_shape": [16, 16, 16, 1], "batch": 4, "precision": "float32",
        "made": {"time": "2026-01-01T00:00:00+00:00", "versions": {"keras": "3"}},
        "devices": [{"host": "a", "name": "CPU", "threads": 1}, {"host": "b", "name": "GPU", "threads": 2}],
        "operations": [operation("first"), operation("second", measured="first")],
        "update": {"parameters": 1000, "seconds": [0.5, 0.25], "spread_s": [0.0, 0.0]},
        "links": [[None, LINK], [{**LINK, "latency_s": 0.002}, None]], **more,
    }  # fmt: skip


def written(tmp_path, content):
    path = tmp_path / "profile.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_a_profile_is_read_as_it_was_written_and_has_a_line_for_each_operation(tmp_path):
    profile = Profile.read(written(tmp_path, tree()))
    text = profile.text()
    assert Profile.read(written(tmp_path, text)) == profile
    assert json.loads(text) == tree(handling=None, task_s=None)
    assert sum(line.strip().startswith('{"name"') for line in text.splitlines()) == 2


def test_seconds_are_looked_up_by_operation_and_rank_and_grow_with_the_batch():
    profile = Profile.parse(json.dumps(tree()), "-")
    assert profile.ranks == 2
    assert profile.forward_s("second", 1) == 0.5 and profile.forward_s("second", 1, batch=2) == 0.25
    assert profile.backward_s("first", 0) == 0.5 and profile.backward_s("first", 0, batch=8) == 1.0
    assert profile.update_s(0, 500) == 0.25
    assert profile.step_s(1) == 2 * (0.5 + 1.0) + 0.25
    assert profile.link(0, 1) == HostLink(0.001, 1e6) and profile.link(1, 0) == HostLink(0.002, 1e6)
    with pytest.raises(ValueError, match="no link to itself"):
        profile.link(1, 1)
    with fails_with(InputError):
        profile.operation("third")


def refused(tmp_path, content):
    path = written(tmp_path, content)
    with pytest.raises(InputError) as caught:
        Profile.read(path)
    assert caught.value.message.startswith(f"{path}: ") and caught.value.path == path
    return caught.value.message.removeprefix(f"{path}: "), caught.value.key


@pytest.mark.parametrize(
    "changes, key, said",
    [
        ({"batch": 0}, "batch", "greater than or equal to 1"),
        ({"batch": "4"}, "batch", "valid integer"),
        ({"devises": []}, "devises", "extra inputs are not permitted"),
        ({"devices": []}, "devices", "at least 1 item"),
        ({"operations": [operation("a", flops=-1)]}, "operations.a.flops", "greater than or equal to 0"),
        ({"operations": [operation("a", forward_s=[0, "x"])]}, "operations.a.forward_s.1", "valid number"),
        ({"operations": [operation("a", backward_s=[0.1])]}, "operations.a.backward_s", "1 entries for 2"),
        ({"operations": [operation("a"), operation("a")]}, "operations.a", "is there twice"),
        ({"operations": [operation("a", measured="b")]}, "operations.a.measured", "no operation b"),
        ({"links": [[None, LINK]]}, "links", "1 entries for 2 ranks"),
        ({"links": [[None, None], [LINK, None]]}, "links.0.1", "is missing"),
        ({"links": [[LINK, LINK], [LINK, None]]}, "links.0.0", "must be null"),
        ({"links": [[None, SLOW], [LINK, None]]}, "links.0.1.bytes_per_second", "greater than 0"),
        ({"handling": {"message_s": [0], "byte_s": [0, 0]}}, "handling.message_s", "1 entries for 2"),
        ({"task_s": [0]}, "task_s", "1 entries for 2 ranks"),
        ({"version": 2}, "version", "reads versions up to 1"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_an_edited_profile_is_named_with_file_and_key(tmp_path, changes, key, said):
    message, named = refused(tmp_path, tree(**changes))
    assert named == key
    assert said in message and (key in message or key == "version")


def test_what_is_no_profile_is_refused(tmp_path):
    assert "is no JSON" in refused(tmp_path, "{")[0]
    assert "is no JSON" in refused(tmp_path, "[" * 100_000)[0]
    assert "NaN is not a number" in refused(tmp_path, json.dumps(tree(batch=math.nan)))[0]
    assert "object" in refused(tmp_path, "[1]")[0]
    assert "is larger than 64 MiB" in refused(tmp_path, " " * (MOST_BYTES + 1))[0]
    with fails_with(InputError):
        Profile.read(tmp_path / "nothing.json")
    with fails_with(InputError):
        Profile.read(tmp_path)


def convolution(name, stride=1, filters=8):
    sliding = tuple((axis, Sliding(3, stride, 1, "same")) for axis in (1, 2, 3))
    reading = Reading(f"before_{name}", (1, 8, 8, 8, 4), (None, *sliding, None))
    weights = (Weight(f"{name}/kernel", (3, 3, 3, 4, filters), (None,) * 4 + (4,)),)
    return Operation(name, "convolution", name, (reading,), (1, 8, 8, 8, filters), weights)


def key(one, *, wanted=True, dtype="float32", **options):
    layer = SimpleNamespace(get_config=lambda: {"name": one.name, "kernel_initializer": one.name, **options})
    return operations.key(one, layer, [dtype], [wanted])


def test_operations_are_equal_whatever_their_names_and_first_values_and_nothing_else():
    same = key(convolution("a"), activation="relu")
    assert key(convolution("b"), activation="relu") == same
    different = {
        key(convolution("a"), activation="elu"),
        key(convolution("a", stride=2), activation="relu"),
        key(convolution("a", filters=9), activation="relu"),
        key(convolution("a"), activation="relu", wanted=False),
        key(convolution("a"), activation="relu", dtype="float16"),
    }
    assert len(different) == 5 and same not in different


def test_a_link_is_found_again_from_round_trips():
    timed = [Timed(size, 2 * 0.001 + size / 1e6) for size in (4096, 65_536, 2**20)]
    assert links.of_round_trips(timed) == pytest.approx(HostLink(0.001, 1e6))
    assert links.of_round_trips([Timed(4096, 0.5), Timed(2**20, 0.5)]) == HostLink(0.0, 2**20 / 0.5)


def test_of_many_ranks_one_pair_of_each_two_hosts_is_measured():
    few = link_probe.measured(["a", "a", "b"])
    assert len(few) == 6 and all(pair == measured for pair, measured in few.items())
    hosts = ["a", "b"] * link_probe.MOST_RANKS
    many = link_probe.measured(hosts)
    assert len(many) == len(hosts) * (len(hosts) - 1)
    assert set(many.values()) == {(0, 1), (0, 2), (1, 0), (1, 3)}
    assert all(hosts[a] == hosts[c] and hosts[b] == hosts[d] for (a, b), (c, d) in many.items())

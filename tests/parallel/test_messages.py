"""Messages between ranks of an ordinary world, and groups of ranks, under a real mpirun."""

from __future__ import annotations

import json

from conftest import Launch

COUNT, SMALL, LARGE = 40, 1000, 3_000_001


def test_messages_between_all_pairs_arrive_whole_and_in_order_beside_all_reduces(launch: Launch) -> None:
    done = launch(3, "messages.py")
    assert done.exit_code == 0, done.err
    found = json.loads(done.out.splitlines()[-1])
    each = 2 * COUNT * SMALL + LARGE
    for rank, one in enumerate(found):
        others = [other for other in range(3) if other != rank]
        assert one["messages"] == {
            f"{other} {tag}": COUNT + (tag == 5) for other in others for tag in (5, 2**30)
        }
        assert one["wrong"] == [] and one["sums"] and one["nothing_left"]
        assert one["released"] == 2 * 2 * COUNT
        assert one["sent"] == one["received"] == [0 if other == rank else each for other in range(3)]
        assert one["traffic"] == [2 * each, 2 * each]
        assert one["idle_looks_per_s"] < 1000, "a listening mailbox takes a core"
        assert one["early"] == 2 * [["Compiled", 2**22 - 20, 0, (rank - 1) % 3, True]]
        assert one["exchange"] == ["Interpreted", (rank - 1) % 3]
    assert done.err.count("warning: messages between ranks go through Python") == 1
    assert "missing, or not the same, on rank 2." in done.err


def test_groups_reduce_among_themselves_in_and_outside_of_a_compiled_step(launch: Launch) -> None:
    done = launch(4, "groups.py")
    assert done.exit_code == 0, done.err
    for rank, one in enumerate(json.loads(done.out.splitlines()[-1])):
        row, column = divmod(rank, 2)
        for name, members, place in (
            ("rows", [2 * row, 2 * row + 1], column),
            ("columns", [column, column + 2], row),
        ):
            group = one[name]
            assert (group["rank"], group["size"]) == (place, 2)
            assert group["objects"] == members
            assert group["eager"] == group["compiled"] == sum(10.0**r for r in members)
            assert group["mean"] == sum(members) / 2
            assert group["grouped"] == [sum(members), 2.0 * sum(members)]
            assert group["gathered"] == [r for r in members for _ in range(r + 1)]
            assert group["broadcast"] == [members[0]] * 2
            assert group["exchanged"] == [10 * r + place for r in members]
            assert group["name"].startswith(f"rank {rank} @ ")
        assert one["whole"] == 1111.0 and one["everyone_is_world"] and one["again"]
        assert one["outside"] == (rank != 3)


def test_one_rank_is_its_own_group(launch: Launch) -> None:
    done = launch(0, "groups.py", "alone")
    assert done.exit_code == 0, done.err

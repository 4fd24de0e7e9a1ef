"""A profile as tables for people, 80 columns wide."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

from cingulum.cli import sizes
from trainer.planning.profile import Profile, ProfiledOperation

# Rows of the table of layers; --json has all.
MOST_ROWS = 20
# Ranks and pairs of ranks that have a line each.
MOST_LINES = 12


def show(profile: Profile) -> None:
    """Print devices; operations, the slowest first, equal ones once with their number (`x`); links."""
    console = Console(highlight=False, markup=False)
    shape = "x".join(map(str, profile.sample_shape))
    console.print(
        f"{profile.network}: {profile.batch} x {shape}, {profile.precision}, "
        f"{sizes.flops(sum(one.flops for one in profile.operations))} FLOP forward"
    )
    console.print(_devices(profile))
    console.print()
    rows = groups(profile)
    console.print(_layers(profile, rows[:MOST_ROWS]))
    if len(rows) > MOST_ROWS:
        console.print(f"and {len(rows) - MOST_ROWS} faster ones; --json has all")
    if profile.ranks > 1:
        console.print()
        console.print(_links(profile))
        if (left := profile.ranks * (profile.ranks - 1) - MOST_LINES) > 0:
            console.print(f"and {left} pairs with more bandwidth; --json has all")


def groups(profile: Profile) -> list[list[ProfiledOperation]]:
    """Return the operations that were measured as one, the group that takes longest first."""
    groups_by_name: dict[str, list[ProfiledOperation]] = {}
    for one in profile.operations:
        if one.measured:
            groups_by_name.setdefault(one.measured, []).append(one)
    return sorted(groups_by_name.values(), key=lambda group: -_total(group))


def _total(group: Iterable[ProfiledOperation]) -> float:
    """Seconds of all of the group, on the slowest rank of each."""
    return sum(max(_both(one)) for one in group)


def _both(one: ProfiledOperation) -> list[float]:
    return [forward + backward for forward, backward in zip(one.forward_s, one.backward_s, strict=True)]


def _devices(profile: Profile) -> Table:
    table = Table("rank", "host", "device", box=None, pad_edge=False)
    for title in ("threads", "forward", "backward", "update"):
        table.add_column(title, justify="right", no_wrap=True)
    for rank, device in list(enumerate(profile.devices))[:MOST_LINES]:
        table.add_row(
            str(rank),
            device.host,
            device.name,
            str(device.threads),
            sizes.time(sum(one.forward_s[rank] for one in profile.operations)),
            sizes.time(sum(one.backward_s[rank] for one in profile.operations)),
            sizes.time(profile.update.seconds[rank]),
        )
    if profile.ranks > MOST_LINES:
        table.add_row("...", f"{profile.ranks - MOST_LINES} more", *[""] * 5)
    return table


def _layers(profile: Profile, rows: Sequence[Sequence[ProfiledOperation]]) -> Table:
    whole = _total(profile.operations)
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("operation", overflow="fold")
    for title in ("x", "forward", "backward", "share", "FLOP", "weights", "output"):
        table.add_column(title, justify="right", no_wrap=True)
    for group in rows:
        operation = next(each for each in group if each.name == each.measured)
        slowest = max(range(profile.ranks), key=_both(operation).__getitem__)
        table.add_row(
            operation.name,
            f"{len(group)}",
            sizes.time(operation.forward_s[slowest]),
            sizes.time(operation.backward_s[slowest]),
            f"{_total(group) / whole:.1%}" if whole else "-",
            sizes.flops(operation.flops),
            sizes.size(operation.parameter_bytes),
            sizes.size(operation.output_bytes),
        )
    return table


def _links(profile: Profile) -> Table:
    table = Table("link", box=None, pad_edge=False)
    for title in ("latency", "bandwidth"):
        table.add_column(title, justify="right")
    links = [
        (link, f"rank {source} to {target}")
        for source, row in enumerate(profile.links)
        for target, link in enumerate(row)
        if link is not None
    ]
    links.sort(key=lambda one: one[0].bytes_per_second)
    for link, name in links[:MOST_LINES]:
        table.add_row(name, sizes.time(link.latency_s), f"{sizes.size(link.bytes_per_second)}/s")
    return table

"""What was measured on a GPU, as a page: steps beside those of peers, memory, predictions, what is wanted."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

# What is wanted of a first GPU: at most, at least, within, and networks of five.
RUN, HALF, PREDICTED, AHEAD = 1.05, 1.8, 0.10, 3
WAYS = (
    ("ours", False, "ours, uncompiled"),
    ("ours", True, "ours, compiled where faster"),
    ("keras", False, "Keras, uncompiled"),
    ("keras", True, "Keras, all compiled"),
    ("torch", False, "PyTorch, eager"),
    ("torch", True, "PyTorch, compiled"),
)
PRECISIONS = ("float32", "mixed_bfloat16")

Known = Mapping[str, Mapping[str, Any]]


def text(known: Known, networks: Sequence[str]) -> str:
    """Return the page, Markdown.

    Args:
        known: what each part has found, by its name.
        networks: in which order.
    """
    devices = sorted({one["device"] for one in known.values() if "device" in one})
    lines = [f"# On {', '.join(devices) or 'no device yet'}", ""]
    if devices == ["CPU"]:
        lines += ["Tried out on a processor: the figures say nothing of a GPU.", ""]
    lines += ["## Milliseconds of a step", "", "Median of blocks, between the fastest and the slowest.", ""]
    lines += [f"| network | precision | {' | '.join(name for *_, name in WAYS)} |", "| --- " * 8 + "|"]
    for network in networks:
        for precision in PRECISIONS:
            cells = [_step(row(known, network, precision, *way[:2])) for way in WAYS]
            lines.append(f"| {network} | {precision} | {' | '.join(cells)} |")
    lines += ["", *_parts(known, networks), *_runs(known, networks), *_wanted(known, networks)]
    return "\n".join(lines) + "\n"


def row(known: Known, network: str, precision: str, way: str, compiled: bool) -> Mapping[str, Any]:
    """Return what a way found; empty where it was not measured, or failed."""
    for one in known.get(f"{way}-{network}", {}).get("rows", ()):
        if (one["precision"], one["compiled"]) == (precision, compiled):
            return one if "step_ms" in one else {}
    return {}


def _step(one: Mapping[str, Any]) -> str:
    if not one:
        return ""
    return f"{one['step_ms']:.1f} ({min(one['block_ms']):.1f} to {max(one['block_ms']):.1f})"


def _parts(known: Known, networks: Sequence[str]) -> list[str]:
    lines = ["## Parts of our step, each by itself", ""]
    columns = ["network", "precision", "forward and backward", "ways tried", "update", "update, compiled"]
    lines += [f"| {' | '.join([*columns, 'most memory', 'predicted'])} |", "| --- " * 8 + "|"]
    for network in networks:
        for precision in PRECISIONS:
            plain, compiled = (row(known, network, precision, "ours", xla) for xla in (False, True))
            if plain and compiled:
                update = "failed" if compiled["fault"] else f"{compiled['update_ms']:.2f}"
                tried = compiled["passes"]
                ways = ", ".join(f"{way} {ms:.1f}" for way, ms in tried["ms"].items()) or tried["why"]
                both = f"{plain['forward_backward_ms']:.1f} | {ways} | {plain['update_ms']:.2f} | {update}"
                # Predictions are of float32.
                said = known.get(f"predicted-{network}", {}).get("rows") if precision == "float32" else None
                memory = f"{_gib(plain['peak_bytes'])} | {_gib(said and said[0]['memory_bytes'])}"
                lines.append(f"| {network} | {precision} | {both} | {memory} |")
    return [*lines, ""]


def _gib(size: float | None) -> str:
    return "" if size is None else f"{size / 2**30:.2f} GiB"


def run_ms(known: Known, name: str) -> float | None:
    """Return the milliseconds of a run's step: the median of its epochs but the first, which traces."""
    epochs = known.get(name, {}).get("epochs", ())[1:]
    return 1000 * statistics.median(one["seconds"] for one in epochs) if epochs else None


def predicted_ms(known: Known, network: str) -> float | None:
    """Return what `cingulum simulate` says of a step on one rank."""
    rows = known.get(f"predicted-{network}", {}).get("rows", ())
    return 1000 * rows[0]["step_s"] if rows else None


def _runs(known: Known, networks: Sequence[str]) -> list[str]:
    first = networks[0]
    lines = ["## Runs, and predictions", "", "| what | milliseconds of a step |", "| --- | --- |"]
    for name in (f"run-{first}", f"run-{first}-bfloat16"):
        found = run_ms(known, name)
        if found is not None:
            why = (known[name]["update"] or {}).get("why", "")
            lines.append(f"| {name}, update chosen: {why} | {found:.1f} |")
    for network in networks:
        said = predicted_ms(known, network)
        mine = row(known, network, "float32", "ours", False)
        if said is not None and mine:
            lines.append(f"| {network} predicted, measured uncompiled {mine['step_ms']:.1f} | {said:.1f} |")
    return [*lines, ""]


def _wanted(known: Known, networks: Sequence[str]) -> list[str]:
    lines = ["## Wanted, and found", ""]
    first = networks[0]
    found, keras = run_ms(known, f"run-{first}"), row(known, first, "float32", "keras", True)
    if found is not None and keras:
        ratio = found / keras["step_ms"]
        lines.append(
            f"- {_met(ratio <= RUN)}: a run's step is {ratio:.2f} times compiled Keras' (at most {RUN})"
        )
    for network in networks:
        both = [row(known, network, precision, "ours", True) for precision in PRECISIONS]
        if all(both):
            ratio = both[0]["step_ms"] / both[1]["step_ms"]
            lines.append(
                f"- {_met(ratio >= HALF)}: {network}, bfloat16 {ratio:.2f} times as fast (at least {HALF})"
            )
    ahead, compared = 0, 0
    for network in networks:
        mine, theirs = (row(known, network, "float32", way, True) for way in ("ours", "torch"))
        if mine and theirs:
            compared += 1
            ahead += mine["step_ms"] < theirs["step_ms"]
    if compared:
        lines.append(
            f"- {_met(ahead >= AHEAD)}: ahead of compiled PyTorch on {ahead} of {compared} ({AHEAD} of 5)"
        )
    for network in networks:
        said, mine = predicted_ms(known, network), row(known, network, "float32", "ours", False)
        if said is not None and mine:
            off = said / mine["step_ms"] - 1
            lines.append(
                f"- {_met(abs(off) <= PREDICTED)}: {network} predicted {off:+.0%} (within {PREDICTED:.0%})"
            )
    return lines


def _met(is_so: bool) -> str:
    return "met" if is_so else "**not met**"

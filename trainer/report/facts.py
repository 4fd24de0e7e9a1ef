"""What ran where, and what is needed to run it again, as terms with their values."""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Any

from trainer.report.story import Story, number

Fact = tuple[str, str]


def run_facts(story: Story) -> list[Fact]:
    """The run in figures, for a list of terms; what is not known is left out."""
    facts, result = story.facts, story.result
    model = story.config.get("model")
    speed, energy = number(result.get("samples_per_second")), number(result.get("energy_wh"))
    parameters = number(facts.get("parameters"))
    ranks = number(facts.get("world_size"))
    pairs = [
        ("Network", model.get("name") if isinstance(model, dict) else None),
        ("Parameters", None if parameters is None else f"{int(parameters):,}"),
        ("Volume", " × ".join(str(side) for side in facts.get("volume") or ())),
        ("Strategy", result.get("strategy")),
        ("World size", facts.get("world_size")),
        ("Epochs", result.get("epochs", len(story.epochs) or None)),
        ("Steps", result.get("steps")),
        ("Throughput", None if speed is None else f"{speed:.1f} samples/s"),
        ("Throughput per rank", f"{speed / ranks:.1f} samples/s" if speed and ranks and ranks > 1 else None),
        ("Energy", "not measured" if energy is None else watt_hours(energy, result)),
        ("Took", _duration(facts.get("started"), facts.get("finished"))),
        ("Started", facts.get("started")),
        ("Finished", facts.get("finished")),
        ("Resumed", f"{len(facts['resumed_from'])} time(s)" if facts.get("resumed_from") else None),
    ]
    return [(name, str(value)) for name, value in pairs if value not in (None, "", {})]


def watt_hours(energy: float, result: dict[str, Any]) -> str:
    """An energy with its unit and, where the run knows it, where the figure comes from."""
    source = result.get("energy_source")
    return f"{energy:.3g} Wh" + (f" ({source})" if source else "")


def record(story: Story) -> list[Fact]:
    """What makes the run repeatable: command, hashes, seeds, versions."""
    facts, shards = story.facts, story.facts.get("shards", {})
    command = facts.get("command")
    train = story.config.get("train")
    pairs = [
        ("Command", " ".join(map(str, command)) if isinstance(command, list) else command),
        ("Configuration, sha256", hashlib.sha256(story.config_text.encode()).hexdigest()),
        ("Shard set", shards.get("path")),
        ("Data hash", shards.get("content_hash")),
        ("Weights hash, last step", story.result.get("weights_sha256")),
        ("Weights hash, model.keras", story.result.get("best_weights_sha256")),
        ("Seed", train.get("seed") if isinstance(train, dict) else None),
        ("Ranks", facts.get("world_size")),
        ("Cingulum", facts.get("cingulum")),
        ("Git commit", facts.get("git")),
    ]
    return [(name, str(value)) for name, value in pairs if value not in (None, "")]


def places(story: Story) -> list[dict[str, str]]:
    """Which ranks ran on which host, with what in it."""
    hosts = story.facts.get("hosts", [])
    gpus = story.facts.get("gpus")
    per_rank = gpus if isinstance(gpus, list) and len(gpus) == len(hosts) else [None] * len(hosts)
    table = []
    for host in dict.fromkeys(str(host) for host in hosts):
        ranks = [rank for rank, name in enumerate(hosts) if str(name) == host]
        seen = [per_rank[rank] for rank in ranks if per_rank[rank]]
        devices = [str(gpu) for entry in seen for gpu in (entry if isinstance(entry, list) else [entry])]
        table.append(
            {"host": host, "ranks": ranges(ranks), "gpus": ", ".join(dict.fromkeys(devices)) or "none"}
        )
    return table


def ranges(ranks: list[int]) -> str:
    """'0-3, 6' for [0, 1, 2, 3, 6]."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ", ".join(str(first) if first == last else f"{first}–{last}" for first, last in runs)


def packages(story: Story) -> list[Fact]:
    """Software and processor."""
    facts = story.facts
    cpu: Any = facts.get("cpu")
    if isinstance(cpu, dict):
        cpu = f"{cpu.get('model', '?')}, {cpu.get('cores', '?')} cores, {cpu.get('memory_gib', '?')} GiB"
    pairs = [
        ("cingulum", facts.get("cingulum")),
        ("Python", facts.get("python")),
        *facts.get("packages", {}).items(),
        ("Processor", cpu),
        ("System", facts.get("system")),
    ]
    return [(str(name), str(value)) for name, value in pairs if value]


def _duration(started: Any, finished: Any) -> str | None:
    try:
        seconds = (datetime.fromisoformat(finished) - datetime.fromisoformat(started)).total_seconds()
    except (TypeError, ValueError):
        return None
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"

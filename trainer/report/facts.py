"""What ran where, and what is needed to run it again, as terms with their values."""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Any

from trainer.report.story import ReportMaterial, number
from trainer.run_folder.run_record import Processor

Fact = tuple[str, str]


def run_facts(story: ReportMaterial) -> list[Fact]:
    """Return the run in figures, for a list of terms; what is not known is left out."""
    facts, result = story.facts, story.result
    model = story.config.get("model")
    speed, energy = number(result.get("samples_per_second")), number(result.get("energy_wh"))
    parameters = facts.parameters
    ranks = facts.world_size
    pairs = [
        ("Network", model.get("name") if isinstance(model, dict) else None),
        ("Parameters", None if parameters is None else f"{parameters:,}"),
        ("Volume", " × ".join(str(side) for side in facts.volume)),
        ("Strategy", result.get("strategy")),
        ("World size", ranks),
        ("Epochs", result.get("epochs", len(story.epochs) or None)),
        ("Steps", result.get("steps")),
        ("Throughput", None if speed is None else f"{speed:.1f} samples/s"),
        ("Throughput per rank", f"{speed / ranks:.1f} samples/s" if speed and ranks and ranks > 1 else None),
        ("Energy", "not measured" if energy is None else watt_hours(energy, result)),
        ("Took", _duration(facts.started, facts.finished)),
        ("Started", facts.started),
        ("Finished", facts.finished),
        ("Resumed", f"{len(facts.resumed_from)} time(s)" if facts.resumed_from else None),
    ]
    return [(name, str(value)) for name, value in pairs if value not in (None, "", {})]


def watt_hours(energy: float, result: dict[str, Any]) -> str:
    """Return an energy with its unit and, where the run knows it, where the figure comes from."""
    source = result.get("energy_source")
    return f"{energy:.3g} Wh" + (f" ({source})" if source else "")


def record(story: ReportMaterial) -> list[Fact]:
    """Return what makes the run repeatable: command, hashes, seeds, versions."""
    facts, shards = story.facts, story.facts.shards
    command = facts.command
    train = story.config.get("train")
    pairs = [
        ("Command", " ".join(command) if isinstance(command, list) else command),
        ("Configuration, sha256", hashlib.sha256(story.config_text.encode()).hexdigest()),
        ("Shard set", shards.path),
        ("Data hash", shards.content_hash),
        ("Weights hash, last step", story.result.get("weights_sha256")),
        ("Weights hash, model.keras", story.result.get("best_weights_sha256")),
        ("Seed", train.get("seed") if isinstance(train, dict) else None),
        ("Ranks", facts.world_size),
        ("Cingulum", facts.cingulum),
    ]
    return [(name, str(value)) for name, value in pairs if value not in (None, "")]


def places(story: ReportMaterial) -> list[dict[str, str]]:
    """Return which ranks ran on which host, its processor and its GPUs."""
    hosts, gpus, processors = story.facts.hosts, story.facts.gpus, story.facts.processors
    per_rank = gpus if len(gpus) == len(hosts) else [None] * len(hosts)
    cpus = [str(own) for own in processors]
    table = []
    for host in dict.fromkeys(hosts):
        ranks = [rank for rank, name in enumerate(hosts) if name == host]
        seen = [entry for rank in ranks if (entry := per_rank[rank])]
        devices = [gpu for entry in seen for gpu in (entry if isinstance(entry, list) else [entry])]
        table.append(
            {
                "host": host,
                "ranks": ranges(ranks),
                "processor": cpus[ranks[0]] if len(cpus) == len(hosts) else "not recorded",
                "gpus": ", ".join(dict.fromkeys(devices)) or "none",
            }
        )
    return table


def ranges(ranks: list[int]) -> str:
    """Return '0-3, 6' for [0, 1, 2, 3, 6]."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ", ".join(str(first) if first == last else f"{first}–{last}" for first, last in runs)


def packages(story: ReportMaterial) -> list[Fact]:
    """Return software and processor."""
    facts = story.facts
    cpu = facts.cpu
    if isinstance(cpu, Processor):
        cpu = f"{_or(cpu.model)}, {_or(cpu.cores)} cores, {_or(cpu.memory_gib)} GiB"
    pairs = [
        ("cingulum", facts.cingulum),
        ("Python", facts.python),
        *facts.packages.items(),
        ("Processor", cpu),
        ("System", facts.system),
    ]
    return [(str(name), str(value)) for name, value in pairs if value]


def _or(value: object) -> object:
    return "?" if value is None else value


def _duration(started: Any, finished: Any) -> str | None:
    try:
        seconds = (datetime.fromisoformat(finished) - datetime.fromisoformat(started)).total_seconds()
    except (TypeError, ValueError):
        return None
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"

#!/usr/bin/env python3
"""Write the pages under docs/reference, and the table of networks.md, from the code they describe.

.venv/bin/python tools/reference_pages.py           # writes them
.venv/bin/python tools/reference_pages.py --check   # exit code 1 where they are out of date
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic_core import PydanticUndefined

from jobs import mpi
from jobs.schedulers import site_profiles
from jobs.site_keys import Kind, KindName
from trainer import config, errors, telling
from trainer.config.explaining import figure

PAGES = Path(__file__).resolve().parent.parent / "docs" / "reference"


def type_name(annotation: Any) -> str:
    """How a person would name a field's type."""
    if typing.get_origin(annotation) is typing.Annotated:
        return type_name(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) is typing.Literal:
        return " \\| ".join(f"`{value}`" for value in typing.get_args(annotation))
    if typing.get_origin(annotation) in (tuple, list):
        element = typing.get_args(annotation)[0]
        if typing.get_origin(element) is typing.Annotated:
            element = typing.get_args(element)[0]
        if typing.get_origin(element) is typing.Literal:
            return f"list of {type_name(element)}"
        names = {"str": "list of texts", "int": "list of whole numbers", "float": "list of numbers"}
        return names[element.__name__]
    if typing.get_origin(annotation) is dict:
        return "mapping"
    members = [m for m in typing.get_args(annotation) if m is not type(None)]
    if members:
        return " \\| ".join(type_name(m) for m in members) + ", or null"
    return {
        "str": "text",
        "int": "whole number",
        "float": "number",
        "bool": "true or false",
        "Path": "path",
    }.get(annotation.__name__, annotation.__name__)


def default_of(field: Any) -> str:
    """A field's default as YAML would write it."""
    if field.default is PydanticUndefined:
        return "**required**"
    value = field.default
    if isinstance(value, tuple):
        value = list(value)
    # YAML's own words for these three, not Python's.
    return f"`{'null' if value is None else str(value).lower() if isinstance(value, bool) else value}`"


def bounds_of(field: Any) -> str:
    """What a number may be, such as `, 1 to 1024`; nothing where there is no bound."""
    ends = {type(one).__name__: one for one in field.metadata}
    least, most = ends.get("Ge"), ends.get("Le")
    if least and most:
        return f", {figure(least.ge)} to {figure(most.le)}"
    known = (("Ge", "at least"), ("Gt", "more than"), ("Le", "at most"), ("Lt", "less than"))
    words = [f", {word} {figure(getattr(ends[name], name.lower()))}" for name, word in known if name in ends]
    return "".join(words)


def config_page() -> str:
    """Every key of a run configuration as one table per section."""
    lines = [
        "# The run configuration",
        "",
        "A YAML file; each key may also be given on the command line as `key=value` with dots, for example",
        "`cingulum train run.yaml train.epochs=3`. An unknown key is an error; so is a key given twice.",
        "",
        "YAML reads `NO`, `yes`, `on` and `off` as true or false, and `0` as a number. Where they are",
        "labels or names, write them in quotes: `classes: ['NO', 'AD']`; on the command line, which",
        "takes a pair of quotes for itself, `\"data.classes=['NO', AD]\"`. Dates are text; `1e-4` is a",
        "number; numbers are finite. A file has at most 1 MiB and 10,000 values (with what its aliases",
        "stand for), is at most 32 deep and has no tags such as `!!python/name`.",
        "",
        "The last column says which keys may change when `cingulum train --resume` goes on with a run:",
        "those that say how it is done (speed, places, limits, what is written down) or, `may grow`, how",
        "long. A change of any other key is refused. The order of a sum over ranks may change, as it does",
        "with another number of ranks.",
        "",
        "`train.strategy` is one of several sections, chosen by its `name`; a name alone will do:",
        "`train.strategy=parameter-server train.strategy.count=2`.",
        "",
        "*Made by `tools/reference_pages.py`.*",
        "",
    ]
    rows: dict[str, list[str]] = {}
    titles: dict[str, str] = {"": inspect.getdoc(config.RunConfig) or ""}

    def row(key: str, field: Any) -> str:
        return (
            f"| `{key.rpartition('.')[2]}` | {type_name(field.annotation)}{bounds_of(field)} "
            f"| {default_of(field)} | {field.description or ''} | {config.on_resume(key)} |"
        )

    for key, field in config.fields():
        if key.startswith("train.strategy."):
            continue
        sections = config.sections_of(field.annotation)
        if len(sections) > 1:  # one of them, by its name
            for section in sections:
                named, _, about = (inspect.getdoc(section) or "").partition(". ")
                heading = f"{key}`, `{named.strip('`')}"
                titles[heading] = about
                inner = section.model_fields.items()
                rows[heading] = [row(f"{key}.{name}", one) for name, one in inner]
        elif sections:
            optional = " (default: `null`, which means none)" if field.default is None else ""
            titles[key] = (inspect.getdoc(sections[0]) or "") + optional
        else:
            rows.setdefault(key.rpartition(".")[0], []).append(row(key, field))
    for parent, entries in rows.items():
        lines += [f"## `{parent}`" if parent else "## Top level", "", titles[parent].strip(), ""]
        lines += [
            "| key | type | default | what it is | with `--resume` |",
            "| --- | --- | --- | --- | --- |",
            *entries,
            "",
        ]
    return "\n".join(lines)


def site_page() -> str:
    """Every key of a site's profile, and what is set for its network."""
    lines = [
        "# The profile of a site",
        "",
        "What differs between clusters, written once: a YAML file, `~/.config/cingulum/sites/NAME.yaml` "
        "(or under",
        "`$XDG_CONFIG_HOME`), chosen by `cingulum submit --site NAME`; also a path does. A profile named "
        "`default` needs no",
        "`--site`. Without any, nothing is assumed of the site. Examples to copy, with comments: "
        "[slurm/sites](../../slurm/sites).",
        "*Made by `tools/reference_pages.py`.*",
        "",
        "An unknown key is an error that names one like it. Names that reach Slurm (partition, modules, "
        "interfaces, ...) hold letters,",
        "digits and `_ . , : + @ / -` only; `options`, `srun_options` neither blanks nor quotes, and nothing "
        "that competes with a key or",
        "with what the job asks for (`--partition`, `--ntasks-per-gpu`, ...). `before_modules`, `setup` are "
        "code, run as it stands, and so a",
        "profile is to be trusted like a script. A line of theirs that fails ends the job as bad input does, "
        "with its text: put `|| true` behind",
        "what may fail. Of a file that is sourced, its last command counts.",
        "",
        "| key | type | default | what it is |",
        "| --- | --- | --- | --- |",
    ]
    about = ("name", "description")
    for name, field in sorted(
        site_profiles.model().model_fields.items(), key=lambda one: one[0] not in about
    ):
        kind = type_name(field.annotation)
        lines.append(f"| `{name}` | {kind} | {default_of(field)} | {field.description} |")
    lines += [
        "",
        "## Kinds of jobs",
        "",
        f"`kinds` holds, for {', '.join(f'`{kind}`' for kind in typing.get_args(KindName))}, any of the keys",
        f"{', '.join(f'`{key}`' for key in Kind.model_fields)}.",
        "What is written there stands for what is said of all jobs; `options` as a whole. So an import or a "
        "report need not wait",
        "for, and does not keep, hosts with GPUs:",
        "",
        "```yaml",
        "partition: gpu",
        "gpus_per_node: 4",
        "cpus_per_rank: 8",
        "minutes: 2160",
        "kinds:",
        "  import: {partition: cpu, cpus_per_rank: 32, memory: 64G, minutes: 240}",
        "  evaluate: {gpus_per_node: 1, minutes: 60}",
        "  report: {partition: cpu, cpus_per_rank: 2, minutes: 30}",
        "```",
        "",
        "What `cingulum submit` is told (`--time`, `--memory`, `--gpus-per-node`, ...) is of the job that it "
        "submits and comes before the",
        "profile. For the import before it, and the evaluation and report after it, its `kinds` come "
        "first, then what it was told.",
        "An import and a report are one process without GPUs, unless their kind names some.",
        "",
        "## What is set for the network",
        "",
        "By `fabric`, with `interfaces: [eth0]` or `[ib0]` and `infiniband_devices: [mlx5_0]` as "
        "examples. `auto` sets only what",
        "`interfaces` asks for. Variables in `environment` come later and win. What holds on every network, "
        "as that the all-reduce",
        "is a ring, is explained in [the ring](../explanation/ring.md). Infiniband and NCCL were never "
        "run by us.",
        "",
        "| variable | `ethernet` | `infiniband` | why |",
        "| --- | --- | --- | --- |",
    ]
    shown: dict[str, dict[str, str]] = {}
    for kind, interface, devices in (("ethernet", "eth0", ()), ("infiniband", "ib0", ("mlx5_0:1",))):
        site = site_profiles.model().model_validate(
            {"fabric": kind, "interfaces": (interface,), "infiniband_devices": devices}
        )
        for setting in mpi.settings(site, gpus=True):
            row = shown.setdefault(setting.name, {})
            row[kind] = f"`{setting.value}`"
            row["why"] = " ".join(dict.fromkeys([*filter(None, [row.get("why")]), setting.reason]))
    lines += [
        f"| `{name}` | {row.get('ethernet', '')} | {row.get('infiniband', '')} | {row['why']} |"
        for name, row in shown.items()
    ]
    return "\n".join([*lines, ""])


def commands() -> dict[str, Any]:
    """Every command by its name, such as `bench loader`; groups stand for their commands."""
    from cingulum.cli.app import command_line

    group: Any = command_line()
    found: dict[str, Any] = {}
    for name, command in group.commands.items():
        within = getattr(command, "commands", None)
        found |= {name: command} if within is None else {f"{name} {sub}": one for sub, one in within.items()}
    return found


def commands_page() -> str:
    """The help of every command."""
    lines = [
        "# Commands",
        "",
        "What `cingulum COMMAND --help` says, which every command has. *Made by `tools/reference_pages.py`.*",
        "",
    ]
    for name, command in commands().items():
        context = command.context_class(
            command, info_name=f"cingulum {name}", terminal_width=100, max_content_width=100
        )
        told = re.sub(r"\n  --help +Show this message and exit\.", "", command.get_help(context))
        lines += [f"## cingulum {name}", "", "```text", told, "```", ""]
    return "\n".join(lines)


def error_classes(
    kind: type[errors.CingulumError] = errors.CingulumError,
) -> list[type[errors.CingulumError]]:
    """The tree of errors, each class before those beneath it; those of other modules share their codes."""
    beneath = [one for one in kind.__subclasses__() if one.__module__ == errors.__name__]
    return [kind, *(found for one in beneath for found in error_classes(one))]


def errors_page() -> str:
    """Every code of an error."""
    lines = [
        "# Errors",
        "",
        "A command that fails says on standard error what is wrong, where, and how to mend it. With `--json`",
        "the last line of standard output is an object for programs; the exit code is the same.",
        "",
        "```json",
        '{"error": {"code": "SHARD_DAMAGED", "message": "my-shards/shard-00000.h5, byte 4096: ...",',
        ' "cure": "...", "path": "my-shards/shard-00000.h5"}}',
        "```",
        "",
        "`cure` may be null. `path` (a file or folder), `key` (of the configuration) and `rank`",
        "are there where they are known. Messages may change between versions, codes do not.",
        "*Made by `tools/reference_pages.py`.*",
        "",
        "| code | exit code | what it means | class |",
        "| --- | --- | --- | --- |",
        f"| `{telling.USAGE}` | 2 | The command line was not understood. | |",
    ]
    for kind in error_classes():
        about = (inspect.getdoc(kind) or "").partition("\n\n")[0].replace("\n", " ")
        base = kind.__mro__[1]
        within = f", of `{base.__name__}`" if base not in (errors.CingulumError, Exception) else ""
        lines.append(f"| `{kind.code}` | {kind.exit_code} | {about} | `{kind.__name__}`{within} |")
    return "\n".join([*lines, ""])


def networks_page() -> str:
    """The page of the networks as it stands, with its table made anew."""
    from trainer.quiet import import_tensorflow

    import_tensorflow()
    from trainer import models

    rows = [
        "| name | what it is | paper | default width | parameters | smallest side |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name in models.names():
        network = models.describe(name)
        shape = (1 if network.dimensions == 2 else 96, 96, 96, 1)
        model = models.outline(name, shape, 2, dense=bool(network.dense))
        rows.append(
            f"| `{name}` | {network.summary.rstrip('.')} | {network.paper} | {network.options['width']} "
            f"| {model.count_params():,} | {network.smallest} |"
        )
    page = (PAGES / "networks.md").read_text()
    before, begin, rest = page.partition("<!-- made by tools/reference_pages.py -->\n")
    _, end, after = rest.partition("<!-- end -->")
    if not end:
        raise SystemExit("docs/reference/networks.md has lost the two comments around its table.")
    return before + begin + "\n" + "\n".join(rows) + "\n\n" + end + after


MADE: dict[str, Callable[[], str]] = {
    "config.md": config_page,
    "commands.md": commands_page,
    "errors.md": errors_page,
    "networks.md": networks_page,
    "site-profile.md": site_page,
}


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description="Write the reference pages that are made from code.")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit code 1 where a page is out of date"
    )
    args = parser.parse_args()
    stale = [name for name, make in MADE.items() if not _is_current(PAGES / name, make())]
    for name in stale:
        if args.check:
            print(f"docs/reference/{name} is out of date: run tools/reference_pages.py", file=sys.stderr)
        else:
            (PAGES / name).write_text(MADE[name]())
            print(f"wrote docs/reference/{name}")
    return 1 if args.check and stale else 0


def _is_current(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text() == text


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Train every task under every strategy with an option, do what follows, and write the table of it.

combinations.py run FOLDER [PATTERN]    run the cells that FOLDER/cells.jsonl lacks or has a problem of
combinations.py page FOLDER             write docs/reference/combinations.md of all of them
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import json
import re
import shutil
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/helpers")]
PAGE = ROOT / "docs/reference/combinations.md"
HEAD = """# Tasks under strategies

What `tools/combinations.py` trained, and did with the run that came of it: every two of these values meet in
one row at least (a covering array), on phantoms of 16 voxels a side and two updates an epoch. It is not a
list of all that works: a combination that is not here was not tried. Made by `tools/combinations.py page`.

"""


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=("run", "page"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("pattern", nargs="?", default="", help="of the names of cells, such as hybrid")
    parser.add_argument("--side-by-side", type=int, default=1, help="cells at once")
    asked = parser.parse_args()
    if asked.action == "page":
        return page(asked.folder)
    return run(asked.folder, asked.pattern, asked.side_by_side)


def run(folder: Path, pattern: str, side_by_side: int) -> int:
    """Run cells; returns 1 where one has a problem."""
    import combined

    rows = read(folder)
    wanted = [one for one in combined.cells() if re.search(pattern, one.name)]
    left = [one for one in wanted if rows.get(one.name, {"problem": ""})["problem"] is not None]
    shutil.rmtree(folder / "work", ignore_errors=True)
    (folder / "work").mkdir(parents=True)
    bench = combined.Bench(folder / "work")
    began = time.monotonic()
    with (
        concurrent.futures.ThreadPoolExecutor(side_by_side) as pool,
        (folder / "cells.jsonl").open("a") as out,
    ):
        for number, ran in enumerate(pool.map(bench.run, left), start=1):
            row = {**dataclasses.asdict(ran), "name": ran.cell.name}
            rows[ran.cell.name] = row
            out.write(json.dumps(row) + "\n")
            out.flush()
            if ran.problem is None:  # what went wrong is there to be looked at
                shutil.rmtree(folder / "work" / ran.cell.name)
            took = time.monotonic() - began
            print(
                f"{number}/{len(left)} {took:.0f} s  {ran.cell.name}: {ran.problem or ran.refused or 'done'}",
                flush=True,
            )
    return int(any(rows[one.name]["problem"] is not None for one in wanted))


def read(folder: Path) -> dict[str, dict]:
    """Return the last row of each cell."""
    path = folder / "cells.jsonl"
    lines = path.read_text().splitlines() if path.is_file() else []
    return {row["name"]: row for row in map(json.loads, lines)}


def page(folder: Path) -> int:
    """Write the page; a row that has a problem ends it."""
    import combined

    rows = read(folder)
    names = [one.name for one in combined.cells()]
    red = [name for name in names if name not in rows or rows[name]["problem"] is not None]
    if red:
        print(f"{len(red)} cells are not there or not right, the first of them {red[0]}", file=sys.stderr)
        return 1
    lines = [
        "| task | strategy | ranks | option | trained | what followed |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name in names:
        row, cell = rows[name], rows[name]["cell"]
        refused = f"refused (code 2, told after {row['refused_s']} s): {row['refused']}"
        told = "yes" if row["trained"] else refused
        after = "-" if not row["trained"] else f"{cell['then']}: {refused if row['refused'] else 'done'}"
        lines.append(
            f"| {cell['task']} | {cell['strategy']} | {cell['ranks']} | {cell['option']} | {told} | {after} |"
        )
    PAGE.write_text(HEAD + "\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

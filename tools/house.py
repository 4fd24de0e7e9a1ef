#!/usr/bin/env python3
"""Count the house: files and lines of each room, files that one other imports, class names used twice.

house.py [--json] [--names]    --names lists the files and the names, too
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import grimp

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("cingulum", "jobs", "trainer")
# Of the second word of a module's name: rooms are the packages within the product's packages.
ROOM_DEPTH = 2


def counted() -> dict[str, Any]:
    """Return the counts, and what is counted."""
    sys.path.insert(0, str(ROOT))
    graph = grimp.build_graph(*PRODUCT, cache_dir=None)
    files = {module: _file(module) for module in sorted(graph.modules)}
    rooms: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    classes: Counter[str] = Counter()
    for path in files.values():
        text = path.read_text(encoding="utf-8")
        room = rooms["/".join(path.relative_to(ROOT).parent.parts[:ROOM_DEPTH])]
        room[0] += 1
        room[1] += text.count("\n")
        classes.update({one.name for one in ast.walk(ast.parse(text)) if isinstance(one, ast.ClassDef)})
    alone = {}
    for module, path in files.items():
        importers = graph.find_modules_that_directly_import(module)
        if len(importers) == 1 and path.name not in ("__init__.py", "__main__.py"):
            alone[module] = next(iter(importers))
    return {
        "rooms": {name: {"files": n, "lines": lines} for name, (n, lines) in sorted(rooms.items())},
        "files": len(files),
        "lines": sum(lines for _, lines in rooms.values()),
        "imported_by_one": alone,
        "class_names_twice": sorted(name for name, number in classes.items() if number > 1),
    }


def _file(module: str) -> Path:
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print all of it as JSON")
    parser.add_argument("--names", action="store_true", help="list files and names, too")
    asked = parser.parse_args()
    found = counted()
    if asked.json:
        print(json.dumps(found, indent=2))
        return 0
    width = max(map(len, found["rooms"]))
    for name, room in found["rooms"].items():
        print(f"{name:{width}} {room['files']:5} {room['lines']:8,}")
    print(f"{'all':{width}} {found['files']:5} {found['lines']:8,}")
    for title in ("imported_by_one", "class_names_twice"):
        print(f"{title.replace('_', ' ')}: {len(found[title])}")
        for one in found[title] if asked.names else ():
            by = f" by {found[title][one]}" if isinstance(found[title], dict) else ""
            print(f"  {one}{by}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

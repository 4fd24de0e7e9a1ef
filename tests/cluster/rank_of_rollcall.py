"""A rank of a roll call without MPI: `python rank_of_rollcall.py FOLDER RANK HOST,HOST,...`.

What ranks tell each other goes through files in FOLDER. Each time a file `ask` is there, rank 0 takes it away
and prints who is missing; all end when FOLDER/end is there.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from trainer.ranks.rollcall import RollCall
from trainer.ranks.world import World

folder, number, names = Path(sys.argv[1]), int(sys.argv[2]), tuple(sys.argv[3].split(","))


class Filed(World):
    """Collectives through files."""

    def __init__(self) -> None:
        super().__init__()
        self.rank, self.size, self.hosts, self.host = number, len(names), names, names[number]
        self._times = 0

    def allgather_object(self, value: object) -> list[object]:
        self._times += 1
        paths = [folder / f"said-{self._times}-{rank}" for rank in range(self.size)]
        partial = folder / f".{paths[self.rank].name}"
        partial.write_text(json.dumps(value))
        partial.rename(paths[self.rank])
        deadline = time.monotonic() + 60
        while not all(path.exists() for path in paths):
            assert time.monotonic() < deadline, f"waited for {paths}"
            time.sleep(0.02)
        return [json.loads(path.read_text()) for path in paths]

    def broadcast_object(self, value: object) -> object:
        return self.allgather_object(value)[0]


call = RollCall(Filed())
(folder / f"ready-{number}").touch()
while not (folder / "end").exists():
    if number == 0 and (folder / "ask").exists():
        (folder / "ask").unlink()
        sys.stdout.write(json.dumps(call.missing()) + "\n")
        sys.stdout.flush()
    time.sleep(0.05)
call.close()

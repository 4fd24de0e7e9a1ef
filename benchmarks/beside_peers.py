#!/usr/bin/env python3
"""`cingulum bench step|scaling|loader` with other systems beside ours, in the same run.

    make bench-peers                                     # PyTorch and other loaders, into .venv-peers (2 GB)
    .venv/bin/python benchmarks/beside_peers.py step --json
    .venv/bin/python benchmarks/beside_peers.py scaling --strategies data,peer:ddp,peer:multiworker
    .venv/bin/python benchmarks/beside_peers.py loader --reader zarr

Arguments are those of `cingulum bench`; docs/results/peers.md says what is compared, and how equal it is.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.peers import registering
from cingulum.__main__ import main

if __name__ == "__main__":
    registering.register()
    sys.argv[1:1] = ["bench"]
    sys.exit(main())

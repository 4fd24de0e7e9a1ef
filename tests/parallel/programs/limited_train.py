"""`cingulum train` in processes that each get so many bytes of address space more, when all is loaded.

python limited_train.py BYTES CONFIG [arguments of cingulum train ...]
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import psutil


def main() -> int:
    from cingulum.cli import app
    from trainer import config as configuration
    from trainer import quiet
    from trainer.ranks import launch, starting
    from trainer.strategies import registry

    quiet.leave_out_what_keras_can_do_without()
    strategy = registry.of(configuration.load(Path(sys.argv[2])))
    starting.init(1, environment=strategy.environment(), members=strategy.members(launch.expected_size()))
    from trainer import run  # noqa: F401 - its libraries are mapped before the limit counts

    most = psutil.Process().memory_info().vms + int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    return app.run(["train", *sys.argv[2:]])


if __name__ == "__main__":
    sys.exit(main())

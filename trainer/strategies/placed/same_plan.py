"""That all ranks divide a network by the same file: each host may have one of its own."""

from __future__ import annotations

from pathlib import Path

from trainer.errors import ConfigError
from trainer.planning.placement.plan_file import PlanFile
from trainer.ranks.agreement import Agreed, agree
from trainer.ranks.world import World


def check(world: World, path: Path) -> None:
    """See that what the file says is the same on all ranks; a collective.

    Raises:
        Agreed: a rank cannot read it, or reads another one than rank 0.
    """
    digests = world.allgather_object(agree(world, lambda: PlanFile.read(path).sha256))
    others = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
    if others:
        reads = ", ".join(f"{world.name_of(rank)} reads {digests[rank][:12]}" for rank in (0, *others[:3]))
        more = f", and {len(others) - 3} more rank(s) another one" if len(others) > 3 else ""
        raise Agreed(
            ConfigError(
                f"{path}: is not the same plan on all ranks (SHA-256): {reads}{more}.",
                cure="Copy one of them to all hosts, or name a file on a disk that they share.",
                path=path,
                key="train.strategy.plan",
            )
        )

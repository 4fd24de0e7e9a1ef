"""The step of a divided network on a cluster, simulated in a process of its own.

What asks imports no TensorFlow, and waits a few seconds at most. As a program, this file reads what is asked
from its standard input, and writes one line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

from trainer import config as configuration
from trainer.config import RunConfig
from trainer.errors import ConfigError, InputError
from trainer.planning.profile import Profile
from trainer.planning.simulation.cluster import Cluster

# Importing TensorFlow takes 3 s of it.
LIMIT_S = 10.0
# It takes a core and a GiB: a service, asked by many, makes one at a time.
_ONE = threading.Lock()


def step_s(config: RunConfig, profile: Profile, cluster: Cluster, ranks: int) -> float:
    """Return the seconds of an update by the strategy of a configuration, with those of slow ranks.

    Args:
        config: of the run; its strategy divides the network.
        profile: of its network, on the device of the cluster's hosts.
        cluster: whose first hosts train.
        ranks: that train.

    Raises:
        ConfigError: it is not possible, or not known within `LIMIT_S`.
    """
    if getattr(config.train.strategy, "replicas", 1) == "auto":
        raise ConfigError("train.strategy.replicas=auto is decided when it starts")
    line = [sys.executable, "-m", "trainer.profiling.simulated_apart"]
    name = config.train.strategy.name
    if not _ONE.acquire(timeout=LIMIT_S):
        raise ConfigError(f"train.strategy={name} is not simulated while others are: ask again")
    try:
        done = subprocess.run(
            line,
            input=asked(config, profile, cluster, ranks),
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        found = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        raise ConfigError(f"simulating train.strategy={name} takes longer than {LIMIT_S:.0f} s") from None
    except (ValueError, LookupError):
        raise ConfigError(f"simulating train.strategy={name} ended with code {done.returncode}") from None
    finally:
        _ONE.release()
    if "step_s" not in found:
        raise ConfigError(f"train.strategy={name} cannot be simulated: {found['refused'].rstrip('.')}")
    return float(found["step_s"])


def asked(config: RunConfig, profile: Profile, cluster: Cluster, ranks: int) -> str:
    """Return what `main` reads; arguments as of `step_s`."""
    return json.dumps(
        {
            "config": configuration.dump(config),
            "profile": profile.text(),
            "cluster": cluster.model_dump_json(),
            "ranks": ranks,
        }
    )


def main() -> None:
    """Answer what `step_s` asks."""
    try:
        found: dict[str, object] = {"step_s": _simulated(json.loads(sys.stdin.read()))}
    except InputError as error:
        found = {"refused": error.message}
    sys.stdout.write(json.dumps(found) + "\n")


def _simulated(given: dict[str, object]) -> float:
    from trainer.quiet import import_tensorflow

    import_tensorflow()
    from trainer.planning.simulation.fabric import ClusterFabric
    from trainer.profiling.forecasts import Forecast
    from trainer.profiling.simulating import Strategies
    from trainer.profiling.subject import Scenario, Subject

    config = configuration.parse(str(given["config"]), [])
    cluster, ranks = Cluster.model_validate_json(str(given["cluster"])), int(str(given["ranks"]))
    section = config.train.strategy
    profile = Profile.parse(str(given["profile"]), Path("profile"))
    size = ranks // int(getattr(section, "replicas", 1))
    subject = Subject(Scenario(config, cluster, section.name, group=size, profile=profile))
    rows = [row for row, _ in Strategies(subject).strategies(ClusterFabric(cluster, ranks))]
    row = next((one for one in rows if one.label == section.label), rows[0])
    if not isinstance(row, Forecast):
        raise ConfigError(row.reason)
    return row.step.step_s


if __name__ == "__main__":
    main()

"""What an epoch would take, from a profile and an index.

What a strategy tells by the profile alone needs no network; a divided one is simulated apart. Reading,
evaluation, checkpoints and failures are not in it; slow ranks are, of divided networks.
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
from trainer.data.loading import order
from trainer.data.shards.index import Index
from trainer.data.shards.index_reading import read_index
from trainer.errors import ConfigError, InputError
from trainer.planning.profile import Profile
from trainer.planning.simulation.cluster import Cluster
from trainer.planning.simulation.fabric import ClusterFabric, Fabric, PairLinks
from trainer.strategies import registry


def epoch_s(config: RunConfig, profile: Profile, cluster: Cluster | None, *, nodes: int, each: int) -> float:
    """Return the seconds of the updates of an epoch; seconds of computing are those of the slowest device.

    Args:
        config: of the run. How many volumes train follows from the shares of its splits.
        profile: of its network.
        cluster: whose links count, those of its first hosts; None: those of the profile, which tell nothing
            of divided networks.
        nodes: hosts.
        each: ranks on each.

    Raises:
        ConfigError: the profile is of another network or of too few ranks, or it does not tell it of the
            strategy.
        ShardError: the shard set has no index that can be read.
    """
    strategy, ranks = config.train.strategy, nodes * each
    if registry.is_ours(config) and not (told := registry.of(config)).needs_network:
        steps, fabric = _steps(config, profile), _fabric(profile, cluster, nodes, each)
        return steps * told.step_of_profile(profile, fabric, ranks)
    if cluster is None or not strategy.divides_network:
        raise ConfigError(f"a profile alone does not tell it of train.strategy={strategy.name}")
    return _steps(config, profile) * simulated_step_s(config, profile, _hosts(cluster, each), ranks)


def _steps(config: RunConfig, profile: Profile) -> int:
    """Updates of an epoch, about; see that the profile is of the network."""
    index = read_index(config.data.shards)
    shape = (*(config.data.patch.size if config.data.patch else index.shape[:3]), index.shape[3])
    known = (profile.network, profile.sample_shape, profile.precision)
    wanted = (config.model.name, shape, config.train.precision)
    if known != wanted:
        raise ConfigError(f"the profile is of {_named(*known)}, not of {_named(*wanted)}")
    return order.steps_per_epoch(_samples(config, index), config.train.global_batch)


def _fabric(profile: Profile, cluster: Cluster | None, nodes: int, each: int) -> Fabric:
    if cluster is None:
        if nodes * each > profile.ranks:
            raise ConfigError(
                f"the profile has the links of {profile.ranks} rank(s), and no cluster file is named"
            )
        return PairLinks(profile)
    return ClusterFabric(_hosts(cluster, each), nodes * each)


def _hosts(cluster: Cluster, each: int) -> Cluster:
    """Return a cluster of hosts of its first kind, with `each` devices in every host."""
    hosts = cluster.hosts[0].model_copy(update={"devices": each, "count": None})
    return cluster.model_copy(update={"hosts": (hosts,)})


def _samples(config: RunConfig, index: Index) -> int:
    """Training samples of an epoch, about: splits divide subjects, whose numbers of volumes may differ."""
    data = config.data
    held_out = 1 / data.split.folds if data.split.folds else data.split.test
    volumes = sum(data.classes is None or one.label in data.classes for one in index.volumes)
    each = 1 if data.patch is None else data.patch.per_volume
    return max(1, round(volumes * (1 - held_out - data.split.validation) * each))


def _named(network: str, shape: tuple[int, ...], precision: str) -> str:
    return f"{network} of {'x'.join(map(str, shape))} in {precision}"


# The step of a divided network on a cluster, simulated in a process of its own.
#
# What asks imports no TensorFlow, and waits a few seconds at most. As a program, this file reads what is
# asked from its standard input, and writes one line.


# Importing TensorFlow takes 3 s of it.
LIMIT_S = 10.0
# It takes a core and a GiB: a service, asked by many, makes one at a time.
_ONE = threading.Lock()


def simulated_step_s(config: RunConfig, profile: Profile, cluster: Cluster, ranks: int) -> float:
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
    line = [sys.executable, "-m", "trainer.forecast.expecting"]
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
        answer = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        raise ConfigError(f"simulating train.strategy={name} takes longer than {LIMIT_S:.0f} s") from None
    except (ValueError, LookupError):
        raise ConfigError(f"simulating train.strategy={name} ended with code {done.returncode}") from None
    finally:
        _ONE.release()
    if "step_s" not in answer:
        raise ConfigError(f"train.strategy={name} cannot be simulated: {answer['refused'].rstrip('.')}")
    return float(answer["step_s"])


def asked(config: RunConfig, profile: Profile, cluster: Cluster, ranks: int) -> str:
    """Return what `main` reads; arguments as of `simulated_step_s`."""
    return json.dumps(
        {
            "config": configuration.dump(config),
            "profile": profile.text(),
            "cluster": cluster.model_dump_json(),
            "ranks": ranks,
        }
    )


def main() -> None:
    """Answer what `simulated_step_s` asks."""
    try:
        answer: dict[str, object] = {"step_s": _simulated(json.loads(sys.stdin.read()))}
    except InputError as error:
        answer = {"refused": error.message}
    sys.stdout.write(json.dumps(answer) + "\n")


def _simulated(request: dict[str, object]) -> float:
    from trainer.quiet import import_tensorflow

    import_tensorflow()
    from trainer.forecast.forecasts import Forecast
    from trainer.forecast.simulating import Strategies
    from trainer.forecast.subject import ForecastSubject, Scenario
    from trainer.planning.simulation.fabric import ClusterFabric

    config = configuration.parse(str(request["config"]), [])
    cluster, ranks = Cluster.model_validate_json(str(request["cluster"])), int(str(request["ranks"]))
    section = config.train.strategy
    profile = Profile.parse(str(request["profile"]), Path("profile"))
    size = ranks // int(getattr(section, "replicas", 1))
    subject = ForecastSubject(Scenario(config, cluster, section.name, group=size, profile=profile))
    rows = [row for row, _ in Strategies(subject).strategies(ClusterFabric(cluster, ranks))]
    row = next((one for one in rows if one.label == section.label), rows[0])
    if not isinstance(row, Forecast):
        raise ConfigError(row.reason)
    return row.step.step_s


if __name__ == "__main__":
    main()

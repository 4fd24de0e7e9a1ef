"""`cingulum train` with a fault put into one rank at one step; run under mpirun by the tests.

    python faulty_train.py FAULT RANK STEP CONFIG [arguments of cingulum train ...]

RANK -1 is parameter server 0, which knows kill and freeze.

FAULT: none, kill, raise, hang, freeze (the whole process), slow (each step takes 0.4 s more), wait
(CONFIG.waiting is made; until CONFIG.go is there, or a signal comes), late (a chosen strategy is told that
each update took a minute more), stop (as by SIGUSR2), nan, diverge,
full (no file may grow any more), apart (every rank r runs in the folder CONFIG.r), quota (stopped nine
tenths of the time from there on); or during the saving of the checkpoint of STEP: kill-writing,
kill-renaming.
STEP counts updates from 1.

SPEEDS in the environment, JSON: see `pretended_speeds.py`.
"""

from __future__ import annotations

import atexit
import json
import os
import resource
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

fault, at_rank, at_step = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])


def main() -> int:
    from cingulum.cli import app
    from trainer import config as configuration
    from trainer import quiet
    from trainer.errors import CingulumError
    from trainer.ranks import launch, starting
    from trainer.ranks.members import Members
    from trainer.strategies import registry

    quiet.leave_out_what_keras_can_do_without()
    _leave_out_pictures()
    environment, members = {}, Members()
    try:
        config = configuration.load(Path(sys.argv[4]))
        if registry.is_ours(config):
            strategy = registry.of(config)
            environment, members = strategy.environment(), strategy.members(launch.expected_size())
    except CingulumError:
        if fault == "none":
            return app.run(["train", *sys.argv[4:]])  # which tells it before MPI starts
    world = starting.init(1, environment=environment, members=members)
    if "SPEEDS" in os.environ:
        from pretended_speeds import pretend  # not at the top: containers get this file alone

        pretend({int(step): seconds for step, seconds in json.loads(os.environ["SPEEDS"]).items()})
    from trainer.run_folder import checkpoint
    from trainer.runs.loop import Training
    from trainer.strategies.servers.serving import Server

    if fault == "apart":
        os.chdir(f"{sys.argv[4]}.{world.rank}")
    elif at_rank == -1 and world.is_server:
        _in_update(Server)
    elif world.rank == at_rank and fault != "none":
        if fault in ("kill-writing", "kill-renaming"):
            _in_saving(checkpoint)
        elif fault == "slow":
            _slow()
        elif fault == "late":
            _late()
        else:
            _in_step(Training)
    return app.run(["train", *sys.argv[4:]])


def _leave_out_pictures() -> None:
    """Of reports: a second of rank 0 for each run that ends, in which the others keep a core busy."""
    paper = types.ModuleType("trainer.report.paper")
    paper.write_png = lambda axes, legend, path: None
    sys.modules[paper.__name__] = paper


def _in_step(training) -> None:
    plain = training._step

    def step(self, source):
        seconds = plain(self, source)
        if self.cursor.step == at_step:
            _strike(self)
        return seconds

    training._step = step


def _slow() -> None:
    from trainer.strategies.data import DistributedModel

    plain = DistributedModel.train_step

    def train_step(self, x, y, w):
        time.sleep(0.4)
        return plain(self, x, y, w)

    DistributedModel.train_step = train_step


def _late() -> None:
    from trainer.runs.watching import Watch

    plain = Watch.add
    Watch.add = lambda self, seconds: plain(self, 60 + seconds)


def _in_update(server) -> None:
    plain, updates = server._answer, []

    def answer(self, number, scale):
        if number == 0:
            updates.append(number)
        if len(updates) == at_step:
            _strike(None)
        plain(self, number, scale)

    server._answer = answer


def _strike(training) -> None:
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "raise":
        raise KeyError("a fault of the test")
    elif fault == "wait":
        _wait(training)
    elif fault == "freeze":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault == "hang":
        training.watchdog.beat("doing what the test wants")
        time.sleep(600)
    elif fault == "stop":
        os.kill(os.getpid(), signal.SIGUSR2)
    elif fault == "quota":
        _under_quota()
    elif fault == "nan":
        training._losses[-1] = float("nan")
    elif fault == "full":
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
    elif fault == "diverge":
        variable = training.learner.model.trainable_variables[0]
        variable.assign(variable + 1e-3)
    else:
        raise SystemExit(f"unknown fault {fault}")


def _under_quota() -> None:
    on = Path(f"{sys.argv[4]}.slowed")
    on.touch()
    atexit.register(on.unlink)  # then the quota ends by itself, after letting us go on
    from slowed_train import QUOTA

    subprocess.Popen(["sh", "-c", QUOTA, "sh", str(on), str(os.getpid())])


def _wait(training) -> None:
    config = sys.argv[4]
    Path(f"{config}.waiting").touch()
    while not Path(f"{config}.go").exists() and not training.stop.requested:
        training.watchdog.beat("waiting for the test")
        time.sleep(0.05)


def _in_saving(checkpoint) -> None:
    plain_write, plain_sync = checkpoint.optimizer_state.write, checkpoint.sync

    def is_due(path) -> bool:
        return f"step-{at_step:08d}" in str(path)

    def write(path, optimizer) -> None:
        plain_write(path, optimizer)
        if fault == "kill-writing" and is_due(path):
            os.truncate(path, path.stat().st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)

    def sync(path) -> None:
        plain_sync(path)
        # The last sync before the renaming is that of the folder itself.
        if fault == "kill-renaming" and is_due(path) and path.is_dir():
            os.kill(os.getpid(), signal.SIGKILL)

    checkpoint.optimizer_state.write, checkpoint.sync = write, sync


if __name__ == "__main__":
    sys.exit(main())

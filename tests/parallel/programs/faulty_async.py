"""`cingulum train` of an asynchronous run with a fault put into one process; run under mpirun by the tests.

    python faulty_async.py FAULT PROCESS COUNT CONFIG [arguments of cingulum train ...]

FAULT: none; kill, nan, raise, stop, freeze: of worker PROCESS when it has computed COUNT gradients; slow: it
takes COUNT tenths of a second more for each; kill-server: PROCESS when it has applied COUNT updates;
kill-start, kill-meeting: PROCESS before it learns or tells server 0's address, or tells its host; others wait
COUNT seconds.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

fault, at_process, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])


def main() -> int:
    from cingulum.cli import app
    from trainer import quiet
    from trainer.quiet import import_tensorflow

    quiet.leave_out_what_keras_can_do_without()
    import_tensorflow()
    from trainer.ranks import liveness, mpi_world
    from trainer.strategies.async_servers import async_main, async_other, async_server, async_worker

    if fault in ("kill-start", "kill-meeting"):
        liveness.MEET_S = async_main.MEET_S = async_other.MEET_S = mpi_world._MEET_S = count
    if int(os.environ.get("OMPI_COMM_WORLD_RANK", "0")) == at_process:
        if fault == "kill-server":
            _after(async_server.Shard, "update", lambda found: _kill())
        elif fault == "kill-start":
            async_main.coordinate = async_other.Other = lambda *given: _kill()
        elif fault == "kill-meeting":
            mpi_world._meet = lambda *given: _kill()
        elif fault != "none":
            _after(async_worker.Gradients, "of", _strike)
    return app.run(["train", *sys.argv[4:]])


def _after(kind, name, strike) -> None:
    plain, calls = getattr(kind, name), [0]

    def replaced(self, *given):
        found = plain(self, *given)
        calls[0] += 1
        if fault == "slow" or calls[0] == count:
            return strike(found) or found
        return found

    setattr(kind, name, replaced)


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _strike(found):
    if fault == "kill":
        _kill()
    elif fault == "freeze":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault == "raise":
        raise KeyError("a fault of the test")
    elif fault == "stop":
        os.kill(os.getpid(), signal.SIGUSR2)
        # So short a run would end before it was passed on: its thread ends when it was.
        while any(thread.name == "stop" for thread in threading.enumerate()):
            time.sleep(0.01)
    elif fault == "slow":
        time.sleep(count / 10)
    elif fault == "nan":
        gradients, _, sums = found
        return gradients, float("nan"), sums
    return None


if __name__ == "__main__":
    sys.exit(main())

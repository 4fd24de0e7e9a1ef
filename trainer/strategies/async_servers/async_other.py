"""A worker or a further server of an asynchronous run, from its start to its end."""

from __future__ import annotations

import contextlib
import functools
import os
import queue
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from trainer.config import RunConfig
from trainer.errors import CingulumError, WorldError
from trainer.ranks.links import Links
from trainer.ranks.liveness import MEET_S, Address, Lifeline
from trainer.ranks.members import TO_SERVERS, TO_WORKERS
from trainer.ranks.messages import Mailbox
from trainer.ranks.stopping import StopRequest
from trainer.ranks.watchdog import Watchdog
from trainer.ranks.world import World
from trainer.strategies.async_servers.async_server import FurtherServer, Shard
from trainer.strategies.async_servers.async_state import VariableShares
from trainer.strategies.async_servers.async_worker import Ended, Gradients, Steps, Worker
from trainer.strategies.async_servers.worker_times import WorkerTimes
from trainer.strategies.base import ProcessTask, Share

_LOOK_S = 0.05


class Other:
    """A worker, or a server with a number above 0."""

    def __init__(self, config: RunConfig, links: Links, silence_s: float, story: ProcessTask) -> None:
        self._config, self._links, self._story = config, links, story
        self._ended = threading.Event()
        self._may_leave = threading.Event()
        self._code, self._clean = 1, False
        self._gone: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._post: Mailbox | None = None
        self._staging: Path | None = None
        self._name = links.name_of(links.process)
        try:
            address = Address(**links.announced(links.servers[0], "its address", MEET_S))
            self._line = Lifeline(address, links.process, self._hear, silence_s, name=links.name_of_server(0))
        except WorldError as error:
            raise WorldError(f"[{self._name}] {error.message}", cure=error.cure) from None

    def run(self) -> int:
        """Work until told to end; returns the exit code, or ends the process."""
        try:
            with (
                StopRequest() as stop,
                stop.by_interrupt(answers=False),
                Watchdog(
                    self._config.guards.timeout_s, self._name, functools.partial(os._exit, 1)
                ) as watchdog,
            ):
                self._pass_on(stop)
                if self._links.server is None:
                    self._work(watchdog)
                else:
                    self._serve(watchdog)
        except Ended:
            pass
        except CingulumError as error:
            # Another worker would meet it as well: the main process tells it, and ends the run.
            kind = next(k.__name__ for k in type(error).__mro__ if k.__module__ == "trainer.errors")
            self._line.say({"error": [kind, f"[{self._name}] {error.message}", error.cure]})
            self._ended.wait()
        except Exception:
            sys.stderr.write(
                "".join(f"[{self._name}] {line}\n" for line in traceback.format_exc().splitlines())
            )
            sys.stderr.flush()
            os._exit(1)
        return self._leave()

    def _leave(self) -> int:
        if self._post is not None:
            self._post.close()
        self._line.say({"leaving": True})
        self._may_leave.wait()
        if not self._clean:
            sys.stderr.flush()
            os._exit(self._code)
        return self._code

    def _hear(self, line: dict[str, Any] | None) -> None:
        if line is None:
            if self._ended.is_set():
                self._may_leave.set()
                return
            sys.stderr.write(
                f"[{self._name}] error: {self._links.name_of_server(0)} is gone: it was killed, or its host "
                "or link is down. Run again with --resume.\n"
            )
            sys.stderr.flush()
            time.sleep(0.2)
            os._exit(1)
        if "staging" in line:
            self._staging = Path(line["staging"])
        elif "end" in line:
            self._code = int(line["end"])
            self._ended.set()
        elif "leave" in line:
            self._clean = bool(line["leave"])
            self._may_leave.set()
        elif "gone" in line:
            self._gone.put(line["gone"])

    def _pass_on(self, stop: StopRequest) -> None:
        def watch() -> None:
            while not self._ended.wait(_LOOK_S * 4):
                if stop.requested:
                    self._line.say({"stop": True})
                    return

        threading.Thread(target=watch, name="stop", daemon=True).start()

    def _work(self, watchdog: Watchdog) -> None:
        config, links = self._config, self._links
        watchdog.beat("preparing")
        worker = links.workers.index(links.process)
        prepared = self._story.prepare(World())
        model = prepared.model
        steps = Steps()
        # A step is one worker's alone, which reads the whole of its batch.
        batches = functools.partial(prepared.batches, Share(0, 1))
        last = config.train.epochs * prepared.steps_per_epoch
        servers = len(links.servers)
        times = WorkerTimes(
            config.telemetry,
            config.folder,
            worker,
            lambda: self._staging,
            deterministic=config.train.deterministic,
        )
        made = Worker(
            model,
            Gradients(
                model,
                prepared.loss,
                prepared.score,
                config.train.optimizer.global_clip_norm if servers > 1 else None,
                times.timeline,
                config.train.seed,
                prepared.class_weights,
            ),
            VariableShares(model, servers),
            links,
            steps=steps,
            source=lambda: iter(batches(0, stop_step=last, steps=steps)),
            single=lambda step: iter(batches(step, stop_step=step + 1)),
            micro_batches=config.train.accumulation,
            steps_per_epoch=prepared.steps_per_epoch,
            ended=self._ended,
            beat=watchdog.beat,
            times=times,
        )
        self._post = made.post
        try:
            made.run()
        finally:
            times.flush()

    def _serve(self, watchdog: Watchdog) -> None:
        links = self._links
        watchdog.beat("preparing")
        self._post = post = links.mailbox(TO_SERVERS, says=TO_WORKERS)
        prepared = self._story.prepare(World())
        shares = VariableShares(prepared.model, len(links.servers))
        shard = Shard(prepared.model, prepared.optimizer, shares, links.server or 0)
        server = FurtherServer(shard, links, post)
        while not self._ended.is_set():
            watchdog.beat("waiting for workers")
            arrived = post.next(_LOOK_S)
            if arrived is not None:
                server.handle(arrived)
            with contextlib.suppress(queue.Empty):
                server.gone(self._gone.get_nowait())
        raise Ended

"""Times messages from one rank to another: each is answered with next to nothing."""

from __future__ import annotations

import statistics
import time

import numpy as np

from trainer.planning.links import Timed
from trainer.ranks.messages import Mailbox
from trainer.telemetry.link_probe import SIZES, expected

REPEATS = 7
# A further size is left out where its repeats would take longer than this at the rate seen so far.
MOST_S = 0.3
_LOAD, _ANSWER, _END = 1, 2, 3


def measure(mailbox: Mailbox, process: int) -> list[Timed]:
    """Return seconds of messages of each size until their answer; the first of a size is dropped.

    Args:
        mailbox: of this rank, in which nothing else arrives meanwhile.
        process: that answers.
    """
    load = np.zeros(max(SIZES), np.uint8)
    found: list[Timed] = []
    for size in SIZES:
        if (REPEATS + 1) * expected(found, size) > MOST_S:
            break
        took = []
        for _ in range(REPEATS + 1):
            began = time.perf_counter()
            mailbox.send(process, _LOAD, load[:size])
            mailbox.wait()
            took.append(time.perf_counter() - began)
        found.append(Timed(size, statistics.median(took[1:])))
    mailbox.send(process, _END, load[:1])
    return found


def answer(mailbox: Mailbox, processes: int = 1) -> None:
    """Answer so many processes until all of them have measured."""
    told = np.zeros(1, np.uint8)
    while processes:
        message = mailbox.wait()
        if message.tag == _END:
            processes -= 1
        else:
            mailbox.send(message.source, _ANSWER, told)

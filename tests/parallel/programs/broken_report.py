"""`cingulum` with any arguments, whose reports fail: `python broken_report.py HOW train CONFIG`.

HOW: raise, an error that nobody expected; hang, where no signal comes through.
"""

from __future__ import annotations

import signal
import sys
import time

from cingulum.cli.app import main
from trainer import report

how = sys.argv.pop(1)


def write(*arguments: object, **options: object) -> None:
    if how == "hang":
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        time.sleep(100)
    raise ZeroDivisionError("nobody expected this")


report.write = write
main()

"""What holds for all tests."""

from __future__ import annotations

import signal

from hypothesis import settings

# A shell's background job, as a CI may be, ignores Ctrl-C, and so would every program that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No test is about its own time: on a busy machine an example may take long.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

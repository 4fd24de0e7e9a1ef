"""Take a testbed down, whatever state it is in."""

from __future__ import annotations

import contextlib
import os
import shutil

from jobs.testbed import layout, namespaces, quotas


def take_down(name: str) -> bool:
    """End all processes of a testbed and remove its cgroups and files; also of one that was half made.

    Its network, mounts and host names live in namespaces, which go with their last process.

    Returns:
        Whether there was anything to take down.

    Raises:
        JobError: this cannot be the name of a testbed.
        LauncherError: something would not end, or this is run in a testbed's host.
    """
    place = layout.place(name)
    namespaces.check_outside()
    if not os.path.lexists(place):
        return False
    folder = place.resolve()
    namespaces.end_all(folder)
    quotas.remove(name)
    # Files first, the name last: after a crash in between, the name still leads here.
    while folder.exists():
        with contextlib.suppress(FileNotFoundError):  # another `down` is at it, too
            shutil.rmtree(folder)
    place.unlink(missing_ok=True)
    for empty in (layout.BASE, layout.BASE.parent):
        with contextlib.suppress(OSError):  # others are in use
            empty.rmdir()
    return True

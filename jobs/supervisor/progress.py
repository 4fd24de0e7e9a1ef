"""Track the progress of a training over its starts."""

from pathlib import Path
from typing import Optional

from jobs import progress_made
from jobs.progress_made import Standing
from jobs.supervisor.record import read_words, write


class Progress:
    """Progress of one task over its starts, in a file of the job's folder.

    Args:
        path: of that file.
        run: folder that the task trains in; None: it trains in none.
        limited: whether the job has a time limit.
    """

    def __init__(self, path: Path, run: Optional[str], limited: bool) -> None:
        self._path = path
        self._run = run
        self._limited = limited

    def begin(self) -> None:
        """Record where a start begins."""
        if self._run is not None:
            self._keep(progress_made.begun(self._known(), progress_made.newest_step(self._run)))

    def saved(self) -> str:
        """Check what a start has saved; return a warning where it made no progress, else ""."""
        if self._run is None:
            return ""
        now = progress_made.saved(self._known(), progress_made.newest_step(self._run))
        self._keep(now)
        return progress_made.in_words(now, self._limited) if now.idle else ""

    def is_stuck(self) -> bool:
        """Return whether another start would make no progress."""
        return progress_made.is_stuck(self._known())

    def forget(self) -> None:
        """Reset the count, when a user starts the job again."""
        self._keep(Standing(self._known().step, 0))

    def _known(self) -> Standing:
        words = read_words(self._path)
        return Standing(int(words[0]), int(words[1])) if len(words) == 2 else Standing()

    def _keep(self, now: Standing) -> None:
        write(self._path, "%d %d\n" % now)

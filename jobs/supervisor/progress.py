"""Whether a training that is started again gets anywhere, from start to start."""

from pathlib import Path
from typing import Optional

from jobs import progress_made
from jobs.progress_made import Standing
from jobs.supervisor.record import read_words, write


class Progress:
    """What the starts of one task have come to, in a file of the job's folder.

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
        """Note where a start begins."""
        if self._run is not None:
            self._keep(progress_made.begun(self._known(), progress_made.newest_step(self._run)))

    def saved(self) -> str:
        """Look at what a start has saved; a warning where it came no further, "" where it did."""
        if self._run is None:
            return ""
        now = progress_made.saved(self._known(), progress_made.newest_step(self._run))
        self._keep(now)
        return progress_made.in_words(now, self._limited) if now.idle else ""

    def is_stuck(self) -> bool:
        """Whether another start would come no further."""
        return progress_made.is_stuck(self._known())

    def forget(self) -> None:
        """Whoever has the job started again wants it tried anew."""
        self._keep(Standing(self._known().step, 0))

    def _known(self) -> Standing:
        words = read_words(self._path)
        return Standing(int(words[0]), int(words[1])) if len(words) == 2 else Standing()

    def _keep(self, now: Standing) -> None:
        write(self._path, "%d %d\n" % now)

"""What an allowed file of the user's own may import: nothing that lies beside it.

The run's record has the SHA-256 of that one file, so that its neighbours cannot be compared with what the
run was trained with. Installed packages, and modules from other folders of PYTHONPATH, are the user's.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from trainer.errors import RunError
from trainer.models import own


class NeighboursRefused:
    """A finder, first in `sys.meta_path`, for as long as the process lives: layers may import when called.

    Args:
        file: that was allowed.
    """

    def __init__(self, file: Path) -> None:
        self.folder = file.resolve().parent
        self._file = file

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Leave the module to other finders.

        Raises:
            RunError: it would come from the file's folder, or from nowhere but there.
        """
        found = PathFinder.find_spec(name, path)
        if found is None and path is None:
            found = PathFinder.find_spec(name, [str(self.folder)])
        if found is None:
            return None
        # A folder without __init__.py has no origin.
        places = [found.origin] if found.origin else list(found.submodule_search_locations or ())
        beside = [place for place in places if self._is_beside(place)]
        if not beside:
            return None
        raise RunError(
            f"--allow-code {self._file}: imports {name!r} from its own folder ({beside[0]}), which was not "
            "compared with what the run was trained with. It was not imported.",
            cure="Read that file; if you trust it, install it, or put it into another folder of PYTHONPATH. "
            "A network in one file needs neither.",
            path=self._file,
        )

    def _is_beside(self, place: str) -> bool:
        return Path(place).resolve().is_relative_to(self.folder) and not own.is_installed(place)


def refuse_neighbours(file: Path) -> None:
    """From now on, let nothing be imported from the file's folder; calling it again changes nothing."""
    folder = file.resolve().parent
    if not any(isinstance(finder, NeighboursRefused) and finder.folder == folder for finder in sys.meta_path):
        sys.meta_path.insert(0, NeighboursRefused(file))

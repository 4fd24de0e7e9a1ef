"""The file that a network of the user's own came from: which it was, and running it where that was allowed.

A run folder may be a stranger's, so that no command runs code because a run's files name it. Only a file that
the user names is run, and only where it is the one that the run was trained with.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

import keras

from trainer.errors import RunError
from trainer.models import own
from trainer.run_folder.run_record import RunRecord


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
        spec = PathFinder.find_spec(name, path)
        if spec is None and path is None:
            spec = PathFinder.find_spec(name, [str(self.folder)])
        if spec is None:
            return None
        # A folder without __init__.py has no origin.
        places = [spec.origin] if spec.origin else list(spec.submodule_search_locations or ())
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
    """Refuse imports from the file's folder from now on; calling it again changes nothing."""
    folder = file.resolve().parent
    if not any(isinstance(finder, NeighboursRefused) and finder.folder == folder for finder in sys.meta_path):
        sys.meta_path.insert(0, NeighboursRefused(file))


# SHA-256 of the file that registered a class, by the class's registered name.
_registered_by: dict[str, str] = {}


@dataclass(frozen=True)
class Code:
    """A Python file, as it was when it was read.

    Attributes:
        path: as the user named it.
        content: its bytes.
    """

    path: Path
    content: bytes

    @property
    def sha256(self) -> str:
        """Of its bytes, in hex."""
        return hashlib.sha256(self.content).hexdigest()

    @classmethod
    def read(cls, path: Path) -> Code:
        """Read a file.

        Raises:
            RunError: not a regular file, or it cannot be read.
        """
        try:
            if not path.is_file():
                raise RunError(
                    f"--allow-code {path}: there is no such file.", cure="Name a Python file.", path=path
                )
            return cls(path, path.read_bytes())
        except OSError as error:
            raise RunError(f"--allow-code {path}: cannot be read ({error.strerror}).", path=path) from None

    def run(self) -> None:
        """Run the very bytes whose hash was compared, and no compiled copy of them that lies beside.

        Raises:
            ModelError: the code raises an error; its line is named.
            RunError: it registers a class that another such file has registered, or imports a file from its
                own folder.
        """
        name = f"cingulum_own_{self.path.stem}"
        before = dict(keras.saving.get_custom_objects())
        module = ModuleType(name)
        module.__file__ = str(self.path)
        sys.modules[name] = module
        refuse_neighbours(self.path)
        with own.errors_with_place(str(self.path)):
            exec(compile(self.content, str(self.path), "exec"), module.__dict__)  # noqa: S102 - was allowed
        after = keras.saving.get_custom_objects()
        new = [key for key, value in after.items() if before.get(key) is not value]
        for key in new:
            if _registered_by.get(key, self.sha256) != self.sha256:
                raise RunError(
                    f"--allow-code {self.path}: registers {key}, which another allowed file has "
                    "registered already.",
                    cure="Use one command for each of these runs.",
                    path=self.path,
                )
            _registered_by[key] = self.sha256


def recorded(name: str) -> dict[str, str] | None:
    """Return for run.json `file` and `sha256` of a user's own network or strategy; None for one of ours.

    Args:
        name: of a network or strategy that was loaded in this process.
    """
    place = name.rpartition(":")[0]
    if not place:
        return None
    path = Path(place) if place.endswith(".py") else _file_of(place)
    if path is None:
        return None
    return {"file": str(path.resolve()), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def _file_of(module: str) -> Path | None:
    file = getattr(sys.modules.get(module), "__file__", None)
    return Path(file) if file is not None and Path(file).is_file() else None


def chosen(files: Sequence[Path], ran: RunRecord, run: Path) -> list[Code]:
    """Return the allowed files that may be run for a run: the one it was trained with.

    Args:
        files: that the user named.
        ran: the run's record.
        run: folder of the run, for messages.

    Returns:
        One file; none where the run was trained without code of its own; all of them where its record is of
        before such files were recorded.

    Raises:
        RunError: none of them is the one that the run was trained with.
    """
    codes = [Code.read(path) for path in files]
    if not codes or not ran.knows_code:
        if codes:
            sys.stderr.write(
                f"warning: {run}: does not record with which code it was trained (an older cingulum made "
                f"it): {', '.join(str(code.path) for code in codes)} cannot be compared with it.\n"
            )
        return codes
    if ran.code is None:
        return []
    expected = ran.code.sha256
    right = [code for code in codes if code.sha256 == expected]
    if not right:
        shown = ", ".join(f"{code.path} has {code.sha256}" for code in codes)
        raise RunError(
            f"{run}: was trained with a file of SHA-256 {expected[:64]}; {shown}. It was not run.",
            cure="Name the file as it was when the run was trained (`code` in run.json).",
            path=run,
        )
    return right[:1]


def missing(names: Sequence[str], allowed: Sequence[Code] = ()) -> list[str]:
    """Return classes that are not registered, or were registered by a file other than those allowed."""
    hashes = {code.sha256 for code in allowed}
    return [
        name
        for name in names
        if keras.saving.get_registered_object(name) is None
        or (allowed and _registered_by.get(name, "") not in {"", *hashes})
    ]

"""Code of the user's own, 'module:name' or 'file.py:name'; its errors come with their line."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from trainer.errors import CingulumError, InputError, ModelError


def find(name: str, *, what: str = "network", error: type[InputError] = ModelError) -> Callable[..., Any]:
    """Find the function or class, in a module that can be imported here, or in a file.

    Args:
        name: as above.
        what: it is to be: a network, a strategy.
        error: to raise.

    Raises:
        InputError: of the given class: not found, or its file cannot be run.
    """
    place, _, attribute = name.rpartition(":")
    with errors_with_place(name, what=what, error=error):
        if place.endswith(".py"):
            module = _load_file(Path(place), error)
        else:
            module = _load_module(place, f"asked for as {what} {name!r}", error)
    definition = getattr(module, attribute, None)
    if not callable(definition):
        close = difflib.get_close_matches(attribute, dir(module), n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        kind = "class" if what == "strategy" else "function"
        raise error(f"{place} has no {kind} {attribute!r} (asked for as {what} {name!r}).{hint}")
    return definition


@contextlib.contextmanager
def errors_with_place(
    name: str, *, what: str = "network", error: type[InputError] = ModelError
) -> Iterator[None]:
    """Turn what the user's code raises into an error that names the line.

    Raises:
        InputError: of the given class, from any other exception.
    """
    try:
        yield
    except (CingulumError, KeyboardInterrupt):
        raise
    except SystemExit as left:  # a whole program was named, or a function ends the process
        raise error(
            f"{what} {name!r} cannot be built: {_line(left)}: it ends the program (exit code {left.code}).",
            cure="Remove the exit, or put it under: if __name__ == '__main__':",
        ) from left
    except Exception as raised:
        said = f"{type(raised).__name__}: {raised}".rstrip(": ")
        raise error(
            f"{what} {name!r} cannot be built: {_line(raised)}: {said}",
            cure=f"Fix that line, or the options that it gets ({_OPTIONS[what]}).",
        ) from raised


_OPTIONS = {"network": "model.width, model.options", "strategy": "train.strategy.options"}


def _line(error: BaseException) -> str:
    """FILE:LINE of the innermost call that is neither ours nor a library's."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [f for f in frames if not is_installed(f.filename)] or frames
    return f"{theirs[-1].filename}:{theirs[-1].lineno}"


def is_installed(file: str) -> bool:
    """Return whether a source file is part of this package, of Python, or of an installed package."""
    return (
        "site-packages" in file
        or file.startswith(("<", sys.base_prefix + "/lib"))
        or Path(file).is_relative_to(Path(__file__).parents[1])
    )


def _load_file(path: Path, error: type[InputError]) -> ModuleType:
    # Not by its whole path: networks are saved with the name of their module, and runs are moved.
    spec = importlib.util.spec_from_file_location(f"cingulum_own_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise error(f"{path}: there is no such Python file.")
    known = sys.modules.get(spec.name)
    if known is not None and Path(str(known.__file__)).resolve() == path.resolve():
        return known
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]  # as Python does: half a module must not be found next time
        raise
    return module


def _load_module(place: str, request: str, error: type[InputError]) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:  # a console script's path starts at its own folder, not at the user's
        sys.path.append(here)
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as missing:
        if missing.name is None or not (place == missing.name or place.startswith(missing.name + ".")):
            raise  # the module is there; something that it imports is not
        raise error(
            f"There is no module {place!r} ({request}).",
            cure="Run in the folder that holds it, or name its file: path/to/file.py:name",
        ) from None

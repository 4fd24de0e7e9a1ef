"""Opening saved networks: no code runs because a run folder names it."""

from __future__ import annotations

import json
import stat
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import keras

import trainer.models  # noqa: F401 - makes our layers known to Keras
from trainer.errors import RunError, typed
from trainer.models import own_code
from trainer.run_folder import resuming
from trainer.run_folder.record import RunFolder
from trainer.run_folder.run_record import RunRecord

# The option of a command that allows a file to be run.
_OPTION = "Where you trust it: --allow-code FILE"


def load_model(folder: RunFolder, code: Sequence[Path] = (), *, option: str = _OPTION) -> keras.Model:
    """Return the best epoch's network of a finished run.

    Args:
        folder: of the run.
        code: Python files that the user allowed to be run for layers that are neither Keras' nor ours.
        option: how the user can allow one, for the message.

    Raises:
        RunError: model.keras is damaged, or unsafe to open; it has layers of its own, and no file was
            allowed, or none that the run was trained with.
        ModelError: such a file raises an error.
    """
    ran = RunRecord.read(folder.run)
    allowed = own_code.chosen(code, ran, folder.path)
    names = own_classes(folder.model)
    for file in allowed:
        if own_code.missing(names, allowed):
            file.run()
    absent = own_code.missing(names, allowed)
    if absent:
        raise _unknown(folder.model, absent, _cure(ran, allowed, option))
    cure = f"Write it again: rm {typed(folder.result)}; {resuming.command(folder)}"
    return _opened(folder.model, cure)


def open_file(path: Path) -> keras.Model:
    """Return the network in a `.keras` file.

    Raises:
        RunError: it is damaged or unsafe to open, or has layers that are not registered with Keras.
    """
    absent = own_code.missing(own_classes(path))
    if absent:
        raise _unknown(path, absent, "Take a file without them.")
    return _opened(path, None)


def _opened(path: Path, cure: str | None) -> keras.Model:
    try:
        return keras.saving.load_model(path, compile=False, safe_mode=True)
    except Exception as error:
        # A damaged or made-up file can make Keras raise anything.
        reason = str(error).partition("\n")[0][:300] or type(error).__name__
        raise RunError(
            f"{path}: cannot be opened as a Keras model ({reason}).", cure=cure, path=path
        ) from None


def _unknown(path: Path, absent: Sequence[str], cure: str) -> RunError:
    shown = ", ".join(repr(name[:60]) for name in absent[:5]) + (" and others" if len(absent) > 5 else "")
    return RunError(
        f"{path}: has layers or functions that are neither Keras' nor ours: {shown}.", cure=cure, path=path
    )


def _cure(ran: RunRecord, allowed: Sequence[own_code.Code], option: str) -> str:
    if allowed:
        files = ", ".join(str(code.path) for code in allowed)
        return f"{files} does not register them: @keras.saving.register_keras_serializable() on each class."
    if ran.knows_code and ran.code is None:
        return "The run was trained without code of its own (run.json), so that its network needs none."
    hint = f"Their code is not run unasked. {option}"
    if ran.code is None:
        return f"{hint} (the run does not record which: an older cingulum made it)."
    return f"{hint}, which was {ran.code.file[:200]!r} when it was trained."


# Looking into a `.keras` file before Keras opens it: it may be a stranger's.
#
# Such a file names the classes and functions that Keras is to look up and call. Keras' safe mode refuses
# those that are known to do harm. Here only those pass that belong to networks: docs/decisions/0038.


# docs/decisions/0038: Keras compresses nothing, so that a file unpacks to its own size.
MOST_TIMES_LARGER = 4
MOST_CONFIG = 64 << 20
MOST_MEMBERS = 1000
_HEADERS = 1 << 20  # what small members may exceed that factor by

# Where the classes of a saved network come from, and classes of these modules that run code or read files.
_CLASSES = frozenset(
    f"keras.{name}"
    for name in [
        "constraints",
        "initializers",
        "layers",
        "losses",
        "metrics",
        "optimizers",
        "optimizers.schedules",
        "regularizers",
    ]
)
_HARMFUL = frozenset(
    [
        "FlaxLayer",
        "IntegerLookup",
        "JaxLayer",
        "Lambda",
        "StringLookup",
        "TFSMLayer",
        "TextVectorization",
        "TorchModuleWrapper",
    ]
)
_FUNCTIONS = frozenset({"builtins", "keras.activations", "keras.initializers", "keras.ops"})
# Operations on symbolic tensors, such as x[:, 0] or keras.ops.mean(x), are classes without a public name.
_OPERATIONS = "keras.src.ops."
_FURTHER = frozenset(
    {
        ("keras", "DTypePolicy"),
        ("keras", "FloatDTypePolicy"),
        ("keras", "Model"),
        ("keras", "Sequential"),
        ("keras.src.models.functional", "Functional"),
        ("keras.src.models.sequential", "Sequential"),
    }
)
_VALUES = frozenset({"__bytes__", "__ellipsis__", "__keras_tensor__", "__numpy__", "__slice__", "__tensor__"})


def own_classes(path: Path) -> tuple[str, ...]:
    """Return the classes and functions of a saved network that are not Keras' own, by registered name,
    sorted.

    Args:
        path: a `.keras` file. Nothing that it names is imported or called.

    Raises:
        RunError: it is no `.keras` file, unpacks to much more than its size, writes outside its folder, or
            names something of Keras that is no part of a network or could run code.
    """
    tree = _config(path)
    if isinstance(tree, dict):
        tree = {key: value for key, value in tree.items() if key != "compile_config"}  # it is not compiled
    own = set()
    for node in _named(tree):
        try:
            name = _own(node)
        except ValueError as error:
            raise RunError(
                f"{path}: was not opened: it asks Keras for {error}, which is no part of a network that can "
                "be opened safely.",
                cure="A layer that needs it can be a class of your own: docs/how-to/add-your-own-network.md",
                path=path,
            ) from None
        if name is not None:
            own.add(name)
    return tuple(sorted(own))


def _config(path: Path) -> Any:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise RunError(f"{path}: is not a regular file.", path=path)
        with zipfile.ZipFile(path) as archive:
            _check_members(path, archive, status.st_size)
            return json.loads(archive.read("config.json"))
    except KeyError:
        raise RunError(f"{path}: is not a .keras file: it has no config.json.", path=path) from None
    except (
        OSError,
        ValueError,
        RuntimeError,  # encrypted; RecursionError: JSON nested too deep
        NotImplementedError,
        EOFError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        reason = " ".join(str(error).split())[:200]
        raise RunError(f"{path}: cannot be opened as a Keras model ({reason}).", path=path) from None


def _check_members(path: Path, archive: zipfile.ZipFile, size: int) -> None:
    """Refuse what would unpack to much more than the file, or elsewhere; reads nothing but the directory."""
    members = archive.infolist()
    names = [member.filename for member in members]
    outside = [
        name for name in names if "\\" in name or name.startswith("/") or ".." in PurePosixPath(name).parts
    ]
    if outside:
        raise RunError(
            f"{path}: was not opened: it holds a file outside its folder, {outside[0][:100]!r}.", path=path
        )
    if len(names) > MOST_MEMBERS or len(set(names)) < len(names):
        raise RunError(
            f"{path}: was not opened: it holds {len(names)} files, or one of them twice.", path=path
        )
    unpacked = sum(member.file_size for member in members)
    most = MOST_TIMES_LARGER * size + _HEADERS
    config = sum(member.file_size for member in members if member.filename == "config.json")
    if unpacked > most or config > MOST_CONFIG:
        raise RunError(
            f"{path}: was not opened: its {size} bytes would unpack to {unpacked} "
            f"({config} of config.json), more than a Keras model's.",
            path=path,
        )


def _named(tree: Any) -> Iterator[dict[str, Any]]:
    """Every node that names a class or function; without recursion, however deep the tree is."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            if "class_name" in node:
                yield node
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node


def _own(node: dict[str, Any]) -> str | None:
    """The registered name of what is not Keras' own; None for what is.

    Raises:
        ValueError: Keras would look it up in itself, and it is none of what networks are made of; says what.
    """
    name, module, registered = node["class_name"], node.get("module"), node.get("registered_name")
    if not isinstance(name, str):
        raise ValueError(repr(name)[:100])
    if name in _VALUES:
        return None
    if name == "function":
        name = node.get("config")
        if not isinstance(name, str):
            raise ValueError("a function without a name")
        if module == "builtins" and ">" in name:  # a registered function of one's own
            return name
        if module in _FUNCTIONS:
            return None
        registered = name  # Keras looks functions up by this
    elif (
        (module in _CLASSES and name not in _HARMFUL)
        or (module, name) in _FURTHER
        or (isinstance(module, str) and module.startswith(_OPERATIONS))
    ):
        return None
    if isinstance(module, str) and module.partition(".")[0] != "keras" and not name.startswith("__"):
        return registered if isinstance(registered, str) and registered else name
    raise ValueError(f"{module}.{name}"[:100] if isinstance(module, str) else repr(name)[:100])

"""YAML that people write, read within bounds: of size, of depth, of what aliases stand for.

It is `yaml.SafeLoader` with less: no tags, no dates, no key twice, nothing that a short file makes long.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from yaml.events import AliasEvent
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from trainer.errors import ConfigError, InputError

# A configuration with every key has 200 values in 8 KiB, and is 5 deep.
MOST_BYTES = 2**20
MOST_VALUES = 10_000
MOST_DEPTH = 32
# A text counts as one value for each so many characters: aliases may repeat it.
_LONG_TEXT = 1024
# Digits: the time for reading a number grows with the square of its length.
_LONGEST_NUMBER = 100

_TAG = "tag:yaml.org,2002:"
_EXAMPLE = "Name a YAML file, such as examples/demo.yaml"


@dataclass(frozen=True)
class Document:
    """What a YAML text holds.

    Attributes:
        tree: mappings, lists, texts, numbers, true, false and None.
        written: as it was written, by its keys and places in lists, each value that YAML reads as something
            else than text though it stands without quotes: `NO` for false.
    """

    tree: Any
    written: Mapping[tuple[str | int, ...], str] = field(default_factory=dict)


def read(path: Path, *, error: type[InputError] = ConfigError, cure: str = _EXAMPLE) -> Document:
    """Read a file; see `parse`.

    Args:
        path: of an ordinary file; a pipe or a device would be waited for, or never end.
        error: what to raise.
        cure: what to do about a file that cannot be read.

    Raises:
        InputError: of the kind `error`: it cannot be read, is no ordinary file, or not what `parse` takes.
    """
    return parse(read_text(path, error=error, cure=cure), source=str(path), error=error)


def read_text(path: Path, *, error: type[InputError] = ConfigError, cure: str = _EXAMPLE) -> str:
    """Return the text of an ordinary file of UTF-8, of at most MOST_BYTES.

    Raises:
        InputError: of the kind `error`, for any other.
    """
    try:
        with open(path.expanduser(), "rb", opener=_without_waiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise error(
                    f"{path}: cannot be read as a text file (it is a pipe or a device).", cure=cure, path=path
                )
            data = file.read(MOST_BYTES + 1)
        text = data.decode("utf-8") if len(data) <= MOST_BYTES else ""
    except FileNotFoundError:
        raise error(f"{path}: cannot be read: there is no such file.", cure=cure, path=path) from None
    except UnicodeDecodeError as wrong:
        said = f"byte {wrong.start} is not UTF-8"
        raise error(f"{path}: cannot be read as a text file ({said}).", cure=cure, path=path) from None
    except (OSError, ValueError, RuntimeError) as wrong:  # a NUL in its name; ~ of an unknown user
        reason = wrong.strerror if isinstance(wrong, OSError) else wrong
        raise error(f"{path}: cannot be read as a text file ({reason}).", cure=cure, path=path) from None
    if len(data) > MOST_BYTES:
        raise error(
            f"{path}: is larger than {MOST_BYTES // 2**20} MiB, too large for a YAML file.",
            cure=cure,
            path=path,
        )
    return text


def parse(text: str, *, source: str, error: type[InputError] = ConfigError) -> Document:
    """Read a text that holds one YAML document.

    Args:
        text: the YAML.
        source: names it in errors.
        error: what to raise.

    Raises:
        InputError: of the kind `error`: it is no YAML, is larger or deeper than the bounds above, holds a key
            twice, a tag, or an alias that stands for itself.
    """
    if len(text) > MOST_BYTES:
        raise error(f"{source}: is larger than {MOST_BYTES // 2**20} MiB, too large for YAML.")
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        tree = loader.construct_document(node) if node is not None else None
        return Document(tree, dict(_written(node, ())))
    except _Refused as refused:
        raise error(f"{source}: line {refused.line}: {refused.message}.", cure=refused.cure) from None
    except yaml.MarkedYAMLError as wrong:
        mark = wrong.problem_mark or wrong.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise error(f"{source}: is not YAML: {where}{wrong.problem or wrong.context}.") from None
    except yaml.reader.ReaderError as wrong:
        line = text.count("\n", 0, wrong.position) + 1
        said = f"a character that no text has (U+{ord(text[wrong.position]):04X})"
        raise error(f"{source}: is not YAML: line {line}: {said}.") from None


def _without_waiting(path: str, flags: int) -> int:
    """Open a file without waiting, even a pipe that no process writes to."""
    return os.open(path, flags | os.O_NONBLOCK)


class _Refused(Exception):
    """What is valid YAML, and more than we take."""

    def __init__(self, line: int, message: str, cure: str | None = None) -> None:
        super().__init__(message)
        self.line, self.message, self.cure = line, message, cure


class _Loader(yaml.SafeLoader):
    """Counts while the tree is put together, before anything is made of it."""

    # Dates would be no texts any more; '=' means nothing to anyone.
    yaml_implicit_resolvers = {  # noqa: RUF012 (as PyYAML has it)
        first: [(tag, form) for tag, form in resolvers if tag not in (f"{_TAG}timestamp", f"{_TAG}value")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._values = 0
        self._sizes: dict[int, int] = {}

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        event: Any = self.peek_event()
        line = event.start_mark.line + 1
        if isinstance(event, AliasEvent):
            self._count_alias(str(event.anchor), line)
            return super().compose_node(parent, index)
        if event.tag not in (None, "!"):
            raise _Refused(line, f"the tag {_cut(event.tag)} is not taken", "Write the value without a tag.")
        self._depth += 1
        if self._depth > MOST_DEPTH:
            raise _Refused(line, f"is nested more than {MOST_DEPTH} deep")
        before = self._values
        node = super().compose_node(parent, index)
        self._depth -= 1
        self._count(1 + len(node.value) // _LONG_TEXT if isinstance(node, ScalarNode) else 1, line)
        if event.anchor is not None:
            self._sizes[id(node)] = self._values - before
        if isinstance(node, MappingNode):
            _check_keys(node)
        return node

    def _count_alias(self, name: str, line: int) -> None:
        node = self.anchors.get(name)
        if node is None:  # PyYAML tells it
            return
        if id(node) not in self._sizes:
            raise _Refused(line, f"the alias *{_cut(name)} stands for what holds it")
        self._count(self._sizes[id(node)], line)

    def _count(self, values: int, line: int) -> None:
        self._values += values
        if self._values > MOST_VALUES:
            raise _Refused(line, f"more than {MOST_VALUES:,} values, where aliases (*name) are written out")


def _number(loader: _Loader, node: ScalarNode) -> int | float:
    """A number of bounded length; what only begins like one, such as `0x_`, is refused."""
    line = node.start_mark.line + 1
    if len(node.value) > _LONGEST_NUMBER:
        raise _Refused(line, f"a number of {len(node.value)} digits", "Write a text in quotes.")
    try:
        if node.tag == f"{_TAG}int":
            return loader.construct_yaml_int(node)
        return float(loader.construct_yaml_float(node))
    except (ValueError, OverflowError):
        raise _Refused(line, f"{node.value} is no number", f"As a text: '{node.value}', in quotes.") from None


_Loader.add_constructor(f"{_TAG}int", _number)
_Loader.add_constructor(f"{_TAG}float", _number)


def _check_keys(node: MappingNode) -> None:
    """Refuse keys that are no plain words, and those given twice: the last would win without a word."""
    lines: dict[tuple[str, str], int] = {}
    for key, _ in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, ScalarNode):
            raise _Refused(line, "a key is a word, not a list or a mapping")
        if key.tag not in (f"{_TAG}str", f"{_TAG}merge"):
            said = f"the key {_cut(key.value)!r} is no text as YAML reads it"
            raise _Refused(line, said, f"Write {_cut(key.value)!r}, in quotes.")
        first = lines.get((key.tag, key.value))
        if first is not None:
            twice = f"the key {_cut(key.value)!r} is there twice, in line {first} and in line {line}"
            raise _Refused(line, twice, "Keep one of them.")
        lines[key.tag, key.value] = line


def _written(node: Node | None, place: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Every value without quotes that is no text, with its place."""
    if isinstance(node, MappingNode):
        for key, value in node.value:
            yield from _written(value, (*place, key.value))
    elif isinstance(node, SequenceNode):
        for number, value in enumerate(node.value):
            yield from _written(value, (*place, number))
    elif isinstance(node, ScalarNode) and node.tag != f"{_TAG}str":
        yield place, node.value


def _cut(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:60]}..."

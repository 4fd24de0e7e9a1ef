"""What is wrong with a configuration, in sentences: of pydantic's findings, and without its words."""

from __future__ import annotations

import difflib
import functools
import math
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from trainer.config import strategy
from trainer.config.run import RunConfig

COMMAND_LINE = "command line"
# What may be a name alone, or a section with the keys of the strategy that is named.
STRATEGY = ("train", "strategy")
Place = tuple[str | int, ...]

# What is shown of a value, and of all that is wrong, at 80 columns: a screen has 24 lines.
_MOST_SHOWN = 200
_MOST_LINES = 20
_COLUMNS = 80

_SENTENCES = {
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a smaller whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "string_type": "must be text",
    "string_unicode": "must be text without halves of characters",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    "path_type": "must be a path",
    "literal_error": "must be {expected}",
    "list_type": "must be a list, such as [a, b]",
    "tuple_type": "must be a list, such as [a, b]",
    "dict_type": "must be a section with keys of its own",
    "model_type": "must be a section with keys of its own",
    "model_attributes_type": "must be a section with keys of its own",
    "too_short": "must have at least {min_length} entries",
    "too_long": "must have at most {max_length} entries",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "invalid_key": "a key must be text",
}
_NAMES = "must be letters, digits, '.', '_' and '-', starting with a letter or a digit"
# Where YAML may have read something else than was meant.
_TEXTS = ("string_type", "path_type", "invalid_key")


def fields(section: type[BaseModel] = RunConfig, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every dotted key with its pydantic field, in order: for suggestions and for the reference page.

    Keys of all strategies stand beneath `train.strategy`. Keys that are read, but not written, are left out.
    """
    for name, field in section.model_fields.items():
        if field.exclude:
            continue
        yield prefix + name, field
        seen = set()
        for nested in sections_of(field.annotation):
            for key, inner in fields(nested, f"{prefix}{name}."):
                if key not in seen:
                    yield key, inner
                seen.add(key)
        for named_alike, entry in _entries_of(field.annotation):
            yield from fields(entry, f"{prefix}{name}.{named_alike}.")


def on_resume(key: str, *strategies: BaseModel) -> str:
    """Return whether a dotted key `may change` or `may grow` when a run is resumed; empty if it must not
    change.

    Args:
        key: in full, such as `train.epochs`.
        strategies: sections of the run before and after, where these may be two: what one of them forbids, or
            says otherwise than the other, is forbidden.
    """
    name = key.removeprefix("train.strategy.")
    own = [type(one).model_fields[name] for one in strategies if name in type(one).model_fields]
    marks = {_mark(field) for field in own} if name != key else set()
    if marks:
        return marks.pop() if len(marks) == 1 else ""
    return _on_resume().get(key, "")


def _mark(field: FieldInfo) -> str:
    mark = field.json_schema_extra
    return str(mark.get("on_resume", "")) if isinstance(mark, dict) else ""


@functools.cache
def _on_resume() -> dict[str, str]:
    return {key: mark for key, field in fields() if (mark := _mark(field))}


def section_of(annotation: Any) -> type[BaseModel] | None:
    """Return the Section that an annotation such as `X` or `X | None` holds; the first of several."""
    return next(iter(sections_of(annotation)), None)


def sections_of(annotation: Any) -> list[type[BaseModel]]:
    """Return all Sections that an annotation such as `X | None` or a union of strategies holds."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return sections_of(typing.get_args(annotation)[0])
    if origin in (types.UnionType, typing.Union):
        return [section for member in typing.get_args(annotation) for section in sections_of(member)]
    return [annotation] if isinstance(annotation, type) and issubclass(annotation, BaseModel) else []


def _entries_of(annotation: Any) -> Iterator[tuple[str, type[BaseModel]]]:
    """Names and Section of a mapping that holds one for each of these names; nothing of any other type."""
    if typing.get_origin(annotation) is dict:
        names, section = typing.get_args(annotation)
        if typing.get_origin(names) is typing.Literal and issubclass(section, BaseModel):
            yield from ((name, section) for name in typing.get_args(names))


def explain(
    source: str,
    problem: Any,
    section: type[BaseModel],
    written: Mapping[Place, str] | None = None,
    *,
    is_named: bool = False,
) -> str:
    """Return one of pydantic's errors about a `section` as a sentence that names the key, and suggests a
    similar one.

    Args:
        source: what held the value: a file, `command line`.
        problem: one of `ValidationError.errors()`.
        section: what was to be made.
        written: see `yaml_reader.Document`.
        is_named: `source` says the key and the value.
    """
    where, kind, value = named(problem["loc"]), problem["type"], problem["input"]
    if kind == "extra_forbidden":
        return f"{source}: unknown key {where!r}{_of_strategy(problem)}.{_suggestion(where, section)}"
    if kind == "missing" and isinstance(problem["loc"][-1], str):
        return f"{source}: {where!r} is missing: it must be given."
    start = f"{source}: {where}: " if where and not is_named else f"{source}: "
    quote = (written or {}).get(problem["loc"])
    if kind in _TEXTS and quote and value is not None:
        read = shown(value) if isinstance(value, bool) else "a number"
        # The shell takes a pair of quotes for itself.
        again = ", and double quotes around the whole change" if source.startswith(COMMAND_LINE) else ""
        quotes = f"write {cut(repr(quote))} in quotes{again}: YAML reads it as {read}"
        return f"{start}{_sentence(problem)}; {quotes}."
    given = "" if isinstance(value, dict) or kind == "missing" or is_named else f", not {shown(value)}"
    return f"{start}{_sentence(problem)}{given}."


def plain(problem: Any) -> Any:
    """Return one of pydantic's errors with its place as the key is written."""
    place = problem["loc"]
    if place[:2] == STRATEGY and len(place) > 2:
        return {**problem, "loc": (*STRATEGY, *place[3:]), "strategy": place[2]}
    return problem


def _of_strategy(problem: Any) -> str:
    if "strategy" not in problem:
        return ""
    if problem["strategy"] == "own":
        return " of the strategy of your own; its keys go into train.strategy.options"
    owner = strategy.owner(str(problem["loc"][-1]))
    belongs = f"; it is one of {owner}" if owner else ""
    return f" of the strategy {problem['strategy']}{belongs}"


def apart(problems: Sequence[Any]) -> list[Any]:
    """Return the problems, as `plain`, without those that others cause: the length of a list with wrong
    entries, and keys that a strategy without a name does not have.
    """
    problems = [plain(problem) for problem in problems]
    places = {tuple(problem["loc"]) for problem in problems}
    # Of a list, pydantic counts only the entries in which nothing is wrong, at any depth.
    holders = {place[:depth] for place in places for depth in range(len(place))}
    return [problem for problem in problems if not _is_caused(problem, places, holders)]


def _is_caused(problem: Any, places: Set[Place], holders: Set[Place]) -> bool:
    """Return whether a problem is only there because of those at other places, or beneath its own."""
    if problem["type"] == "extra_forbidden" and problem.get("strategy") == "own":
        return (*STRATEGY, "name") in places  # whose keys these are is not known
    return problem["type"] == "too_short" and tuple(problem["loc"]) in holders


def screenful(sentences: Iterable[str], count: int) -> str:
    """Return as many of `count` sentences as fit on a screen, one a line, and how many more there are.

    They are asked for one by one: each may have taken a search for a key like it.
    """
    shown_ones: list[str] = []
    lines = 0
    for sentence in sentences:
        lines += -(-len(sentence) // _COLUMNS)
        if shown_ones and lines > _MOST_LINES:
            break
        shown_ones.append(sentence)
    if len(shown_ones) < count:
        shown_ones.append(f"and {count - len(shown_ones)} more.")
    return "\n".join(shown_ones)


def named(place: Place) -> str:
    """Return a key with dots, and which entry of its list: `data.classes, entry 1`."""
    keys = [str(part) for part in place if isinstance(part, str) and part != "[key]"]
    entries = [f", entry {part + 1}" for part in place if isinstance(part, int)]
    return cut(".".join(keys) + "".join(entries))


def shown(value: Any) -> str:
    """Return a value as YAML would have it, cut where it is long."""
    return cut("".join(_pieces(value)))


def cut(text: str) -> str:
    """Return the beginning of a long text."""
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def _pieces(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield "{" + ", ".join(f"{shown(key)}: {shown(one)}" for key, one in _first(value.items())) + "}"
    elif isinstance(value, (list, tuple)):
        yield "[" + ", ".join(shown(one) for one in _first(value)) + "]"
    elif value is None or isinstance(value, bool):
        yield {None: "null", True: "true", False: "false"}[value]
    elif isinstance(value, str):
        yield repr(value[: _MOST_SHOWN + 1])
    elif isinstance(value, float) and not math.isfinite(value):
        yield ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    else:
        yield str(value)


def _first(values: Iterable[Any]) -> list[Any]:
    return [value for value, _ in zip(values, range(_MOST_SHOWN), strict=False)]


def _sentence(problem: Any) -> str:
    kind, context = problem["type"], problem.get("ctx", {})
    if kind == "value_error":
        return str(problem["msg"]).removeprefix("Value error, ")
    if kind == "string_pattern_mismatch":
        if problem["loc"] == (*STRATEGY, "name"):
            return "must be 'file.py:Class' or 'module:Class'"
        plain = problem["loc"] == ("name",)
        return _NAMES if plain else "must be letters, digits and _ . , : + @ / -, without blanks"
    if kind == "missing":
        return "is missing"
    if kind in _SENTENCES:
        return _SENTENCES[kind].format(**{name: figure(value) for name, value in context.items()})
    return str(problem["msg"]) if kind == "holds_nul" else "cannot be used"


def figure(value: Any) -> str:
    """Return a bound, with separators where it is long."""
    if isinstance(value, (int, float)) and value == int(value) and value >= 10_000:
        return f"{int(value):,}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _suggestion(where: str, section: type[BaseModel]) -> str:
    known = [key for key, _ in fields(section)]
    if where in known:  # of another strategy
        return ""
    # A key beside it that begins alike, one that is spelled alike, or the right word in another section.
    section_name, _, word = where.rpartition(".")
    beside = [key for key in known if key.rpartition(".")[0] == section_name]
    close = [key for key in beside if len(word) > 2 and key.rpartition(".")[2].startswith(word)]
    above = [key for key in known if not where.startswith(f"{key}.")]
    close += difflib.get_close_matches(where, above, n=1, cutoff=0.6)
    close += [key for key in known if key.rpartition(".")[2] == word]
    return f" Did you mean {close[0]!r}?" if close else ""

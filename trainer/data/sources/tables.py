"""Tables of people or images: CSV or TSV files with a header line."""

from __future__ import annotations

import csv
import difflib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer.errors import CohortError

# BIDS writes n/a (specification, "Tabular files"); spreadsheets and pandas write the others, in any case.
MISSING = frozenset({
    "", "n/a", "na", "nan", "-nan", "null", "none", ".", "?", "<na>", "nat", "#n/a", "#na", "#n/a n/a",
    "#null!", "#value!", "#ref!", "#div/0!", "#num!", "#name?",
})  # fmt: skip

Row = dict[str, str | None]


@dataclass(frozen=True)
class TextTable:
    """A table as text.

    Attributes:
        rows: map every column to its cell, None where the value is missing.
        lines: number of the line of the file that each row begins on.
        odd_lines: of rows that were left out, since they have more or fewer cells than columns.
    """

    path: Path
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    lines: tuple[int, ...]
    odd_lines: tuple[int, ...] = ()

    def find(self, names: Sequence[str]) -> str | None:
        """Return the first of `names` that is a column, in this spelling or else in another case.

        Raises:
            CohortError: several columns are it, in other cases.
        """
        for name in names:
            columns = [column for column in self.columns if column.lower() == name.lower()]
            if len(columns) > 1 and name not in columns:
                raise CohortError(
                    f"{self.path}: has the columns {', '.join(columns)}, and {name!r} may be any of them.",
                    cure="Rename all but one.",
                )
            if columns:
                return name if name in columns else columns[0]
        return None

    def need(self, names: Sequence[str], what: str) -> str:
        """Return the first of `names` that is a column.

        Raises:
            CohortError: there is no such column; the message lists those there are.
        """
        column = self.find(names)
        if column is not None:
            return column
        expected = " or ".join(repr(name) for name in names)
        close = difflib.get_close_matches(names[0], self.columns, n=1, cutoff=0.6)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise CohortError(
            f"{self.path}: has no column {expected} for {what}; it has {', '.join(self.columns)}.{hint}",
            cure=f"Give the column of {what} this name"
            + (", or use another with --label NAME." if what == "the label" else "."),
        )


def read(path: Path, *, leave_odd_lines: bool = False) -> TextTable:
    """Return a table; the separator is the most frequent of comma, semicolon and tab in the header.

    Tabs in the header of a `.tsv` decide, however many commas its columns' names have. A line with an
    empty cell more than the header may be shifted by one, so that it is not taken either.

    Args:
        path: of the file.
        leave_odd_lines: whether rows with too many or too few cells are left out, and listed in `odd_lines`.

    Raises:
        CohortError: no such file, not text, no header, a column twice, a quote that does not end; without
            `leave_odd_lines`, a row with too many or too few cells.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise CohortError(
            f"{path}: there is no such file.", cure="Give the path of a CSV or TSV file.", path=path
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise CohortError(
            f"{path}: cannot be read as UTF-8 text ({error}).", cure="Save the table as CSV in UTF-8."
        ) from None
    header = text.split("\n", 1)[0]
    by_tabs = path.suffix.lower() == ".tsv" and "\t" in header
    delimiter = "\t" if by_tabs else max(",;\t", key=header.count)
    reader = csv.reader(io.StringIO(text), delimiter=delimiter, strict=True)
    lines: list[tuple[int, list[str]]] = []
    begins = 1
    try:
        for cells in reader:
            lines.append((begins, cells))
            begins = reader.line_num + 1
    except csv.Error as error:
        raise CohortError(
            f"{path}: is not a table ({error}, in the row that begins on line {begins}).",
            cure="Correct the quotes there, or save the table as CSV in UTF-8.",
        ) from None
    if not lines or not any(cell.strip() for cell in lines[0][1]):
        raise CohortError(
            f"{path}: is empty; its first line must name the columns.",
            cure="See docs/how-to/import-your-own-images.md.",
        )
    columns = tuple(cell.strip() for cell in lines[0][1])
    if len(set(columns)) < len(columns):
        twice = next(column for column in columns if columns.count(column) > 1)
        raise CohortError(f"{path}: names the column {twice!r} twice.", cure="Rename or remove one of them.")
    odd_lines: list[int] | None = [] if leave_odd_lines else None
    rows = _rows(path, columns, lines[1:], odd_lines)
    texts, numbers = (row for _, row in rows), (line for line, _ in rows)
    return TextTable(path, columns, tuple(texts), tuple(numbers), tuple(odd_lines or ()))


def _rows(
    path: Path, columns: tuple[str, ...], lines: Sequence[tuple[int, list[str]]], odd: list[int] | None
) -> list[tuple[int, Row]]:
    rows: list[tuple[int, Row]] = []
    for number, cells in lines:
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) != len(columns) and odd is not None:
            odd.append(number)
            continue
        if len(cells) != len(columns):
            raise CohortError(
                f"{path}: line {number} has {len(cells)} cells, but the header has {len(columns)}.",
                cure="Correct the line; a cell that holds the delimiter must be in double quotes.",
            )
        rows.append((number, {column: value(cell) for column, cell in zip(columns, cells, strict=True)}))
    return rows


def value(cell: str) -> str | None:
    """Return the cell without surrounding blanks, or None for the usual words for a missing value."""
    text = cell.strip()
    return None if text.lower() in MISSING else text

"""Join tables to images: ids compared as prefix and number, one row per id, and never a guess.

Folders, file names and tables spell one id differently: `sub-01`, `1` and the `1.0` of spreadsheets;
`ses-M48` and `M048`. Compared as text, a row would be missed, and the label of another table be taken.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from trainer.data.images.findings import Finding, warning
from trainer.data.sources.file_names import first_three
from trainer.data.sources.tables import Row, TextTable
from trainer.errors import CohortError

SUBJECT_COLUMNS = ("participant_id", "subject", "subject_id", "sub", "id")
SESSION_COLUMNS = ("session", "session_id", "visit")

IdKey = tuple[tuple[str, str], ...]

_BIDS_KEY = re.compile(r"^(sub|ses)-")
_DECIMALS = re.compile(r"(?<=[0-9])\.0+$")  # what spreadsheets make of whole numbers beside an empty cell
_PARTS = re.compile(r"([^0-9]*)([0-9]*)")
_NUMBER = re.compile(
    r"[+-]?[0-9]{1,30}([.][0-9]{1,30}|,([0-9]{1,2}|[0-9]{4,30}))?"
)  # 1,000 may be a thousand
_HOW = "Ids are compared as prefix and number: sub-01, 1 and 1.0 are one id, S01 is another."


def id_key(text: str) -> IdKey:
    """Return what two spellings of one id share: pairs of (letters, number without zeros in front).

    BIDS' `sub-` and `ses-`, case (BIDS lets no two ids differ in it alone) and `.0` at the end do not count.
    """
    plain = unicodedata.normalize("NFKC", text.strip().casefold())
    plain = _DECIMALS.sub("", _BIDS_KEY.sub("", plain))
    pairs = (match.groups() for match in _PARTS.finditer(plain))
    return tuple(
        (prefix, (digits.lstrip("0") or "0") if digits else "")
        for prefix, digits in pairs
        if prefix or digits
    )


def id_order(text: str) -> tuple[tuple[str, int, str], ...]:
    """Return a key that sorts ids by prefix, then by number: M6 before M012."""
    return tuple((prefix, len(number), number) for prefix, number in id_key(text))


def as_number(text: str) -> Decimal | None:
    """Return the number that a cell holds, as `1`, `1.0` or `1,0`; None where it holds something else."""
    plain = unicodedata.normalize("NFKC", text.strip())
    return Decimal(plain.replace(",", ".")) if _NUMBER.fullmatch(plain) else None


def check_distinct(names: Mapping[str, str], what: str, where: str) -> None:
    """Check that no two names are spellings of one id.

    Args:
        names: each name with an example of where it stands.
        what: of which they are names, such as `subject`.
        where: of the cohort.

    Raises:
        CohortError: two are; both are named.
    """
    first: dict[IdKey, str] = {}
    alike = [
        f"{other} ({names[other]}) and {name} ({example})"
        for name, example in names.items()
        if (other := first.setdefault(id_key(name), name)) != name
    ]
    if alike:
        more = f"; and {len(alike) - 3} more pairs" if len(alike) > 3 else ""
        raise CohortError(
            f"{where}: two spellings of one {what}: {'; '.join(alike[:3])}{more}.",
            cure=f"{_HOW} If they are one {what}, spell it in one way; if not, rename one of them.",
        )


def not_joined(where: str, images: Iterable[str], table: TextTable, ids: Iterable[str]) -> CohortError:
    """Return the error of a table none of whose ids is that of an image, with the first ids of both."""
    names = list(dict.fromkeys(images))
    return CohortError(
        f"{where}: none of its {len(names)} ids ({first_three(names)}) is in {table.path}, whose ids are "
        f"{first_three(dict.fromkeys(ids)) or 'missing'}.",
        cure=f"{_HOW} Correct the ids of the table, or give the table of these images.",
    )


def lines_without_id(table: TextTable, lines: Sequence[int], column: str) -> list[Finding]:
    """Return a warning for rows that name nothing, by the lines of the file they are on; [] without any."""
    if not lines:
        return []
    what = f"{len(lines)} row{'s' * (len(lines) > 1)} of {table.path.name} without {column}"
    message = f"{what} {'are' if len(lines) > 1 else 'is'} left out: line {first_three(map(str, lines))}."
    return [warning("no-id", message, "Fill in the column, or remove them.")]


@dataclass(frozen=True)
class RowsById:
    """Rows of a table by id, one for each.

    Attributes:
        table: the table.
        columns: whose cells are the id, such as subject and session; all but the first may be empty.
        by_id: row of each id.
        without_id: lines of the file whose first cell of the id is empty.
    """

    table: TextTable
    columns: tuple[str, ...]
    by_id: dict[tuple[IdKey | None, ...], Row]
    without_id: tuple[int, ...]

    @classmethod
    def of_table(cls, table: TextTable, columns: Sequence[str]) -> RowsById:
        """Return the rows of a table by the cells of some columns.

        Raises:
            CohortError: two rows have one id; their lines are named.
        """
        by_id: dict[tuple[IdKey | None, ...], Row] = {}
        lines: dict[tuple[IdKey | None, ...], int] = {}
        without, twice = [], []
        for line, row in zip(table.lines, table.rows, strict=True):
            cells = [row[column] for column in columns]
            if cells[0] is None:
                without.append(line)
                continue
            key = tuple(None if cell is None else id_key(cell) for cell in cells)
            if key in by_id:
                both = (" ".join(filter(None, (entry[c] for c in columns))) for entry in (by_id[key], row))
                twice.append("{!r} and {!r}, lines {} and {}".format(*both, lines[key], line))
                continue
            by_id[key], lines[key] = row, line
        if twice:
            more = f"; and {len(twice) - 3} more" if len(twice) > 3 else ""
            raise CohortError(
                f"{table.path}: has {' and '.join(columns)} twice: {'; '.join(twice[:3])}{more}.",
                cure=f"Keep one row for each. {_HOW}",
            )
        return cls(table, tuple(columns), by_id, tuple(without))

    @functools.cached_property
    def ids(self) -> list[str]:
        """Return the first cell of every id, as the table spells it, each once."""
        return list(dict.fromkeys(str(row[self.columns[0]]) for row in self.by_id.values()))

    @functools.cached_property
    def first_ids(self) -> str:
        """Return the first three ids, for messages."""
        return first_three(self.ids) or "missing"


class SubjectRows:
    """Rows of a table by subject, and by session where the table names sessions.

    Args:
        table: of participants, or of the sessions of one.
        subject: whose sessions the table has; None where a column names the subjects.

    Raises:
        CohortError: the columns of the ids are missing, or two rows have one id.
    """

    def __init__(self, table: TextTable, subject: str | None = None) -> None:
        self.table, self._subject = table, subject
        if subject is None:
            session = table.find(SESSION_COLUMNS)
            columns = (table.need(SUBJECT_COLUMNS, "the subject"), *([session] if session else []))
        else:
            columns = (table.need(("session_id", "session"), "the session"),)
        self.rows = RowsById.of_table(table, columns)
        self._session_column = columns[-1] if subject is not None or len(columns) > 1 else None
        self._of: dict[IdKey, dict[IdKey | None, Row]] = {}
        for key, row in self.rows.by_id.items():
            subject_key = id_key(subject) if subject is not None else key[0]
            if subject_key is not None:
                self._of.setdefault(subject_key, {})[key[-1] if self._session_column else None] = row

    def __contains__(self, subject: str) -> bool:
        """Whether a subject has a row."""
        return id_key(subject) in self._of

    def match(self, subject: str, session: str | None) -> tuple[Row | None, str]:
        """Return the row of an image, or None and why there is none.

        Of a table with sessions, the row of another session is never taken. An image that states no session
        has the only row of its subject.
        """
        name = self.table.path.name
        rows = self._of.get(id_key(subject))
        if rows is None and self._subject is not None:
            return None, f"{name} has no rows"
        if rows is None:
            return None, f"its subject {subject} is not in {name}, whose ids are {self.rows.first_ids}"
        if self._session_column is None:
            return rows[None], ""
        row = rows.get(id_key(session) if session is not None else None)
        if row is None and session is None and len(rows) == 1:
            (row,) = rows.values()
        if row is not None:
            return row, ""
        stated = first_three(self._sessions(rows)) or "none"
        if session is None:
            return None, f"it states no session, and {name} has several of subject {subject}: {stated}"
        return None, f"its session {session} has no row in {name}, which has {stated}"

    def without_image(self, images: Iterable[tuple[str, str | None]]) -> tuple[list[str], list[str]]:
        """Return the subjects, and the sessions of the other subjects, that no image has, as spelled.

        A table of one subject's sessions returns sessions only.

        Args:
            images: subject and session of every image.
        """
        imaged: dict[IdKey, set[IdKey | None]] = {}
        for subject, session in images:
            imaged.setdefault(id_key(subject), set()).add(None if session is None else id_key(session))
        subjects, sessions = [], []
        for subject_key, rows in self._of.items():
            visits = imaged.get(subject_key)
            for key, row in rows.items():
                cells = [cell for column in self.rows.columns if (cell := row[column]) is not None]
                if visits is None:
                    subjects += cells[:1] if self._subject is None else []
                elif self._session_column and key not in visits and not (None in visits and len(rows) == 1):
                    sessions.append(" ".join([*([f"sub-{self._subject}"] if self._subject else []), *cells]))
        return list(dict.fromkeys(subjects)), sessions

    def _sessions(self, rows: Mapping[IdKey | None, Row]) -> list[str]:
        cells = (row[str(self._session_column)] for row in rows.values())
        return [cell if cell is not None else "n/a" for cell in cells]

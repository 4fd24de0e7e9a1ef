"""Diagnoses of ADNI's subjects over their visits: which mild impairment stays stable, which becomes dementia.

Tables as ADNI publishes them: DXSUM (RID, EXAMDATE, DIAGNOSIS; in earlier exports DXCHANGE or DXCURREN), and
ADNIMERGE (RID, PTID, EXAMDATE, DX).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path

from trainer.data.sources import tables
from trainer.data.sources.tables import Row, Table
from trainer.errors import CohortError

CN, MCI, DEMENTIA = "CN", "MCI", "Dementia"

GROUPS = {"AD": DEMENTIA, "CN": CN, "SMC": CN, "MCI": MCI, "EMCI": MCI, "LMCI": MCI}
"""Groups of ADNI's image collections, and the diagnosis that each stands for."""

_CODES = {"1": CN, "2": MCI, "3": DEMENTIA}
_WORDS = {"cn": CN, "nl": CN, "mci": MCI, "dementia": DEMENTIA, "ad": DEMENTIA}
# DXCHANGE has the change since the visit before; what counts is the diagnosis after it.
_CHANGES = dict(zip("123456789", (CN, MCI, DEMENTIA, MCI, DEMENTIA, DEMENTIA, CN, MCI, CN), strict=True))
_MEANINGS = {"DIAGNOSIS": _CODES | _WORDS, "DX": _WORDS, "DXCHANGE": _CHANGES, "DXCURREN": _CODES}
_NOT_KNOWN = frozenset({"-1", "-4"})  # besides empty cells
_DATES = ("%Y-%m-%d", "%m/%d/%Y", "%m/%d/%y")

_DAYS_A_MONTH = 365.25 / 12
_MONTHS_BETWEEN_VISITS = 6


@dataclass(frozen=True)
class Visit:
    """One diagnosis of a subject: CN, MCI or DEMENTIA on a day."""

    day: date
    diagnosis: str

    def months_after(self, scan: date) -> int:
        """Return the months since a scan to the nearest 6: ADNI's visits are early or late."""
        months = (self.day - scan).days / _DAYS_A_MONTH
        return round(months / _MONTHS_BETWEEN_VISITS) * _MONTHS_BETWEEN_VISITS


def day_of(text: str | None, where: str) -> date:
    """Return the day that a cell holds, as 2006-04-18 or 4/18/2006 (month first).

    Raises:
        CohortError: it is empty, or not a day.
    """
    for form in _DATES:
        try:
            return datetime.strptime(text or "", form).date()
        except ValueError:
            continue
    raise CohortError(
        f"{where}: {text!r} is not a date." if text else f"{where}: has no date.",
        cure="Write dates as 2006-04-18 or 4/18/2006 (month first), as ADNI does.",
    )


def rid_of(subject: str) -> str:
    """Return the RID of a subject such as 002_S_0295: its last number, without zeros in front."""
    return subject.rsplit("_", 1)[-1].lstrip("0") or "0"


def read(path: Path) -> dict[str, list[Visit]]:
    """Return the visits with a diagnosis of each RID, in the order of their dates.

    Raises:
        CohortError: a column is missing, or a diagnosis or a date is unknown.
    """
    table = tables.read(path)
    subject = table.need(("RID", "PTID"), "the subject")
    examined = table.need(("EXAMDATE",), "the date of the visit")
    columns = {column: _MEANINGS[name] for name in _MEANINGS if (column := table.find((name,)))}
    if not columns:
        table.need(tuple(_MEANINGS), "the diagnosis")
    visits: dict[str, list[Visit]] = {}
    for row in table.rows:
        diagnosis = _diagnosis(row, columns, table)
        if diagnosis is not None and row[subject] is not None:
            rid = rid_of(str(row[subject]))
            day = day_of(row[examined], f"{path}: {examined} of {subject} {row[subject]}")
            visits.setdefault(rid, []).append(Visit(day, diagnosis))
    return {rid: sorted(found, key=lambda visit: visit.day) for rid, found in visits.items()}


def _diagnosis(row: Row, columns: Mapping[str, Mapping[str, str]], table: Table) -> str | None:
    for column, meaning in columns.items():
        text = row[column]
        if text is None or text in _NOT_KNOWN:
            continue
        # "MCI to Dementia" of ADNIMERGE's earlier exports; "2.0" of spreadsheets.
        said = text.lower().rsplit(" to ", 1)[-1].removesuffix(".0")
        if said not in meaning:
            raise CohortError(
                f"{table.path}: {column} has the value {text!r}, which is not a diagnosis.",
                cure=f"It may be {', '.join(meaning)}; leave what is not known empty.",
            )
        return meaning[said]
    return None


def outcome(group: str, visits: Sequence[Visit], scan: date, within: int) -> tuple[str | None, str]:
    """Return the label of a scan, or None and why it has none.

    AD, CN and SMC keep their group, unless the diagnosis at the scan says otherwise. Who has MCI at the scan
    is `pMCI` with dementia at a visit within `within` months, and `sMCI` with MCI at every visit up to the
    first one at or after that time.

    Args:
        group: one of `GROUPS`.
        visits: of the subject, by date.
        scan: day of the scan; the diagnosis at the scan is that of the nearest visit, up to 3 months away.
        within: months, counted by `Visit.months_after`.
    """
    near = [visit for visit in visits if visit.months_after(scan) == 0]
    then = min(near, key=lambda visit: abs((visit.day - scan).days)).diagnosis if near else None
    if GROUPS[group] != MCI:
        return (group, "") if then in (None, GROUPS[group]) else (None, f"{group}, but {then} at the scan")
    if then is None:
        return None, "MCI, but without a diagnosis within 3 months of the scan"
    if then != MCI:
        return None, f"MCI, but {then} at the scan"
    later = [visit for visit in visits if visit.months_after(scan) > 0]
    if any(v.diagnosis == DEMENTIA and v.months_after(scan) <= within for v in later):
        return "pMCI", ""
    after = next((visit for visit in later if visit.months_after(scan) >= within), None)
    if after is None:
        return None, f"MCI, but followed for less than {within} months"
    seen = {visit.diagnosis for visit in later if visit.day <= after.day}
    if CN in seen:
        return None, "MCI, but CN at a later visit"
    return ("sMCI", "") if seen == {MCI} else (None, f"MCI, but dementia first seen after {within} months")

"""Diagnoses of ADNI's subjects over their visits: which mild impairment stays stable, which becomes dementia.

Tables as ADNI publishes them: DXSUM (RID, EXAMDATE, DIAGNOSIS; in earlier exports DXCHANGE or DXCURREN), and
ADNIMERGE (RID, PTID, EXAMDATE, DX).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path

from trainer.data.images.findings import Finding, note, warning
from trainer.data.sources import tables
from trainer.data.sources.joins import as_number
from trainer.data.sources.tables import Row
from trainer.errors import CohortError

CN, MCI, DEMENTIA = "CN", "MCI", "Dementia"

GROUPS = {"AD": DEMENTIA, "CN": CN, "SMC": CN, "MCI": MCI, "EMCI": MCI, "LMCI": MCI}
"""Groups of ADNI's image collections, and the diagnosis that each stands for."""

_CODES = {"1": CN, "2": MCI, "3": DEMENTIA}
_WORDS = {"cn": CN, "nl": CN, "mci": MCI, "dementia": DEMENTIA, "ad": DEMENTIA}
# DXCHANGE has the change since the visit before; what counts is the diagnosis after it.
_CHANGES = dict(zip("123456789", (CN, MCI, DEMENTIA, MCI, DEMENTIA, DEMENTIA, CN, MCI, CN), strict=True))
_MEANINGS = {"DIAGNOSIS": _CODES | _WORDS, "DX": _WORDS, "DXCHANGE": _CHANGES, "DXCURREN": _CODES}
_NOT_KNOWN = frozenset({-1, -4})  # besides empty cells
_NO_DIAGNOSIS = "without a diagnosis"
_DATES_CURE = "Correct them; dates are 2006-04-18 or 4/18/2006 (month first), without a time."
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


def day_of(text: str | None) -> date | None:
    """Return the day that a cell holds, as 2006-04-18 or 4/18/2006 (month first); None without one."""
    for form in _DATES:
        try:
            return datetime.strptime(text or "", form).date()
        except ValueError:
            continue
    return None


def rid_of(subject: str) -> str | None:
    """Return the RID of 002_S_0295, 0295 or 295.0: the last number, without zeros in front; None without."""
    last = as_number(subject.rsplit("_", 1)[-1])
    return str(int(last)) if last is not None and last == int(last) and last >= 0 else None


@dataclass(frozen=True)
class Diagnoses:
    """A table of diagnoses over visits.

    Attributes:
        path: of the table.
        visits: with a diagnosis, of each RID, in the order of their dates.
        without_day: diagnoses of each RID whose visits are left out, since their day is not known.
        findings: visits that are left out, counted and named by the reason.
    """

    path: Path
    visits: dict[str, list[Visit]]
    without_day: dict[str, set[str]]
    findings: tuple[Finding, ...]


def read(path: Path) -> Diagnoses:
    """Return the visits with a diagnosis; those that cannot be read are left out and counted.

    Raises:
        CohortError: a column is missing, or no visit can be read.
    """
    table = tables.read(path, leave_odd_lines=True)
    subject = table.need(("RID", "PTID"), "the subject")
    examined = table.need(("EXAMDATE",), "the date of the visit")
    columns = {column: _MEANINGS[name] for name in _MEANINGS if (column := table.find((name,)))}
    if not columns:
        table.need(tuple(_MEANINGS), "the diagnosis")
    second = table.find(("PTID",)) or subject
    visits: dict[str, dict[date, set[str]]] = {}
    left_out: dict[str, list[str]] = {}
    without_day: dict[str, set[str]] = {}
    if table.odd_lines:
        left_out["with more or fewer cells than the header"] = [f"line {line}" for line in table.odd_lines]
    for line, row in zip(table.lines, table.rows, strict=True):
        try:
            diagnosis = _diagnosis(row, columns)
            if diagnosis is None:
                raise ValueError(_NO_DIAGNOSIS)
            rid, day = rid_of(row[subject] or ""), day_of(row[examined])
            if rid is None or rid_of(row[second] or rid) != rid:
                raise ValueError(f"{subject} is no number, or that of another {second}")
            if day is None:
                without_day.setdefault(rid, set()).add(diagnosis)
                raise ValueError(f"{examined} is not a date")
            visits.setdefault(rid, {}).setdefault(day, set()).add(diagnosis)
        except ValueError as error:
            cells = (f"{name} {row[name]}" for name in (subject, examined, *columns) if row[name] is not None)
            left_out.setdefault(str(error), []).append(f"line {line} ({', '.join(cells)})")
    for rid, days in visits.items():
        for day in [day for day, diagnoses in days.items() if len(diagnoses) > 1]:
            without_day.setdefault(rid, set()).update(days[day])
            both = " and ".join(sorted(days.pop(day)))
            left_out.setdefault("two diagnoses on one day", []).append(f"{subject} {rid}, {day}, {both}")
    by_date = {
        rid: [Visit(day, diagnosis) for day, (diagnosis,) in sorted(days.items())]
        for rid, days in visits.items()
        if days
    }
    findings = tuple(_left_out(path, why, cells) for why, cells in left_out.items())
    if not by_date:
        reasons = " ".join(finding.message for finding in findings)
        raise CohortError(f"{path}: has no visit that can be read. {reasons}", cure=_DATES_CURE)
    return Diagnoses(path, by_date, without_day, findings)


def _left_out(path: Path, why: str, cells: Sequence[str]) -> Finding:
    count = f"{len(cells)} visits are" if len(cells) > 1 else "1 visit is"
    named = "; ".join(cells[:3]) + ("; ..." if len(cells) > 3 else "")
    message = f"{count} left out of {path.name}, {why}: {named}."
    # Most tables have visits at which no diagnosis was made.
    return note("visit", message) if why == _NO_DIAGNOSIS else warning("visit", message, _DATES_CURE)


def _diagnosis(row: Row, columns: Mapping[str, Mapping[str, str]]) -> str | None:
    """Return the diagnosis of a visit, None where none was made.

    Raises:
        ValueError: a value is no diagnosis, or columns contradict each other.
    """
    diagnoses: dict[str, str] = {}
    for column, meaning in columns.items():
        text = row[column]
        number = as_number(text or "")
        if text is None or number in _NOT_KNOWN:
            continue
        # "MCI to Dementia" of ADNIMERGE's earlier exports; "2.0" of spreadsheets.
        plain = text.lower().rsplit(" to ", 1)[-1]
        code = str(int(number)) if number is not None and number == int(number) else plain
        if code not in meaning:
            raise ValueError(f"{column} is none of {', '.join(meaning)}")
        diagnoses[column] = meaning[code]
    if len(set(diagnoses.values())) > 1:
        raise ValueError(f"{' and '.join(diagnoses)} are different diagnoses")
    return next(iter(diagnoses.values()), None)


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

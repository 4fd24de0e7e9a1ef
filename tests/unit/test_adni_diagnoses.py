"""MCI is sMCI or pMCI by the diagnoses of later visits, and neither where these do not tell."""

from __future__ import annotations

from datetime import date, timedelta

import pytest
from adni_download import visits

from trainer.data.sources import adni_diagnoses
from trainer.data.sources.adni_diagnoses import Visit, outcome
from trainer.errors import CohortError

SCAN = date(2006, 4, 18)
SHORT = {"C": "CN", "M": "MCI", "D": "Dementia"}


def seen(said: str) -> list[Visit]:
    """`M0 D36`: MCI at the scan, dementia after 36 months."""
    return [Visit(SCAN + timedelta(days=round(30.44 * float(v[1:]))), SHORT[v[0]]) for v in said.split()]


@pytest.mark.parametrize(
    ("group", "said", "label"),
    [
        ("MCI", "M0 M12 D24", "pMCI"),
        ("LMCI", "M-1 M12 D36.9", "pMCI"),  # a visit of month 36, late
        ("EMCI", "M0 M12 M24 M35.2", "sMCI"),  # and one that is early
        ("MCI", "M0 M24 M48 D60", "sMCI"),
        ("MCI", "M0 D12 M24 M36", "pMCI"),
        ("AD", "D0", "AD"),
        ("CN", "", "CN"),
        ("SMC", "C1 M36", "SMC"),
    ],
)
def test_visits_give_a_label(group, said, label):
    assert outcome(group, seen(said), SCAN, 36) == (label, "")


@pytest.mark.parametrize(
    ("group", "said", "why"),
    [
        ("MCI", "M0 M12 M24", "followed for less than 36 months"),
        ("MCI", "M12 M36", "without a diagnosis within 3 months"),
        ("MCI", "", "without a diagnosis within 3 months"),
        ("MCI", "D0 D36", "but Dementia at the scan"),
        ("MCI", "M-12 C1 M36", "but CN at the scan"),
        ("MCI", "M0 C24 M36", "CN at a later visit"),
        ("MCI", "M0 M24 D48", "dementia first seen after 36 months"),
        ("AD", "M0 D12", "AD, but MCI at the scan"),
        ("CN", "M0", "CN, but MCI at the scan"),
    ],
)
def test_visits_that_give_no_label_give_the_reason(group, said, why):
    label, reason = outcome(group, seen(said), SCAN, 36)
    assert label is None
    assert why in reason


def test_the_months_are_those_asked_for():
    followed = seen("M0 M12 M24 D36")
    assert outcome("MCI", followed, SCAN, 24)[0] == "sMCI"
    assert outcome("MCI", followed, SCAN, 36)[0] == "pMCI"


@pytest.mark.parametrize(
    ("columns", "lines"),
    [
        ("RID,EXAMDATE,DIAGNOSIS", ("3,2006-04-20,2", "3,2007-04-20,3.0", "3,2008-04-20,-4")),
        ("PTID,EXAMDATE,DX", ("011_S_0003,4/20/2006,MCI", "011_S_0003,4/20/2007,MCI to Dementia")),
        ("RID,EXAMDATE,DXCHANGE,DXCURREN,DIAGNOSIS", ("3,2007-04-20,5,,", "3,2006-04-20,,2,", "3,,,,")),
    ],
    ids=["DXSUM", "ADNIMERGE", "earlier DXSUM"],
)
def test_published_tables_are_read(tmp_path, columns, lines):
    table = adni_diagnoses.read(visits(tmp_path / "dx.csv", *lines, columns=columns))
    assert table.visits == {"3": [Visit(date(2006, 4, 20), "MCI"), Visit(date(2007, 4, 20), "Dementia")]}
    assert [finding.severity for finding in table.findings] == ["note"] * (len(lines) - 2)


@pytest.mark.parametrize("rid", ["295.0", "0295", "295", "002_S_0295", "002_s_295.0"])
def test_a_rid_is_a_number(tmp_path, rid):
    table = adni_diagnoses.read(visits(tmp_path / "dx.csv", f"{rid},bl,2006-04-20,2"))
    assert list(table.visits) == [adni_diagnoses.rid_of("002_S_0295")] == ["295"]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("7,x,,2", "EXAMDATE is not a date: line 3 (RID 7, DIAGNOSIS 2)"),
        ("7,x,-4,2", "EXAMDATE is not a date: line 3 (RID 7, EXAMDATE -4, DIAGNOSIS 2)"),
        ("7,x,2006-04-20 08:20:30,2", "EXAMDATE is not a date: line 3"),
        ("7,x,20/04/2006,2", "EXAMDATE is not a date: line 3"),
        ("7,x,2006-04-20,-4.0", "without a diagnosis: line 3"),
        ("7,x,2006-04-20,-4", "without a diagnosis: line 3"),
        ("7,x,2006-04-20,", "without a diagnosis: line 3"),
        ("7,x,2006-04-20,7", "DIAGNOSIS is none of 1, 2, 3"),
        ("7,x,2006-04-20,2.5", "DIAGNOSIS is none of 1, 2, 3"),
        (",x,2006-04-20,2", "RID is no number"),
        ("n. a.,x,2006-04-20,2", "RID is no number"),
        ("7,x,2006-04-20", "with more or fewer cells than the header: line 3."),
        ("7,x,y,2006-04-20,2", "with more or fewer cells than the header: line 3."),
    ],
)
def test_one_odd_visit_is_left_out_with_a_count(tmp_path, line, why):
    path = visits(tmp_path / "dx.csv", "3,bl,2006-04-20,2", line, "3,m12,2007-04-20,3")
    table = adni_diagnoses.read(path)
    assert [visit.diagnosis for visit in table.visits["3"]] == ["MCI", "Dementia"]
    (finding,) = table.findings
    assert finding.message.startswith("1 visit is left out of dx.csv, ")
    assert why in finding.message


def test_visits_that_contradict_each_other_are_left_out(tmp_path):
    columns = "RID,PTID,EXAMDATE,DIAGNOSIS,DXCHANGE"
    lines = ["3,011_S_0003,2006-04-20,2,", "3,011_S_0004,2007-04-20,3,", "3,011_S_0003,2008-04-20,1,3"]
    lines += ["4,011_S_0004,2006-04-20,2,", "4,011_S_0004,2006-04-20,3,", "4,,2007-04-20,2,2"]
    table = adni_diagnoses.read(visits(tmp_path / "dx.csv", *lines, columns=columns))
    days = {rid: [visit.day.year for visit in own] for rid, own in table.visits.items()}
    assert days == {"3": [2006], "4": [2007]}
    assert [finding.message.split(", ", 1)[1].split(":")[0] for finding in table.findings] == [
        "RID is no number, or that of another PTID",
        "DIAGNOSIS and DXCHANGE are different diagnoses",
        "two diagnoses on one day",
    ]


@pytest.mark.parametrize(
    ("columns", "line", "said"),
    [
        ("RID,EXAMDATE", "3,2006-04-20", "no column 'DIAGNOSIS' or 'DX'"),
        ("RID,DIAGNOSIS", "3,2", "no column 'EXAMDATE'"),
        ("EXAMDATE,DIAGNOSIS", "2006-04-20,2", "no column 'RID' or 'PTID'"),
        ("RID,EXAMDATE,DIAGNOSIS", "3,2006-04-20,7", "DIAGNOSIS is none of 1, 2, 3"),
        ("RID,EXAMDATE,DIAGNOSIS", "3,20/04/2006,2", "has no visit that can be read"),
        ("RID,EXAMDATE,DIAGNOSIS", "3,,2", "EXAMDATE is not a date: line 2"),
    ],
)
def test_a_table_that_cannot_be_read_is_refused(tmp_path, columns, line, said):
    path = visits(tmp_path / "dx.csv", line, columns=columns)
    with pytest.raises(CohortError) as caught:
        adni_diagnoses.read(path)
    assert said in str(caught.value)
    assert str(path) in str(caught.value)
    assert caught.value.cure

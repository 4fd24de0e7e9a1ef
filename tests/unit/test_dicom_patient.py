"""Ages, names and days in DICOM headers: what may be told, and what may not."""

from __future__ import annotations

import pytest

from trainer.data.dicom.patient import ScannedPerson, age_of, names_of, spelled


@pytest.mark.parametrize(
    ("text", "born", "day", "age"),
    [
        ("073Y", "", "", 73.0),
        ("018M", "", "", 1.5),
        ("", "19400615", "20110301", 70.7),
        ("100Y", "", "", 90.0),
        ("000Y", "", "", None),
        ("", "19000101", "20110301", None),  # of those without a day of birth
        ("", "19150101", "20110301", 90.0),
        ("", "20120101", "20110301", None),
        ("", "19401341", "20110301", None),
        ("seventy", "", "20110301", None),
    ],
)
def test_ages_are_in_years_and_at_most_90(text, born, day, age):
    assert age_of(text, born, day) == age


@pytest.mark.parametrize(
    ("text", "patient_id", "names"),
    [
        ("Mustermann^Mara", "P1", {"mustermann", "mara"}),
        ("Li^J", "P1", {"li"}),
        ("山田", "P1", {"山田"}),
        ("Weiß^Jürg", "P1", {"weiss", "jurg", "juerg"}),
        ("SUB001", "SUB001", set()),
        ("SUB001", "", set()),
        ("ANON^Patient", "P1", set()),
        ("Smith", "Smith", {"smith"}),
    ],
)
def test_codes_and_words_for_nobody_are_no_names(text, patient_id, names):
    assert names_of(text, patient_id) == names


def patient(*names: str, born: str = "19400615") -> ScannedPerson:
    return ScannedPerson("P1", "F", 70.0, frozenset(names), born, ("20110301", "090000"))


def test_a_name_is_seen_as_a_word_with_initials_and_where_it_is_long():
    who = patient("lee", "mustermann", "li")
    for text in ("Lee_001", "x-LEE", "LeeJ001", "aMüstermannb", "LI-7"):
        assert who.is_named_in(text), text
    for text in ("sleepless", "P-0001", "flip"):
        assert not who.is_named_in(text), text


@pytest.mark.parametrize(
    "text", ["19400615", "1940-06-15", "15.06.1940", "150640-1234", "p06151940", "400615"]
)
def test_a_day_of_birth_is_seen_however_it_is_written(text):
    assert patient().is_named_in(text) and not patient(born="").is_named_in(text)


def test_names_and_days_are_blotted_out_and_never_in_the_text_of_the_object():
    who = patient("lee", "mustermann")
    assert who.without_names("t1 for Mustermann,\tLee 15.06.1940 2011-03-01") == "t1 for ***, *** *** ***"
    assert "mustermann" not in repr(who) and "1940" not in repr(who) and "2011" not in repr(who)


def test_what_is_no_day_is_in_no_text():
    assert spelled("") == spelled("20110231") == spelled("2011") == ()

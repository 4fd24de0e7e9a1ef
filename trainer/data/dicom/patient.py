"""Who was scanned: an age, and words and days that must be in no text. Pure.

Names and days serve to put studies in order, to tell an age, and to be looked for in what would be shown.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, field
from datetime import date

# Of names: no names of people.
_NO_NAMES = frozenset((
    "adni", "anon", "anonym", "anonymous", "anonymized", "anonymised", "control", "name", "none", "pat",
    "patient", "phantom", "research", "study", "sub", "subject", "test", "unknown", "volunteer",
))  # fmt: skip
_WORD = re.compile(r"[^\W\d_]+")
_GERMAN = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue"})
_ALONE = re.compile(r"(?<![^\W_])[^\W\d_]+(?![^\W_])")  # letters that touch no digit
_LONG = 5  # a name of as many letters is looked for inside of words, too
_INITIALS = 2  # letters before or after a shorter one
_OLDEST, _IMPOSSIBLE = 90.0, 110.0  # years: who is older than the first may be recognised by that


@dataclass(frozen=True)
class ScannedPerson:
    """Who was scanned, and when.

    Attributes:
        id: as the header has it; may be empty.
        sex: M, F, O, or empty.
        age: in years, as far as it is known; 90 for who is older.
        names: words of the name that may be a person's, without case and accents.
        born: day of birth, as 19400615; or empty.
        scanned: day and time of the study, which sort as text; or empty.
    """

    id: str
    sex: str
    age: float | None
    names: frozenset[str] = field(repr=False)
    born: str = field(repr=False)
    scanned: tuple[str, str] = field(repr=False)

    def is_named_in(self, text: str) -> bool:
        """Return whether a text has a word of the name, or the day of birth."""
        digits = re.sub(r"\D", "", text)
        is_born = any(day in digits for day in spelled(self.born))
        return is_born or any(map(self._is_name, _WORD.findall(text)))

    def without_names(self, text: str) -> str:
        """Return a text with words of the name, day of birth and day of the scan as `***`, on one line."""
        text = _WORD.sub(lambda word: "***" if self._is_name(word[0]) else word[0], " ".join(text.split()))
        for day in (*spelled(self.born), *spelled(self.scanned[0])):
            text = re.sub(r"[-./ ]?".join(day), "***", text)
        return text

    def _is_name(self, word: str) -> bool:
        word = plain(word)
        for name in self.names:
            is_inside = len(name) >= _LONG and name in word
            has_initials = len(name) > _INITIALS and len(word) - len(name) <= _INITIALS
            if word == name or is_inside or (has_initials and (word.startswith(name) or word.endswith(name))):
                return True
        return False


def plain(word: str) -> str:
    """Return a word without case and accents."""
    parts = unicodedata.normalize("NFKD", word.casefold())
    return "".join(letter for letter in parts if not unicodedata.combining(letter))


def names_of(text: str, patient_id: str) -> frozenset[str]:
    """Return the words of a DICOM name (`Family^Given`) that may be a person's; of a code there are none."""
    if text == patient_id and re.search(r"\d", text):
        return frozenset()
    names = set()
    for word in _ALONE.findall(text):
        names |= {plain(word), plain(word.casefold().translate(_GERMAN))}
    # A single letter is an initial, but a name in Chinese.
    return frozenset(name for name in names - _NO_NAMES if len(name) > 1 or not name.isascii())


def spelled(day: str) -> tuple[str, ...]:
    """Return how a day (20110301) may be written in digits, long ways first; nothing for what is no day."""
    if day_of(day) is None:
        return ()
    month, of_month = day[4:6], day[6:]
    years = day[:4], day[2:4]
    orders = "{0}{1}{2}", "{2}{1}{0}", "{1}{2}{0}"
    return tuple(order.format(year, month, of_month) for year in years for order in orders)


def day_of(text: str) -> date | None:
    """Return the day that DICOM writes as 20110301; None where it is none."""
    if not re.fullmatch(r"\d{8}", text):
        return None
    try:
        return date(int(text[:4]), int(text[4:6]), int(text[6:]))
    except ValueError:
        return None


def age_of(text: str, born: str, day: str) -> float | None:
    """Return an age in years, of `073Y`, `018M`, `010W`, `100D`, or of two days; 90 at most.

    None for what is no age: nobody is 0 or more than 110 years old, but records without a day of birth are.
    """
    years = 0.0
    match = re.fullmatch(r"(\d{1,3})([YMWD])", text)
    first, last = day_of(born), day_of(day)
    if match is not None:
        years = int(match[1]) / {"Y": 1, "M": 12, "W": 365.25 / 7, "D": 365.25}[match[2]]
    elif first is not None and last is not None:
        years = (last - first).days / 365.25
    return min(_OLDEST, round(years, 1)) if 0 < years <= _IMPOSSIBLE else None

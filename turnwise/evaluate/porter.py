"""Porter's stemmer (Program 14.3, 1980), with the changes of the implementations on his own page, which are final.

Write c for a consonant and v for a vowel. The measure m of a stem is how often vc occurs in it: 0 in *tree*, 1 in
*trouble*, 2 in *private*. Most rules replace a suffix if the stem before it has a large enough measure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache

_Condition = Callable[[str], bool]
_Rule = tuple[str, str]
_VOWELS_AND_CONSONANTS = re.compile(r"v+c+")


@lru_cache(maxsize=100_000)
def stem(word: str) -> str:
    """The stem of a word in lower case: `stem("relational")` is `relat`."""
    if len(word) <= 2:
        return word
    word = _past_tense(_replace(word, _PLURALS, lambda _: True))
    if word.endswith("y") and _has_vowel(word[:-1]):
        word = word[:-1] + "i"
    word = _replace(word, _DOUBLE_SUFFIXES, lambda before: _measure(before) > 0)
    word = _replace(word, _FURTHER_SUFFIXES, lambda before: _measure(before) > 0)
    return _tidy(_without_last_suffix(word))


def _shape(text: str) -> str:
    """Consonants as c and vowels as v; y is a vowel after a consonant."""
    shape = ""
    for letter in text:
        vowel = letter in "aeiou" or (letter == "y" and shape.endswith("c"))
        shape += "v" if vowel else "c"
    return shape


def _measure(text: str) -> int:
    return len(_VOWELS_AND_CONSONANTS.findall(_shape(text)))


def _has_vowel(text: str) -> bool:
    return "v" in _shape(text)


def _is_doubled(text: str) -> bool:
    """It ends with the same consonant twice."""
    return len(text) >= 2 and text[-1] == text[-2] and _shape(text)[-1] == "c"


def _is_short(text: str) -> bool:
    """It ends like *hop*: consonant, vowel, consonant other than w, x and y."""
    return _shape(text).endswith("cvc") and text[-1] not in "wxy"


def _replace(word: str, rules: Sequence[_Rule], condition: _Condition) -> str:
    """Apply the first rule whose suffix the word has, if what comes before it meets the condition."""
    for suffix, replacement in rules:
        if word.endswith(suffix):
            before = word.removesuffix(suffix)
            return before + replacement if condition(before) else word
    return word


def _past_tense(word: str) -> str:
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    for suffix in ("ed", "ing"):
        before = word.removesuffix(suffix)
        if before != word and _has_vowel(before):
            return _mended(before)
    return word


def _mended(text: str) -> str:
    """What is left of *hopping*, *filing* and *sized* becomes hop, file and size."""
    if text.endswith(("at", "bl", "iz")):
        return text + "e"
    if _is_doubled(text):
        return text if text[-1] in "lsz" else text[:-1]
    return text + "e" if _measure(text) == 1 and _is_short(text) else text


def _without_last_suffix(word: str) -> str:
    found = next((suffix for suffix in _LAST_SUFFIXES if word.endswith(suffix)), "")
    before = word.removesuffix(found)
    fits = found != "ion" or before.endswith(("s", "t"))
    return before if fits and _measure(before) > 1 else word


def _tidy(word: str) -> str:
    """Drop a last e, and one l of two."""
    if word.endswith("e"):
        before = word[:-1]
        measure = _measure(before)
        if measure > 1 or (measure == 1 and not _is_short(before)):
            word = before
    return word[:-1] if word.endswith("ll") and _measure(word[:-1]) > 1 else word


# A suffix comes before those that it ends with.
_PLURALS = (("sses", "ss"), ("ies", "i"), ("ss", "ss"), ("s", ""))
_DOUBLE_SUFFIXES = (
    *(("ational", "ate"), ("tional", "tion"), ("enci", "ence"), ("anci", "ance"), ("izer", "ize"), ("bli", "ble")),
    *(("alli", "al"), ("entli", "ent"), ("eli", "e"), ("ousli", "ous"), ("ization", "ize"), ("ation", "ate")),
    *(("ator", "ate"), ("alism", "al"), ("iveness", "ive"), ("fulness", "ful"), ("ousness", "ous"), ("aliti", "al")),
    *(("iviti", "ive"), ("biliti", "ble"), ("logi", "log")),
)
_FURTHER_SUFFIXES = (
    *(("icate", "ic"), ("ative", ""), ("alize", "al"), ("iciti", "ic"), ("ical", "ic"), ("ful", ""), ("ness", "")),
)
_LAST_SUFFIXES = (
    *("al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "ion", "ou", "ism", "ate"),
    *("iti", "ous", "ive", "ize"),
)

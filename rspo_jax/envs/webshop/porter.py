"""The Porter stemmer, in the variant that Lucene's `PorterStemFilter` applies.

M. F. Porter, "An algorithm for suffix stripping", Program 14(3), 1980, with the two rules that Porter added later: -bli
becomes -ble and -logi becomes -log. Characters other than the letters a-z count as consonants.
"""

_STEP2 = {
    "a": (("ational", "ate"), ("tional", "tion")),
    "c": (("enci", "ence"), ("anci", "ance")),
    "e": (("izer", "ize"),),
    "l": (("bli", "ble"), ("alli", "al"), ("entli", "ent"), ("eli", "e"), ("ousli", "ous")),
    "o": (("ization", "ize"), ("ation", "ate"), ("ator", "ate")),
    "s": (("alism", "al"), ("iveness", "ive"), ("fulness", "ful"), ("ousness", "ous")),
    "t": (("aliti", "al"), ("iviti", "ive"), ("biliti", "ble")),
    "g": (("logi", "log"),),
}
"""Rules by the last letter but one: the first suffix that fits decides, whether or not its stem is long enough."""

_STEP3 = (
    ("icate", "ic"), ("ative", ""), ("alize", "al"), ("iciti", "ic"), ("ical", "ic"), ("ful", ""), ("ness", ""),
)  # fmt: skip

_STEP4 = (
    "al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "ion", "ou", "ism", "ate", "iti",
    "ous", "ive", "ize",
)  # fmt: skip


def stem(word: str) -> str:
    """The stem of a lower-case word; words of one or two characters stay as they are."""
    if len(word) <= 2:
        return word
    word = _past_and_gerund(_plural(word))
    if word.endswith("y") and _has_vowel(word[:-1]):
        word = word[:-1] + "i"
    word = _replace(word, _STEP2.get(word[-2:-1], ()))
    word = _replace(word, _STEP3)
    return _final_letters(_drop_suffix(word))


def _vowels(word: str) -> list[bool]:
    """Which characters are vowels: a, e, i, o, u, and y after a consonant."""
    flags: list[bool] = []
    for index, letter in enumerate(word):
        flags.append(letter in "aeiou" or (letter == "y" and index > 0 and not flags[-1]))
    return flags


def _has_vowel(word: str) -> bool:
    return any(_vowels(word))


def _measure(word: str) -> int:
    """m in Porter's [C](VC)^m[V]: how often a consonant follows a vowel."""
    flags = _vowels(word)
    return sum(before and not after for before, after in zip(flags, flags[1:], strict=False))


def _ends_double(word: str) -> bool:
    return len(word) > 1 and word[-1] == word[-2] and not _vowels(word)[-1]


def _ends_cvc(word: str) -> bool:
    """Whether the word ends consonant, vowel, consonant, the last not w, x or y (as in "hop")."""
    return len(word) > 2 and _vowels(word)[-3:] == [False, True, False] and word[-1] not in "wxy"


def _plural(word: str) -> str:
    if word.endswith(("sses", "ies")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _past_and_gerund(word: str) -> str:
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    suffix = next((end for end in ("ed", "ing") if word.endswith(end)), None)
    if suffix is None or not _has_vowel(word[: -len(suffix)]):
        return word
    word = word[: -len(suffix)]
    if word.endswith(("at", "bl", "iz")):
        return word + "e"
    if _ends_double(word):
        return word if word[-1] in "lsz" else word[:-1]
    return word + "e" if _measure(word) == 1 and _ends_cvc(word) else word


def _replace(word: str, rules: tuple[tuple[str, str], ...]) -> str:
    for suffix, new in rules:
        if word.endswith(suffix):
            rest = word[: -len(suffix)]
            return rest + new if _measure(rest) > 0 else word
    return word


def _drop_suffix(word: str) -> str:
    for suffix in _STEP4:
        if word.endswith(suffix):
            rest = word[: -len(suffix)]
            if suffix == "ion" and not rest.endswith(("s", "t")):
                continue
            return rest if _measure(rest) > 1 else word
    return word


def _final_letters(word: str) -> str:
    measure = _measure(word)
    if word.endswith("e") and (measure > 1 or (measure == 1 and not _ends_cvc(word[:-1]))):
        word = word[:-1]
    return word[:-1] if word.endswith("ll") and measure > 1 else word

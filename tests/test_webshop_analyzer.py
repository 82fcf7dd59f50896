"""The search analyser: word boundaries, stems, and the recorded tokens."""

import gzip
import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recordings import recordings

from rspo_jax.envs.webshop.analyzer import STOP_WORDS, analyze, term, tokenize
from rspo_jax.envs.webshop.porter import stem
from rspo_jax.envs.webshop.word_break import RANGES


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("t-shirt/tee & hat|cap", ["t", "shirt", "tee", "hat", "cap"]),
        ("description:solid o'neil u.s.a. a·b", ["description:solid", "o'neil", "u.s.a", "a·b"]),
        ("1,000.50 3.5mm 4k 8;9 10:30", ["1,000.50", "3.5mm", "4k", "8;9", "10", "30"]),
        ("a,b a. .b 5' 'x'", ["a", "b", "a", "b", "5", "x"]),
        ("snake_case _ __x__ 1_a", ["snake_case", "__x__", "1_a"]),
        ("日本ひらカタカナ", ["日", "本", "ひ", "ら", "カタカナ"]),
        ("カ_a カa", ["カ_a", "カ", "a"]),
        ("สวัสดี 안녕 ½ ² ① €", ["สวัสดี", "안녕"]),
        ("cafe\u0301 e\u200bf g\u200dh", ["cafe\u0301", "e", "f", "g\u200dh"]),
        ('א"א א\' א"', ['א"א', "א'", "א"]),
        ("★™© a❤️b", ["★", "™", "©", "a", "❤️", "b"]),
        ("👩‍👩‍👧 👍🏽 🇩🇪🇫🇷 1️⃣ #️⃣ 🇩", ["👩‍👩‍👧", "👍🏽", "🇩🇪", "🇫🇷", "1️⃣", "#️⃣"]),
        ("🏴\U000e0067\U000e0062\U000e007f ☝️🏽 \u200d🔥", ["🏴\U000e0067\U000e0062\U000e007f", "☝️", "🏽", "\u200d🔥"]),
        ("ⓂⓂ ℹx", ["ⓂⓂ", "ℹx"]),
        ("אב:ג' אב'", ["אב:ג", "אב'"]),
    ],
)
def test_word_boundaries(text, tokens):
    assert tokenize(text) == tokens


@pytest.mark.parametrize(
    ("text", "lengths"),
    [("a" * 600, [255, 255, 90]), ("😀" + "\u0301" * 300, [254]), ("𠀀𐐀" + "𐐀" * 200, [1, 127, 74])],
)
def test_tokens_longer_than_255_utf16_units_are_cut(text, lengths):
    assert list(map(len, tokenize(text))) == lengths


def _kind(letter: str) -> str:
    return next((name for name, spans in RANGES.items() for span in spans.split() if _inside(letter, span)), "other")


def _inside(letter: str, span: str) -> bool:
    first, _, last = span.partition("-")
    return int(first, 16) <= ord(letter) <= int(last or first, 16)


def _joined(before: str, left: str, right: str, after: str) -> bool:
    """UAX #29 rules WB5 to WB13b as statements about neighbours, without extending characters."""
    kind, middle_letter, middle_number = _kind, ":.'", ",.;'"
    word = {"letter", "numeric"}
    if kind(left) in word and kind(right) in word:
        return True
    if kind(left) == kind(right) == "katakana":
        return True
    if "connector" in (kind(left), kind(right)):
        return {kind(left), kind(right)} <= word | {"katakana", "connector"}
    for middle, side in ((middle_letter, "letter"), (middle_number, "numeric")):
        if kind(left) == side and right in middle and after and kind(after) == side:
            return True
        if kind(right) == side and left in middle and before and kind(before) == side:
            return True
    return False


def _segments(text: str) -> list[str]:
    segments, padded = [text[0]], ["", *text, ""]
    for left in range(1, len(text)):
        if _joined(padded[left - 1], padded[left], padded[left + 1], padded[left + 2]):
            segments[-1] += text[left]
        else:
            segments.append(text[left])
    return [part for part in segments if {*map(_kind, part)} & {"letter", "numeric", "katakana", "han", "hiragana"}]


@given(st.text("aZé19:.',;_- カ漢ひ", min_size=1, max_size=14))
def test_words_equal_the_neighbour_rules_of_uax29(text):
    assert tokenize(text) == _segments(text)


@given(st.text(max_size=30))
def test_tokens_are_slices_in_order(text):
    position = 0
    for token in tokenize(text):
        position = text.index(token, position) + len(token)


@given(st.lists(st.sampled_from(["tee", "👍🏽", "3.5mm", "漢", "❤️", "x_y"]), max_size=6))
def test_words_between_spaces_do_not_influence_each_other(words):
    assert tokenize(" ".join(words)) == words


STEMS = """
    caresses:caress ponies:poni cats:cat feed:feed agreed:agre plastered:plaster bled:bled motoring:motor sing:sing
    conflated:conflat troubled:troubl sized:size hopping:hop falling:fall filing:file happy:happi sky:sky
    relational:relat conditional:condit digitizer:digit radically:radic sensibiliti:sensibl triplicate:triplic
    electrical:electr goodness:good revival:reviv adjustment:adjust adoption:adopt probate:probat rate:rate
    cease:ceas controll:control roll:roll possibly:possibl analogi:analog is:is s:s 3.5mms:3.5mm días:día
"""


@pytest.mark.parametrize("pair", STEMS.split())
def test_porter_stems(pair):
    word, expected = pair.split(":")
    assert stem(word) == expected


def test_terms_lose_possessives_and_case():
    assert [term(word) for word in ("Women's", "WOMEN’S", "o'neil", "STRASSE", "İ", "ΟΔΌΣ")] == [
        "women",
        "women",
        "o'neil",
        "strass",
        "i",
        "οδόσ",
    ]


def test_stop_words_have_no_term():
    assert len(STOP_WORDS) == 33
    assert analyze(" ".join(sorted(STOP_WORDS)) + " It's THE end") == ["end"]


def test_recorded_tokens():
    folder = recordings("webshop") / "invented"
    for name, text in (("analyzer", "text"), ("search", "query")):
        with gzip.open(folder / f"{name}.jsonl.gz", "rt", encoding="utf-8") as file:
            for row in map(json.loads, file):
                assert analyze(row[text]) == row["tokens"], row[text]


def test_recorded_character_classes():
    """The recording lists symbols that are tokens, and letters and numbers whose lower case is none (below U+20000)."""
    recorded = json.loads((recordings("webshop") / "standard_tokenizer_charclass.json").read_text())
    symbols, excluded = (
        {code for span in recorded[key] for code in _codes(span)} for key in ("symbol_token_ranges", "non_token_LN")
    )
    excluded.discard(0x130)  # Its lower case is two characters, of which the first is a token.
    for code in range(0x20000):
        token = bool(tokenize(chr(code).lower()))
        if code in symbols or code in excluded:
            assert token == (code in symbols), hex(code)
        elif unicodedata.ucd_3_2_0.category(chr(code)) != "Cn":  # Later characters may be younger than the recording.
            assert token == (unicodedata.category(chr(code))[0] in "LN"), hex(code)


def _codes(span: str) -> range:
    first, _, last = span.partition("-")
    return range(int(first, 16), int(last or first, 16) + 1)

"""Text to index terms, as Lucene's English analyser does it.

Word boundaries of UAX #29 as Lucene 8's StandardTokenizer draws them, then: English possessive off, lower case, stop
words out, Porter stems. Ranks in a search hang on near-ties, so the tokens must be equal, not similar.
"""

import functools
import re

from rspo_jax.envs.webshop import porter
from rspo_jax.envs.webshop.word_break import RANGES

STOP_WORDS = frozenset(
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they this "
    "to was will with".split()
)

_MAX_TOKEN = 255
"""The longest token, in UTF-16 units; what is longer is cut."""


def _chars(*names: str) -> str:
    """The inside of a regular expression's character class."""
    spans = (span.partition("-") for name in names for span in RANGES[name].split())
    return "".join(f"\\U{int(a, 16):08x}" + (f"-\\U{int(b, 16):08x}" if b else "") for a, _, b in spans)


def _word_pattern() -> str:
    """Runs of letters and digits: WB5 to WB13b. A middle character joins only if the same kind follows it."""
    extend = f"[{_chars('extend')}]*"

    def run(*names: str) -> str:
        return f"[{_chars(*names)}]{extend}"

    letter, number = run("letter", "hebrew"), run("numeric")
    hebrew, connector = run("hebrew"), run("connector")
    # A Hebrew letter keeps its quote only where it does not follow a middle character: so in Lucene, not in UAX #29.
    unit = (
        f"(?:{hebrew}\"{extend}{hebrew}|{hebrew}'{extend}|{letter}(?:{run('mid_letter')}{letter})*"
        f"|{number}(?:{run('mid_number')}{number})*)+"
    )
    core = f"(?:(?:{run('katakana')})+|{unit})"
    return f"(?:{connector})*{core}(?:(?:{connector})+{core})*(?:{connector})*"


def _emoji_pattern() -> str:
    """Pictographs with modifiers, joined by U+200D; keycaps; flags (UTS #51 emoji sequences)."""
    joiner, selector = "\u200d", "\ufe0f?"
    extend = f"[{_chars('extend')}]*"
    inner = f"(?:(?![\ufe0e\ufe0f])[{_chars('extend')}])*"
    picture, base = f"{joiner}*[{_chars('pictograph')}]", f"{joiner}*[{_chars('modifier_base')}]"
    modifier, flag = "[\U0001f3fb-\U0001f3ff]", "[\U0001f1e6-\U0001f1ff]"
    element = f"(?:(?:{base}{inner})?{modifier}{inner}|{picture}{inner}{selector})"
    tags = "[\U000e0020-\U000e007e]+\U000e007f"
    sequence = f"(?:{element}{joiner})+{element}|{element}(?:{tags})?"
    return f"{sequence}|[0-9#*]{inner}{selector}\u20e3{inner}|{flag}{extend}{flag}{extend}"


def _plain_pattern() -> str:
    extend = f"[{_chars('extend')}]*"
    single = f"[{_chars('han', 'hiragana')}]{extend}"
    return f"{_word_pattern()}|{single}|[{_chars('complex')}][{_chars('complex', 'extend')}]*"


_PLAIN = re.compile(_plain_pattern())
_EMOJI = re.compile(_emoji_pattern())
_MAY_BE_EMOJI = re.compile(f"[\u20e3\U0001f1e6-\U0001f1ff\U0001f3fb-\U0001f3ff{_chars('pictograph')}]")


def tokenize(text: str) -> list[str]:
    """The words of a text, unchanged and in order; characters outside words are dropped."""
    if text.isascii() or not _MAY_BE_EMOJI.search(text):
        tokens = _PLAIN.findall(text)
        if max(map(len, tokens), default=0) * 2 <= _MAX_TOKEN or max(map(_utf16, tokens)) <= _MAX_TOKEN:
            return tokens
    return _tokenize_longest(text)


def _tokenize_longest(text: str) -> list[str]:
    """The general case: at every position the longest of all rules, within the longest token allowed."""
    tokens, position = [], 0
    while position < len(text):
        window = _window(text, position)
        matches = (pattern.match(text, position, window) for pattern in (_PLAIN, _EMOJI))
        end = max((match.end() for match in matches if match), default=position)
        if end > position:
            tokens.append(text[position:end])
        position = max(end, position + 1)
    return tokens


def _utf16(text: str) -> int:
    return len(text) + sum(letter > "\uffff" for letter in text)


def _window(text: str, start: int) -> int:
    """End of the longest slice from `start` that is at most `_MAX_TOKEN` UTF-16 units."""
    end = min(len(text), start + _MAX_TOKEN)
    while _utf16(text[start:end]) > _MAX_TOKEN:
        end -= 1
    return end


@functools.lru_cache(maxsize=1 << 16)
def term(token: str) -> str | None:
    """The index term of one token, or None for a stop word."""
    if token[-1] in "sS" and token[-2:-1] in ("'", "\u2019", "\uff07"):
        token = token[:-2]
    if token.isascii():
        token = token.lower()
    else:
        # Character by character, as in Java: no final sigma, and a dotted capital I becomes a plain i.
        token = "".join("i" if letter == "\u0130" else letter.lower() for letter in token)
    return None if token in STOP_WORDS else porter.stem(token)


def analyze(text: str) -> list[str]:
    """The index terms of a text, in order, with repetitions."""
    return [word for token in tokenize(text) if (word := term(token)) is not None]

"""Fuzzy string comparison of the reward: the token-set ratio of thefuzz 0.19 on difflib, and the colour rule."""

import functools
import re
from collections import Counter
from difflib import SequenceMatcher

THRESHOLD = 85
"""Two texts match if their token-set ratio is above this."""

COLORS = tuple(
    "alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy camel camo "
    "caramel champagne charcoal cheetah chestnut chocolate christmas coffee cognac copper coral cranberry cream "
    "crystal dark denim eggplant elephant espresso fuchsia gold granite grape graphite grass gray green grey heather "
    "indigo ivory ivy khaki lavender lemon leopard light lilac lime magenta maroon mauve merlot midnight mint mocha "
    "multicolor mushroom mustard natural navy nude olive orange peach pewter pink plum purple rainbow red rose royal "
    "rust sand sapphire seashell silver skull slate steel stone stonewash sunflower tan taupe teal tiger turquoise "
    "violet walnut wheat white wine yellow".split()
)

_NOT_WORD = re.compile(r"\W", re.IGNORECASE)
_DROPPED = dict.fromkeys(range(0x80, 0x100))


@functools.lru_cache(maxsize=1 << 16)
def normalize_color(value: str | tuple[str, str]) -> str | tuple[str, str]:
    """The first colour word that `value` contains, else `value` itself.

    Of a text any substring counts ("standard" gives "tan"); of a (name, value) pair only a whole element.
    """
    return next((color for color in COLORS if color in value), value)


@functools.lru_cache(maxsize=1 << 16)
def _tokens(value: str | tuple[str, str]) -> frozenset[str]:
    text = str(value).translate(_DROPPED)
    return frozenset(_NOT_WORD.sub(" ", text).lower().split())


def _ratio(a: str, b: str) -> int:
    if a == b:
        return 100
    return int(round(100 * SequenceMatcher(None, a, b).ratio())) if a and b else 0


def _combined(a: frozenset[str], b: frozenset[str]) -> tuple[str, str, str]:
    """The shared tokens; with those of `a` only; with those of `b` only: each sorted and joined."""
    shared = " ".join(sorted(a & b))
    return shared, f"{shared} {' '.join(sorted(a - b))}".strip(), f"{shared} {' '.join(sorted(b - a))}".strip()


def token_set_ratio(a: str | tuple[str, str], b: str | tuple[str, str]) -> int:
    """0 to 100: how alike two texts are, whatever the order and repetition of their words.

    The best of three `difflib` ratios: the shared words against either text, and the texts against each other.
    """
    tokens_a, tokens_b = _tokens(a), _tokens(b)
    if not tokens_a or not tokens_b:
        return 0
    shared, left, right = _combined(tokens_a, tokens_b)
    return max(_ratio(shared, left), _ratio(shared, right), _ratio(left, right))


def _may_exceed(a: str, b: str) -> bool:
    """An upper bound of `_ratio`, from lengths and from letter counts, against the threshold."""
    needed = (THRESHOLD + 0.5) / 200 * (len(a) + len(b)) - 1e-6
    if min(len(a), len(b)) < needed:
        return False
    return (Counter(a) & Counter(b)).total() >= needed


@functools.lru_cache(maxsize=1 << 17)
def matches(a: str | tuple[str, str], b: str | tuple[str, str]) -> bool:
    """`token_set_ratio(a, b) > THRESHOLD`, computing only the ratios that can still exceed it."""
    tokens_a, tokens_b = _tokens(a), _tokens(b)
    if not tokens_a or not tokens_b:
        return False
    shared, left, right = _combined(tokens_a, tokens_b)
    if shared in (left, right):
        return True
    pairs = ((left, right), (shared, left), (shared, right))
    return any(_may_exceed(x, y) and _ratio(x, y) > THRESHOLD for x, y in pairs)

"""Which words of a product title are nouns: from a table, from spaCy, or by a rule.

The reward compares the nouns of two titles. The official environment asks a spaCy model, and its lists differ between
model versions, so a table of recorded lists is the only way to equal a published run. The rule takes every word that
has a letter and is not a function word; buying the wanted product itself is worth the same either way.
"""

import functools
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from rspo_jax.envs.webshop import files

MODEL = "en_core_web_sm"

FUNCTION_WORDS = frozenset(
    "a an the this that these those some any each every all both no not and or nor but so yet if than then as at by "
    "for from in into of off on onto out over per to toward under until up upon via with within without about above "
    "across after against along among around before behind below beneath beside between beyond down during inside "
    "near outside through i me my mine we us our ours you your yours he him his she her hers it its they them their "
    "theirs who whom whose which what where when why how is am are was were be been being do does did have has had "
    "can could will would shall should may might must very too also just only more most other such own same".split()
)

_WORD = re.compile(r"[^\W_]+(?:['’.&][^\W_]+)*")
_LETTER = re.compile(r"[^\W\d_]")


def rule(title: str) -> tuple[str, ...]:
    """The words of a title, lower-case, without function words and words that have no letter."""
    words = (word.removesuffix("'s").removesuffix("’s") for word in _WORD.findall(title.lower()))
    return tuple(word for word in words if _LETTER.search(word) and word not in FUNCTION_WORDS)


class Nouns:
    """Title -> its nouns, lower-case, in order and with repetitions.

    Args:
      table: known titles; any other title goes to `parse`.
      parse: nouns of one title.
    """

    def __init__(
        self, table: Mapping[str, tuple[str, ...]] | None = None, parse: Callable[[str], tuple[str, ...]] = rule
    ):
        self._table = table or {}
        self._parse = functools.lru_cache(maxsize=1 << 16)(parse)

    def __call__(self, title: str) -> tuple[str, ...]:
        known = self._table.get(title)
        return self._parse(title) if known is None else known

    @classmethod
    def load(cls, source: str | Path | None) -> "Nouns":
        """None: the rule. "spacy": the installed spaCy model. A path: JSON lines {"title": ..., "nouns": [...]}.

        Raises:
          FileNotFoundError: there is no such file. ValueError: a line is malformed, or spaCy or its model is missing.
        """
        if source is None:
            return cls()
        if source == "spacy":
            return cls(parse=_spacy_parser())
        rows = (files.parse(line, source) for line in files.lines(source))
        try:
            return cls({row["title"]: tuple(row["nouns"]) for row in rows})
        except (KeyError, TypeError):
            raise ValueError(
                f"nouns = {str(source)!r}: every line must be an object with 'title' and 'nouns'."
            ) from None


def _spacy_parser() -> Callable[[str], tuple[str, ...]]:
    try:
        import spacy

        model = spacy.load(MODEL)
    except (ImportError, OSError):
        raise ValueError(
            f"nouns = 'spacy' needs spaCy and its model {MODEL}; install both or use nouns=None."
        ) from None
    return lambda title: tuple(word.text.lower() for word in model(title) if word.pos_ in ("NOUN", "PROPN"))

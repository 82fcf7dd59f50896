"""The search engine: BM25 over one field, with Lucene's arithmetic.

S. Robertson and H. Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond", 2009; k1 = 0.9 and b = 0.4 are
Anserini's defaults. Document lengths are quantised to one byte and terms are scored in float32 as in Lucene 8, because
products of one kind differ in the fifth digit of their scores.
"""

import math
from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

import numpy as np

from rspo_jax.envs.webshop.analyzer import analyze

K1, B = np.float32(0.9), np.float32(0.4)
_CACHED_QUERIES = 4096


def quantized_length(length: int) -> int:
    """A document length as Lucene stores it: exact below 40; above, length - 24 keeps its four leading bits."""
    excess = length - 24
    if excess < 16:
        return length
    shift = excess.bit_length() - 4
    return 24 + (excess >> shift << shift)


class Index:
    """An inverted index over products.

    Args:
      asins: document ids; equal scores are ranked by them.
      texts: the text of each document, in the same order.
    """

    def __init__(self, asins: Sequence[str], texts: Iterable[str]):
        self._asins = asins
        self._rank = np.empty(len(asins), np.int32)
        self._rank[sorted(range(len(asins)), key=asins.__getitem__)] = np.arange(len(asins), dtype=np.int32)
        self._terms: dict[str, int] = {}
        self._cache: OrderedDict[tuple[tuple[str, ...], int], tuple[str, ...]] = OrderedDict()
        self._build(texts)

    def _build(self, texts: Iterable[str]) -> None:
        terms, documents, counts, lengths = array("i"), array("i"), array("i"), array("i")
        for document, text in enumerate(texts):
            frequencies = Counter(analyze(text))
            lengths.append(frequencies.total())
            for word, count in frequencies.items():
                terms.append(self._terms.setdefault(word, len(self._terms)))
                documents.append(document)
                counts.append(count)
        term_ids = np.frombuffer(terms, np.int32) if terms else np.zeros(0, np.int32)
        order = np.argsort(term_ids, kind="stable")
        self._starts = np.searchsorted(term_ids[order], np.arange(len(self._terms) + 1))
        self._documents = np.array(documents, np.int32)[order]
        inverse_norms = self._inverse_norms(np.array(lengths, np.int64))
        frequency = np.array(counts, np.float32)[order]
        self._saturation = np.float32(1) + frequency * inverse_norms[self._documents]

    def _inverse_norms(self, lengths: np.ndarray) -> np.ndarray:
        """f32[documents]: 1 / (k1 (1 - b + b length / mean length)); a document without terms does not count."""
        self._size = int(np.count_nonzero(lengths))
        mean = np.float32(lengths.sum() / max(self._size, 1))
        stored = np.array([quantized_length(int(length)) for length in lengths], np.float32)
        if not self._size:
            return stored
        return np.float32(1) / (K1 * ((np.float32(1) - B) + B * stored / mean))

    def search(self, query: str, k: int = 50) -> tuple[str, ...]:
        """The `k` best products for a query, best first; only products that share a term with it are returned."""
        terms = tuple(analyze(query))
        key = (terms, k)
        if key in self._cache:
            self._cache.move_to_end(key)
        else:
            self._cache[key] = self._search(Counter(terms), k)
            if len(self._cache) > _CACHED_QUERIES:
                self._cache.popitem(last=False)
        return self._cache[key]

    def _search(self, terms: Counter[str], k: int) -> tuple[str, ...]:
        total = np.zeros(len(self._asins), np.float64)
        for word, repeats in terms.items():
            if (number := self._terms.get(word)) is not None:
                here = slice(self._starts[number], self._starts[number + 1])
                frequency = here.stop - here.start
                idf = math.log(1 + (self._size - frequency + 0.5) / (frequency + 0.5))
                weight = np.float32(repeats) * np.float32(idf)
                total[self._documents[here]] += weight - weight / self._saturation[here]
        hits = np.flatnonzero(total)
        scores = total[hits].astype(np.float32)
        if len(hits) > k:
            best = scores >= np.partition(scores, -k)[-k]
            hits, scores = hits[best], scores[best]
        order = np.lexsort((self._rank[hits], -scores))[:k]
        return tuple(self._asins[document] for document in hits[order])

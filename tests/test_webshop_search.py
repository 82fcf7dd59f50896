"""BM25 with Lucene's arithmetic."""

import gzip
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recordings import recordings

from rspo_jax.envs.webshop import WebShopEnv
from rspo_jax.envs.webshop.search import Index, quantized_length

WORDS = st.lists(st.sampled_from("red blue tee lamp mug soft".split()), max_size=60).map(" ".join)


@pytest.mark.parametrize(
    ("length", "stored"),
    [(0, 0), (39, 39), (40, 40), (41, 40), (42, 42), (55, 54), (56, 56), (59, 56), (60, 60), (100, 96), (1000, 984)],
)
def test_lengths_keep_four_leading_bits_above_24(length, stored):
    assert quantized_length(length) == stored


def _score(query: list[str], documents: list[list[str]], number: int) -> np.float32:
    """The textbook formula, one term and one document at a time, in float32."""
    f32 = np.float32
    filled = [words for words in documents if words]
    mean = f32(sum(map(len, filled)) / len(filled))
    length = f32(quantized_length(len(documents[number])))
    norm = f32(1) / (f32(0.9) * ((f32(1) - f32(0.4)) + f32(0.4) * length / mean))
    total = 0.0
    for word in dict.fromkeys(query):
        frequency = sum(word in words for words in documents)
        count = documents[number].count(word)
        if count:
            idf = math.log(1 + (len(filled) - frequency + 0.5) / (frequency + 0.5))
            weight = f32(query.count(word)) * f32(idf)
            total += float(weight - weight / (f32(1) + f32(count) * norm))
    return f32(total)


@given(st.lists(WORDS, min_size=1, max_size=12), WORDS, st.integers(1, 5))
def test_ranking_equals_the_formula_with_ties_by_id(texts, query, k):
    asins = [f"B{number * 7 % 13:02d}" for number in range(len(texts))]
    documents = [text.split() for text in texts]
    scores = {asin: _score(query.split(), documents, n) for n, asin in enumerate(asins)} if any(documents) else {}
    expected = sorted((asin for asin in scores if scores[asin] > 0), key=lambda asin: (-scores[asin], asin))
    assert list(Index(asins, texts).search(query, k)) == expected[:k]


@given(st.lists(WORDS, min_size=1, max_size=8), WORDS)
def test_word_order_and_stop_words_do_not_matter(texts, query):
    index = Index([str(number) for number in range(len(texts))], texts)
    assert index.search(query) == index.search("the " + " ".join(reversed(query.split())))


def test_an_empty_query_or_shop_finds_nothing():
    assert Index(["a"], ["tee"]).search(" ") == ()
    assert Index(["a"], [""]).search("tee") == ()
    assert Index([], []).search("tee") == ()


def test_a_repeated_query_is_answered_alike():
    index = Index(["a", "b"], ["red tee", "tee tee"])
    assert index.search("tee") == index.search("tee") == ("b", "a")
    assert index.search("tee", 1) == ("b",)


def test_recorded_searches():
    folder = recordings("webshop") / "invented"
    env = WebShopEnv.from_files(
        folder / "items_shuffle.json", folder / "items_ins_v2.json", folder / "items_human_ins.json", human_goals=True
    )
    with gzip.open(folder / "search.jsonl.gz", "rt", encoding="utf-8") as file:
        for row in map(json.loads, file):
            assert env.search(row["query"]) == row["asins"], row["query"]

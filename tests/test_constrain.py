"""Action grammars: a tree spells exactly the admissible actions of its row, each in its one tokenisation."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rspo_jax.models.constrain import ActionGrammar, continuation
from rspo_jax.models.tokenizer import encode, train_tokenizer

PHRASES = ["go to", "take", "from", "fridge 1", "mug 2", "search[", "click[", "]", "< prev", "red"]
TOKENIZER = train_tokenizer(["go to fridge 1. search[red mug 2] click[< prev] say it please"], PHRASES, 320)
END = TOKENIZER.eos_token_id
GRAMMAR = ActionGrammar(TOKENIZER, end_token=END, vocab_size=len(TOKENIZER) + 5, free_limit=3)
NAMES = st.sampled_from(["fridge 1", "mug 2", "red", "red mug 2", "< prev", "Ünï", "x y"])
FORMS = st.sampled_from(["go to {}", "take {} from {}", "click[{}]", "{}", "{}{}"])
ACTIONS = st.builds(lambda form, a, b: form.format(a, b), FORMS, NAMES, NAMES)


def edges(trie, b, node):
    tokens = trie.child_token[b, node]
    return {int(t): int(n) for t, n in zip(tokens, trie.child_node[b, node], strict=True) if t >= 0}


def spelled(trie, b, node=0):
    """All token sequences of a tree without free text."""
    if trie.free[b, node]:
        raise AssertionError("free text spells more than can be listed")
    for token, target in edges(trie, b, node).items():
        rests = [()] if token == END else spelled(trie, b, target)
        yield from ((token, *rest) for rest in rests)


def accepts(trie, b, ids):
    """Whether row b's tree spells `ids`: the rules of Trie, read one token at a time."""
    node = free_count = 0
    for token in ids:
        children = edges(trie, b, node)
        if trie.free[b, node] and trie.free_tokens[token] and free_count < trie.free_limit:
            free_count += 1
        elif token in children and not (trie.free[b, node] and free_count == 0):
            if token == END:
                return True
            node, free_count = children[token], 0
        else:
            return False
    return False


@settings(max_examples=100, deadline=None)
@given(rows=st.lists(st.lists(ACTIONS, min_size=1, max_size=8), min_size=1, max_size=4))
def test_a_tree_spells_exactly_the_actions_of_its_row(rows):
    trie = GRAMMAR.compile(rows)
    for b, row in enumerate(rows):
        paths = list(spelled(trie, b))
        assert len(paths) == len(set(paths))
        assert set(paths) == {(*encode(TOKENIZER, action), END) for action in row}
        assert {TOKENIZER.decode(path[:-1]) for path in paths} == set(row)


@settings(max_examples=50, deadline=None)
@given(row=st.lists(ACTIONS, min_size=1, max_size=8))
def test_decided_means_one_path_to_the_end(row):
    trie = GRAMMAR.compile([row, ["go to fridge 1", "search[<your query>]"]])
    for b in range(2):
        nodes = [0]
        for node in nodes:
            children = edges(trie, b, node)
            nodes += [target for token, target in children.items() if token != END]
            if not trie.free[b].any():
                assert trie.decided[b, node] == (len(list(spelled(trie, b, node))) == 1)
        assert not trie.decided[b][trie.free[b]].any()


def test_shared_prefixes_are_one_node_and_sizes_are_powers_of_two():
    trie = GRAMMAR.compile([["go to fridge 1", "go to mug 2"], [f"click[{i}]" for i in range(100)]])
    assert len(edges(trie, 0, 0)) == 1 and len(edges(trie, 0, edges(trie, 0, 0)[encode(TOKENIZER, "go to")[0]])) == 2
    assert all(n & (n - 1) == 0 for n in trie.child_token.shape[1:])
    alone = GRAMMAR.compile([["go to fridge 1", "go to mug 2"]])
    n, k = alone.child_token.shape[1:]
    np.testing.assert_array_equal(alone.child_token[0], trie.child_token[0, :n, :k])


def test_free_text_is_followed_by_its_closing_token_and_is_never_empty_nor_too_long():
    trie = GRAMMAR.compile([["search[<your query>]", "click[red]"]])
    search, close = encode(TOKENIZER, "search["), continuation(TOKENIZER, "]")
    word = encode(TOKENIZER, "red")
    assert not accepts(trie, 0, [*search, *close, END])
    for count in range(1, 4):
        assert accepts(trie, 0, [*search, *word * count, *close, END])
    assert not accepts(trie, 0, [*search, *word * 4, *close, END])
    assert not accepts(trie, 0, [*search, *word, END])
    assert accepts(trie, 0, [*encode(TOKENIZER, "click[red]"), END])
    assert TOKENIZER.decode([*search, *word, *word, *close]) == "search[red red]"


def test_free_text_may_end_an_action_and_takes_over_what_it_can_spell_itself():
    trie = GRAMMAR.compile([["say please", "say <your query>"], ["say <your query>", "say please"]])
    say = encode(TOKENIZER, "say ")
    for b in range(2):
        assert accepts(trie, b, [*say, *encode(TOKENIZER, "please"), END])
        assert not accepts(trie, b, [*say, END])
        assert not (trie.free_tokens[list(edges(trie, b, int(np.flatnonzero(trie.free[b])[0])))]).any()


def test_free_tokens_survive_lower_casing_and_stay_inside_their_slot():
    assert GRAMMAR.free_tokens.shape == (len(TOKENIZER) + 5,)
    texts = [TOKENIZER.decode([*encode(TOKENIZER, "a"), i])[1:] for i in np.flatnonzero(GRAMMAR.free_tokens)]
    assert "red" in {text.strip() for text in texts} and len(texts) > 40
    for text in texts:
        assert text and text == text.lower() and text.isascii() and text.isprintable()
        assert not set(text) & set("[]<>|\n")
    assert not GRAMMAR.free_tokens[[END, TOKENIZER.pad_token_id, *continuation(TOKENIZER, "]")]].any()


def test_a_row_without_actions_may_only_end():
    assert list(spelled(GRAMMAR.compile([[], ["red"]]), 0)) == [(END,)]


def test_a_continuation_reads_as_it_does_in_its_place():
    whole = encode(TOKENIZER, "search[red mug 2]")
    query = continuation(TOKENIZER, "red mug 2", "search[")
    assert [*encode(TOKENIZER, "search["), *query, *continuation(TOKENIZER, "]")] == whole
    assert query == encode(TOKENIZER, "one red mug 2")[-2:]
    assert TOKENIZER.decode(encode(TOKENIZER, "a") + continuation(TOKENIZER, " red")) == "a red"


@pytest.mark.parametrize("action", ["say <your query> please", "say <your query><your query>"])
def test_free_text_without_a_recognisable_end_is_refused(action):
    with pytest.raises(ValueError, match="could be part of the free text"):
        GRAMMAR.compile([[action]])


@pytest.mark.parametrize(
    ("vocab_size", "free_limit", "message"), [(10, 3, "vocab_size = 10"), (1000, 0, "free_limit = 0")]
)
def test_impossible_sizes_are_refused(vocab_size, free_limit, message):
    with pytest.raises(ValueError, match=message):
        ActionGrammar(TOKENIZER, end_token=END, vocab_size=vocab_size, free_limit=free_limit)

"""Sampling: what is recorded is what the trainer computes, whatever the batch, the padding and the constraint."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rspo_jax.models import sampler, transformer
from rspo_jax.models.constrain import ActionGrammar
from rspo_jax.models.logprobs import token_logprobs
from rspo_jax.models.tokenizer import train_tokenizer
from rspo_jax.trajectory import FREE_TEXT, LISTED, UNCONSTRAINED

PHRASES = ["go to", "take", "from", "fridge 1", "mug 2", "mug 3", "search[", "click[", "]", "red", "look"]
TOKENIZER = train_tokenizer(["go to fridge 1. search[red mug 2] click[red]"], PHRASES, 300)
VOCAB, END = 320, TOKENIZER.eos_token_id  # the model's vocabulary is padded, as those of real models are
GRAMMAR = ActionGrammar(TOKENIZER, end_token=END, vocab_size=VOCAB, free_limit=4)
ACTIONS = [
    ["go to fridge 1", "go to mug 2", "look"],
    ["search[<your query>]", "click[red]"],
    ["take mug 2 from fridge 1", "take mug 3 from fridge 1", "take mug 3 from mug 2", "look"],
    ["look"],
    ["search[<your query>]"],
]
LISTED_ONLY = [ACTIONS[0], ACTIONS[2], ACTIONS[2], ACTIONS[3], ACTIONS[0]]
CONFIGS = {
    tied: transformer.ModelConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, tie_word_embeddings=tied,
    )
    for tied in (True, False)
}  # fmt: skip


def parameters(tied=True):
    params = transformer.init(jax.random.key(0), CONFIGS[tied])
    name = "embed_tokens" if tied else "lm_head"
    params[name] = jax.tree.map(lambda x: 15 * x, params[name])  # far from uniform distributions
    return params


PARAMS = parameters()


def prompts(rng, rows):
    return [rng.integers(4, 300, rng.integers(3, 12)).tolist() for _ in range(rows)]


def play(turns, *, actions=None, active=None, tied=True, multiple=16, first_slot=0, seed=0, rows=None, **options):
    """Feeds and samples every turn; returns (ids of each row, [Generated of each turn], cache).

    turns: per turn one list of ids per row; rows: the key indices of the rows.
    """
    config, params = CONFIGS[tied], PARAMS if tied else parameters(False)
    batch = len(turns[0])
    keys = jax.vmap(lambda i: jax.random.fold_in(jax.random.key(seed), i))(jnp.arange(batch) if rows is None else rows)
    options = {"max_tokens": 8, "temperature": 0.7} | options
    cache, slot = transformer.init_cache(config, batch, 160), first_slot
    texts, unfed, results = [[] for _ in range(batch)], [[] for _ in range(batch)], []
    for turn, new in enumerate(turns):
        live = np.ones(batch, bool) if active is None else np.array(active[turn])
        fed = [unfed[b] + list(new[b]) if live[b] else [] for b in range(batch)]
        tokens, mask = sampler.right_align(fed, multiple)
        hidden, cache = sampler.prefill(params, config, cache, tokens, mask, slot, chunk=16)
        slot += tokens.shape[1]
        out, cache = sampler.generate(
            params, config, cache, hidden, slot, jax.vmap(jax.random.fold_in, (0, None))(keys, turn), active=live,
            trie=None if actions is None else GRAMMAR.compile(actions), end_token=END, **options,
        )  # fmt: skip
        out = jax.device_get(out)
        slot += int(out.slots)
        for b in np.flatnonzero(live):
            response = out.tokens[b][out.mask[b]].tolist()
            texts[b] += list(new[b]) + response
            unfed[b] = response[out.fed[b] :]
        results.append(out)
    return texts, results, cache


@functools.partial(jax.jit, static_argnames="tied")
def all_hidden(texts, tied=True):
    return transformer.hidden(PARAMS if tied else parameters(False), CONFIGS[tied], texts, texts >= 0)


def padded(texts):
    return np.array([text + [-1] * (160 - len(text)) for text in texts])


def trained_logprobs(turns, texts, results, tied, temperature):
    """Log-probs [turns, B, R] that the trainer computes from compact, left-aligned rows."""
    hidden = all_hidden(padded(texts), tied)
    kernel = transformer.head(PARAMS if tied else parameters(False), CONFIGS[tied])
    position = np.zeros(len(texts), int)
    out = []
    for new, result in zip(turns, results, strict=True):
        position += [len(ids) if m.any() else 0 for ids, m in zip(new, result.mask, strict=True)]
        at = jnp.take_along_axis(hidden, position[:, None, None] + np.arange(9)[:, None] - 1, axis=1)
        rules = {}
        if result.allowed.shape[2]:
            rules = {"constraint": jnp.array(result.constraint.reshape(-1)), "free_tokens": GRAMMAR.free_tokens}
            rules["allowed"] = jnp.array(result.allowed.reshape(-1, result.allowed.shape[2]))
        targets = jnp.array(result.tokens.reshape(-1))
        logp, _ = token_logprobs(at.reshape(-1, at.shape[-1]), kernel, targets, temperature=temperature, **rules)
        out.append(np.asarray(logp).reshape(-1, 9))
        position += result.mask.sum(axis=1)
    return out


@pytest.mark.parametrize(
    ("actions", "tied"), [(None, True), (None, False), (ACTIONS, True), (ACTIONS, False), (LISTED_ONLY, False)]
)
def test_the_recorded_logprob_is_what_the_trainer_computes(actions, tied):
    rng = np.random.default_rng(0)
    turns = [prompts(rng, 5) for _ in range(4)]
    active = [[True] * 5, [True] * 5, [True, False, True, True, False], [True, False, True, True, False]]
    texts, results, _ = play(turns, actions=actions, active=active, tied=tied)
    count = 0
    for expected, result in zip(trained_logprobs(turns, texts, results, tied, 0.7), results, strict=True):
        np.testing.assert_allclose(result.logp[result.sampled], expected[result.sampled], atol=1e-4)
        assert (result.logp[~result.sampled] == 0).all() and not (result.sampled & ~result.mask).any()
        forced = result.mask & ~result.sampled & (result.allowed >= 0).any(axis=-1)
        np.testing.assert_allclose(expected[forced], 0, atol=1e-6)
        count += result.sampled.sum()
    assert count > 20


@pytest.mark.parametrize("actions", [None, ACTIONS])
def test_a_row_does_not_depend_on_its_batch_or_its_padding(actions):
    rng = np.random.default_rng(1)
    turns = [prompts(rng, 5) for _ in range(3)]
    _, together, _ = play(turns, actions=actions)
    batches = [([4, 3, 2, 1, 0], {"multiple": 20, "first_slot": 7}), ([0], {}), ([3], {})]
    for pick, options in batches:
        part = None if actions is None else [actions[b] for b in pick]
        _, apart, _ = play([[t[b] for b in pick] for t in turns], actions=part, rows=jnp.array(pick), **options)
        for (new, row), (one, many) in itertools.product(enumerate(pick), zip(apart, together, strict=True)):
            np.testing.assert_array_equal(one.tokens[new][one.mask[new]], many.tokens[row][many.mask[row]])
            np.testing.assert_array_equal(one.sampled[new], many.sampled[row])
            np.testing.assert_allclose(one.logp[new], many.logp[row], atol=1e-5)
            np.testing.assert_array_equal(
                one.constraint[new][one.sampled[new]], many.constraint[row][many.sampled[row]]
            )


@pytest.mark.parametrize("greedy", [False, True])
def test_constrained_responses_are_admissible_actions(greedy):
    rng = np.random.default_rng(2)
    queries, seen = set(), set()
    for seed in range(1 if greedy else 12):
        _, (out,), _ = play(
            [prompts(rng, 5)], actions=ACTIONS, seed=seed, greedy=greedy, max_tokens=16, temperature=2.0
        )
        for b, row in enumerate(ACTIONS):
            ids = out.tokens[b][out.mask[b]]
            assert ids[-1] == END and (ids[:-1] != END).all()
            text = TOKENIZER.decode(ids[:-1])
            if text.startswith("search["):
                assert "search[<your query>]" in row and text.endswith("]") and text == text.lower()
                constraint = out.constraint[b][out.mask[b]]
                assert 1 <= (constraint == FREE_TEXT).sum() <= 4 + 1
                queries.add(text[7:-1])
            else:
                assert text in row
            seen.add((b, text if b != 1 else text[:6]))
            assert out.sampled[b].any() == (row != ["look"])
    assert "" not in queries
    assert greedy or (len(queries) > 10 and len({t for b, t in seen if b == 2}) == 4)


def test_what_is_decided_is_not_sampled():
    _, (out,), _ = play([prompts(np.random.default_rng(3), 5)], actions=LISTED_ONLY)
    for b, row in enumerate(LISTED_ONLY):
        sampled = out.sampled[b]
        assert sampled.any() == (len(row) > 1) and sampled.sum() < out.mask[b].sum()
        assert (out.constraint[b][sampled] == LISTED).all()
        assert ((out.allowed[b] >= 0).sum(axis=1)[sampled] > 1).all()
        last = np.flatnonzero(sampled).max(initial=-1)
        assert out.fed[b] == max(last, 0)  # the model saw nothing after the last choice
    assert out.slots == out.fed.max()


def test_a_response_that_reaches_the_limit_gets_a_forced_end_token():
    _, (out,), _ = play([prompts(np.random.default_rng(4), 5)], temperature=5.0)
    full = out.mask.sum(axis=1) == 9
    assert full.sum() >= 3 and out.tokens.shape == (5, 9)
    assert (out.tokens[full, 8] == END).all() and not out.sampled[full, 8].any() and out.sampled[full, :8].all()
    assert (out.fed[full] == 7).all() and int(out.slots) == 7
    assert (out.constraint == UNCONSTRAINED).all() and out.allowed.shape == (5, 9, 0)


def test_a_tree_longer_than_the_limit_is_cut():
    _, (cut,), _ = play([prompts(np.random.default_rng(4), 5)], actions=[ACTIONS[2]] * 5, max_tokens=2)
    lengths = cut.mask.sum(axis=1)
    assert (lengths <= 3).all() and all(cut.tokens[b, n - 1] == END for b, n in enumerate(lengths))


def test_inactive_rows_are_left_alone():
    turns = [prompts(np.random.default_rng(5), 5)]
    _, (out,), cache = play(turns, active=[[True, False, True, False, True]])
    for b in (1, 3):
        assert not out.mask[b].any() and not out.sampled[b].any() and not out.tokens[b].any() and out.fed[b] == 0
        assert int(cache.length[b]) == 0 and not np.asarray(cache.valid[b]).any()
    for b in (0, 2, 4):
        assert int(cache.length[b]) == len(turns[0][b]) + out.fed[b] == int(cache.valid[b].sum())


def chi_square_fits(counts, probabilities):
    expected = probabilities * counts.sum()
    assert counts[expected < 1e-3].sum() == 0
    rare = expected < 5
    observed = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    keep = expected > 0
    statistic = ((observed - expected)[keep] ** 2 / expected[keep]).sum()
    freedom = keep.sum() - 1
    return statistic < freedom + 5 * np.sqrt(2 * freedom) + 5


@pytest.mark.parametrize("actions", [None, ACTIONS[2], ACTIONS[1]])
def test_frequencies_match_the_probabilities(actions):
    rows = 2048
    prompt = [5, 60, 70, 280]
    tries = None if actions is None else [actions] * rows
    _, (out,), _ = play([[prompt] * rows], actions=tries, max_tokens=1, temperature=1.5)
    hidden = all_hidden(padded([prompt] * 5))[0, len(prompt) - 1]
    logits = np.asarray(hidden @ transformer.head(PARAMS, CONFIGS[True]), np.float64) / 1.5
    allowed = np.arange(VOCAB) if actions is None else np.unique(out.allowed[0, 0][out.allowed[0, 0] >= 0])
    probabilities = np.zeros(VOCAB)
    probabilities[allowed] = np.exp(logits[allowed] - logits[allowed].max())
    probabilities /= probabilities.sum()
    assert chi_square_fits(np.bincount(out.tokens[:, 0], minlength=VOCAB), probabilities)
    np.testing.assert_allclose(out.logp[:, 0], np.log(probabilities[out.tokens[:, 0]]), atol=1e-4)


def test_greedy_takes_the_likeliest_token_of_the_whole_recomputation():
    turns = [prompts(np.random.default_rng(6), 5)]
    texts, (out,), _ = play(turns, greedy=True)
    again, _, _ = play(turns, greedy=True, seed=9)
    assert texts == again
    best = np.asarray(jnp.argmax(all_hidden(padded(texts)) @ transformer.head(PARAMS, CONFIGS[True]), axis=2))
    for b, prompt in enumerate(turns[0]):
        response = texts[b][len(prompt) :]
        count = int(out.sampled[b].sum())
        assert response[:count] == best[b, len(prompt) - 1 :][:count].tolist() and count > 0


def test_top_k_keeps_the_likeliest_tokens_only():
    prompt = [5, 60, 70, 280]
    logits = all_hidden(padded([prompt] * 5))[0, len(prompt) - 1] @ transformer.head(PARAMS, CONFIGS[True])
    best = set(np.argsort(-np.asarray(logits))[:3].tolist())
    _, (out,), _ = play([[prompt] * 2048], max_tokens=1, temperature=3.0, top_k=3)
    assert set(out.tokens[:, 0].tolist()) == best
    shares = {int(t): float(np.exp(p)) for t, p in zip(out.tokens[:, 0], out.logp[:, 0], strict=True)}
    assert abs(sum(shares.values()) - 1) < 1e-5


@settings(max_examples=60, deadline=None)
@given(
    count=st.sampled_from([1, 2, 7, 32, 256, 257, 300, 1000, 5000]),
    seed=st.integers(0, 2**32 - 1),
    zeros=st.floats(0, 0.99),
    draw=st.one_of(st.just(0.0), st.just(1 - 2.0**-23), st.floats(0, 1, exclude_max=True, width=32)),
)
def test_inverse_cdf_inverts_the_cumulative_distribution(count, seed, zeros, draw):
    rng = np.random.default_rng(seed)
    weights = (rng.exponential(size=(4, count)) * (rng.random((4, count)) >= zeros)).astype(np.float32)
    weights[:, rng.integers(count)] = 1.0
    draw = min(draw, 1 - 2.0**-23)
    index = np.asarray(sampler.inverse_cdf(jnp.array(weights), jnp.full(4, draw, jnp.float32)))
    total = np.cumsum(weights.astype(np.float64), axis=1)
    share = total / total[:, -1:]
    for b, i in enumerate(index):
        assert 0 <= i < count and weights[b, i] > 0
        assert share[b, i] >= draw - 1e-5 and (i == 0 or share[b, i - 1] <= draw + 1e-5)


def test_right_alignment():
    tokens, mask = sampler.right_align([[1, 2, 3], [], [4]], 4)
    assert tokens.tolist() == [[0, 1, 2, 3], [0, 0, 0, 0], [0, 0, 0, 4]]
    assert mask.sum(axis=1).tolist() == [3, 0, 1] and mask[2].tolist() == [False, False, False, True]


def test_a_full_cache_is_refused():
    with pytest.raises(ValueError, match="grow_cache"):
        play([prompts(np.random.default_rng(7), 5)], max_tokens=200)
    with pytest.raises(ValueError, match="grow_cache"):
        play([prompts(np.random.default_rng(7), 5)], first_slot=159)

"""The transformer: cached and whole-row forward agree, padding changes nothing, gradients are right and finite."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_model import tiny_config, tiny_params

from rspo_jax import models
from rspo_jax.models import attention, rope

CONFIGS = {
    "qwen2": tiny_config(),
    "qwen3": tiny_config(qkv_bias=False, qk_norm=True, head_dim=16, tie_word_embeddings=False),
}
hidden = jax.jit(models.hidden, static_argnames=("config", "remat"))
extend = jax.jit(models.extend, static_argnames="config")


def tokens_of(shape, seed=0):
    return jax.random.randint(jax.random.key(seed), shape, 0, 50)


def extend_in_parts(params, config, tokens, mask, sizes):
    """Hidden states of `tokens` fed through the cache in pieces of the given sizes."""
    cache = models.init_cache(config, tokens.shape[0], 16, params["embed_tokens"].dtype)
    parts, slot = [], 0
    for size in sizes:
        piece = slice(slot, slot + size)
        out, cache = extend(params, config, cache, tokens[:, piece], mask[:, piece], jnp.int32(slot))
        parts.append(out)
        slot += size
    return jnp.concatenate(parts, axis=1), cache


@settings(max_examples=20, deadline=None)
@given(
    split=st.sampled_from([[12], [5, 5, 2], [1] * 12, [5, 1, 1, 5], [2, 1, 5, 2, 2], [1, 5, 1, 5]]),
    gaps=st.lists(st.lists(st.booleans(), min_size=12, max_size=12), min_size=3, max_size=3),
)
def test_extend_in_any_split_with_any_gaps_equals_hidden(split, gaps):
    config = CONFIGS["qwen3"]
    params, tokens, mask = tiny_params(config), tokens_of((3, 12)), jnp.array(gaps)
    got, cache = extend_in_parts(params, config, tokens, mask, split)
    want = hidden(params, config, tokens, mask)
    np.testing.assert_allclose(np.where(mask[..., None], got - want, 0), 0, atol=2e-5)
    np.testing.assert_array_equal(cache.length, mask.sum(axis=1))


@settings(max_examples=10, deadline=None)
@given(left=st.integers(0, 5), middle=st.integers(0, 4))
def test_padding_left_right_or_inside_changes_no_real_token(left, middle):
    config = CONFIGS["qwen2"]
    params, tokens = tiny_params(config), tokens_of((2, 6))
    want = hidden(params, config, tokens)
    places = np.r_[left : left + 3, left + 3 + middle : left + 6 + middle]
    padded = jnp.full((2, 15), 7).at[:, places].set(tokens)
    mask = jnp.zeros((2, 15), bool).at[:, places].set(True)
    np.testing.assert_allclose(hidden(params, config, padded, mask)[:, places], want, atol=2e-5)


def test_left_aligned_rows_need_no_mask():
    config = CONFIGS["qwen3"]
    params, tokens = tiny_params(config), tokens_of((2, 9))
    mask = jnp.arange(9) < jnp.array([[9], [4]])
    with_mask, without = hidden(params, config, tokens, mask), hidden(params, config, tokens)
    np.testing.assert_allclose(np.where(mask[..., None], with_mask - without, 0), 0, atol=1e-5)


@pytest.mark.parametrize("slot", [3, jnp.int32(3)], ids=["static", "traced"])
def test_rows_longer_than_a_query_block_agree_with_one_plain_softmax(slot):
    """150 tokens cross the block boundary; the reference is a full square of scores in NumPy."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(2, 150, heads, 8)).astype(np.float32) for heads in (4, 2, 2))
    scores = np.einsum("nqhd,nkhd->nhqk", q, k.repeat(2, axis=2)) / np.sqrt(8)
    scores = np.where(np.tril(np.ones((150, 150), bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    want = np.einsum("nhqk,nkhd->nqhd", weights / weights.sum(-1, keepdims=True), v.repeat(2, axis=2))
    got = attention.causal_attention(jnp.array(q), jnp.array(k), jnp.array(v))
    np.testing.assert_allclose(got, want, atol=1e-5)

    def slots(x, axis):  # the same row at slots [3, 153) of a cache of 160; what lies around must not be seen
        shape = list(x.shape)
        shape[axis] = 160
        return jnp.full(shape, 9.0).at[tuple([slice(None)] * axis + [slice(3, 153)])].set(x)

    key_t, values = slots(attention.key_layout(jnp.array(k)), 3), slots(attention.value_layout(jnp.array(v)), 2)
    valid = jnp.zeros((2, 160), bool).at[:, 3:153].set(True)
    np.testing.assert_allclose(attention.cached_attention(jnp.array(q), key_t, values, valid, slot), want, atol=1e-5)


def test_prefill_with_a_static_slot_equals_a_traced_one():
    config = CONFIGS["qwen2"]
    params, tokens, mask = tiny_params(config), tokens_of((2, 6)), jnp.ones((2, 6), bool)
    cache = models.init_cache(config, 2, 16)
    static, _ = jax.jit(functools.partial(models.extend, slot=0), static_argnames="config")(
        params, config, cache, tokens, mask
    )
    traced, _ = extend(params, config, cache, tokens, mask, jnp.int32(0))
    np.testing.assert_allclose(static, traced, atol=2e-5)


def test_unstacked_parameters_extend_alike():
    config = CONFIGS["qwen3"]
    params, tokens, mask = tiny_params(config), tokens_of((2, 12)), jnp.ones((2, 12), bool)
    want, _ = extend_in_parts(params, config, tokens, mask, [12])
    got, _ = extend_in_parts(models.unstack(models.unstack(params)), config, tokens, mask, [12])
    np.testing.assert_array_equal(got, want)


def test_grown_and_repeated_caches_continue_their_rows():
    config = CONFIGS["qwen2"]
    params, tokens, mask = tiny_params(config), tokens_of((2, 16)), jnp.ones((2, 16), bool)
    _, cache = extend_in_parts(params, config, tokens, mask, [10, 6])
    rows, more = jnp.array([1, 1, 0]), tokens_of((3, 4), seed=1)
    cache = models.take_cache(models.grow_cache(cache, 24), rows)
    got, cache = extend(params, config, cache, more, jnp.ones((3, 4), bool), jnp.int32(16))
    want = hidden(params, config, jnp.concatenate([tokens[rows], more], axis=1))[:, 16:]
    np.testing.assert_allclose(got, want, atol=2e-5)
    assert cache.k[0].shape == (3, 2, 8, 24)


@pytest.mark.parametrize("remat", [True, "dots"])
def test_remat_changes_memory_and_no_number(remat):
    config = CONFIGS["qwen2"]
    params, tokens, mask = tiny_params(config), tokens_of((2, 8)), jnp.ones((2, 8), bool)

    def loss(params, remat):
        return jnp.mean(hidden(params, config, tokens, mask, remat=remat)[..., 0] ** 2)

    want, got = jax.grad(loss)(params, False), jax.grad(loss)(params, remat)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6), got, want)


def test_gradients_are_finite_with_left_padding_and_with_a_row_of_padding_only():
    config = CONFIGS["qwen3"]
    params, tokens = tiny_params(config), tokens_of((3, 6))
    mask = jnp.arange(6) >= jnp.array([[0], [3], [6]])

    def loss(params):
        states = hidden(params, config, tokens, mask)
        return jnp.sum(jnp.where(mask[..., None], states, 0.0) ** 3)

    grads = jax.grad(loss)(params)
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(grads))
    assert all(np.abs(g).max() > 0 for path, g in jax.tree.leaves_with_path(grads) if "lm_head" not in str(path))


def test_bfloat16_parameters_give_bfloat16_states_and_float32_logits():
    config = CONFIGS["qwen2"]
    params, tokens = tiny_params(config, dtype="bfloat16"), tokens_of((2, 5))
    assert hidden(params, config, tokens).dtype == jnp.bfloat16
    assert models.logits(params, config, tokens).dtype == jnp.float32


def test_rotation_depends_on_the_distance_of_two_tokens_only():
    config = CONFIGS["qwen2"].rope
    q, k = jax.random.normal(jax.random.key(0), (2, 1, 1, 1, 8))

    def score(i, j):
        return jnp.sum(
            rope.rotate(q, *rope.rotation(config, 8, jnp.array([[i]])))
            * rope.rotate(k, *rope.rotation(config, 8, jnp.array([[j]])))
        )

    np.testing.assert_allclose(score(5, 2), score(105, 102), atol=1e-4)
    assert abs(score(5, 2) - score(5, 3)) > 1e-3


def test_llama3_scaling_slows_long_waves_and_keeps_short_ones():
    """theta 16, head 4: frequencies 1 and 1/4; over 64 positions they turn 10.2 and 2.5 times."""
    config = rope.RopeConfig(16.0, "llama3", 8.0, 1.0, 4.0, original_max_position_embeddings=64)
    short, long = rope.inverse_frequencies(config, 4)
    ramp = (64 * 0.25 / (2 * np.pi) - 1) / 3
    np.testing.assert_allclose([short, long], [1.0, 0.25 * (ramp + (1 - ramp) / 8)], rtol=1e-6)
    linear = rope.inverse_frequencies(rope.RopeConfig(16.0, "linear", 8.0), 4)
    np.testing.assert_allclose(linear, [1 / 8, 1 / 32], rtol=1e-6)


def test_impossible_settings_are_named():
    with pytest.raises(ValueError, match="num_attention_heads = 4 is not a multiple of num_key_value_heads = 3"):
        tiny_config(num_key_value_heads=3)
    with pytest.raises(ValueError, match="head_dim = 7 is odd"):
        tiny_config(head_dim=7)
    with pytest.raises(ValueError, match="hidden_act = 'relu' is not implemented"):
        tiny_config(hidden_act="relu")
    config = tiny_config()
    cache = models.init_cache(config, 1, 4)
    with pytest.raises(ValueError, match="3 tokens at slot 2 do not fit into 4 slots; call grow_cache"):
        models.extend(tiny_params(config), config, cache, tokens_of((1, 3)), jnp.ones((1, 3), bool), 2)
    with pytest.raises(ValueError, match="a cache only grows"):
        models.grow_cache(cache, 2)

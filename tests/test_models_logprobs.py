"""Chunked log-probabilities equal the plain ones, under every constraint, forward and backward."""

import functools

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rspo_jax import models
from rspo_jax.trajectory import FREE_TEXT, LISTED, UNCONSTRAINED

WIDTH = 6
token_logprobs = jax.jit(models.token_logprobs, static_argnames="chunk")


def random_rows(seed, count, vocab, listed):
    """Rows of all kinds whose targets lie in their support."""
    rng = np.random.default_rng(seed)
    free = rng.random(vocab) < 0.3
    free[0] = True
    kinds = rng.integers(0, 3, count).astype(np.int8)
    allowed, targets = np.full((count, listed), -1, np.int32), np.zeros(count, np.int32)
    for row, kind in enumerate(kinds):
        if kind != UNCONSTRAINED:
            some = rng.permutation(vocab)[: rng.integers(1, listed + 1)]
            allowed[row, : len(some)] = some
        targets[row] = rng.choice(support(kind, allowed[row], free, vocab))
    hidden = rng.normal(size=(count, WIDTH)).astype(np.float32)
    head = rng.normal(size=(WIDTH, vocab)).astype(np.float32)
    return hidden, head, targets, {"constraint": kinds, "allowed": allowed, "free_tokens": free}


def support(kind, allowed, free, vocab):
    if kind == UNCONSTRAINED:
        return list(range(vocab))
    return sorted({*allowed[allowed >= 0]} | ({*np.flatnonzero(free)} if kind == FREE_TEXT else set()))


def naive(hidden, head, targets, temperature, constraint, allowed, free_tokens):
    """Row by row in float64, from the definition."""
    logp, entropy = [], []
    for h, target, kind, row in zip(hidden.astype(float), targets, constraint, allowed, strict=True):
        ids = support(kind, row, free_tokens, head.shape[1])
        scores = (h @ head)[ids] / temperature
        log_p = scores - scores.max() - np.log(np.exp(scores - scores.max()).sum())
        logp.append(log_p[ids.index(target)])
        entropy.append(-(np.exp(log_p) * log_p).sum())
    return np.array(logp), np.array(entropy)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    count=st.sampled_from([1, 16]),
    vocab_listed=st.sampled_from([(90, 4), (20, 6)]),  # listed rows read columns of the head, or the whole product
    chunk=st.sampled_from([5, 100]),
    temperature=st.sampled_from([0.4, 1.0, 2.0]),
)
def test_every_kind_of_row_equals_its_definition_for_any_chunk(seed, count, vocab_listed, chunk, temperature):
    hidden, head, targets, options = random_rows(seed, count, *vocab_listed)
    got = token_logprobs(hidden, head, targets, temperature=temperature, chunk=chunk, **options)
    for value, want in zip(got, naive(hidden, head, targets, temperature, **options), strict=True):
        np.testing.assert_allclose(value, want, atol=2e-5)
    from_logits = models.logits_logprobs(hidden @ head, targets, temperature=temperature, **options)
    for value, want in zip(got, from_logits, strict=True):
        np.testing.assert_allclose(value, want, atol=2e-5)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("constrained", [False, True])
def test_gradients_of_log_probs_and_entropies_equal_those_of_whole_logits(constrained, masked):
    hidden, head, targets, options = random_rows(3, 23, 90, 4)
    options = options if constrained else {}
    weights = np.random.default_rng(4).normal(size=(2, 23)).astype(np.float32)
    mask = np.random.default_rng(5).random(23) < 0.6 if masked else np.ones(23, bool)

    def loss(function, hidden, head, temperature, **more):
        logp, entropy = function(hidden, head, targets, temperature=temperature, **options, **more)
        return jnp.sum(mask * (weights[0] * logp + weights[1] * entropy))

    def whole(hidden, head, targets, **options):
        return models.logits_logprobs(hidden @ head, targets, **options)

    arguments = (jnp.array(hidden), jnp.array(head), jnp.float32(0.7))
    more = {"mask": jnp.array(mask)} if masked else {}
    got = jax.jit(jax.grad(functools.partial(loss, models.token_logprobs, chunk=4, **more), (0, 1, 2)))(*arguments)
    want = jax.grad(functools.partial(loss, whole), (0, 1, 2))(*arguments)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-5)


def test_masked_rows_give_zero_and_get_no_gradient():
    hidden, head, targets, options = random_rows(1, 10, 90, 4)
    mask = np.arange(10) % 3 == 0

    def loss(hidden):
        logp, entropy = token_logprobs(hidden, head, targets, mask=jnp.array(mask), chunk=3, **options)
        return jnp.sum(logp) + jnp.sum(entropy), (logp, entropy)

    grads, (logp, entropy) = jax.grad(loss, has_aux=True)(jnp.array(hidden))
    assert (np.asarray(logp)[~mask] == 0).all() and (np.asarray(entropy)[~mask] == 0).all()
    assert (np.asarray(grads)[~mask] == 0).all() and (np.abs(grads).sum(1)[mask] > 0).all()


def test_masked_rows_may_hold_anything():
    hidden, head, targets, options = random_rows(1, 6, 90, 4)
    options["allowed"][2] = -1  # an empty support
    mask = jnp.arange(6) != 2

    def loss(hidden):
        return jnp.sum(models.token_logprobs(hidden, head, targets, mask=mask, **options)[0])

    assert np.isfinite(jax.grad(loss)(jnp.array(hidden))).all()


def test_a_single_listed_token_is_certain_and_one_outside_is_impossible():
    allowed = jnp.array([[5, -1], [5, -1]])
    logp, entropy = models.token_logprobs(
        jnp.ones((2, WIDTH)),
        jnp.ones((WIDTH, 90)),
        jnp.array([5, 6]),
        constraint=jnp.full(2, LISTED, jnp.int8),
        allowed=allowed,
    )
    assert logp[0] == 0 and abs(entropy[0]) < 1e-6
    assert logp[1] < -1e29


def test_memory_holds_one_chunk_of_logits_forward_and_backward():
    """No intermediate of the traced gradient has as many elements as rows x vocabulary."""
    rows, vocab = 64, 1000
    hidden, head, targets, options = random_rows(0, rows, vocab, 4)

    def loss(hidden, head, extra):
        logp, entropy = models.token_logprobs(hidden, head, targets, chunk=8, **extra)
        return jnp.sum(logp + entropy)

    def sizes(jaxpr):
        for equation in jaxpr.eqns:
            yield from (v.aval.size for v in equation.outvars)
            for inner in jax.extend.core.jaxprs_in_params(equation.params):
                yield from sizes(inner)

    for extra in ({}, options):
        jaxpr = jax.make_jaxpr(jax.grad(loss, (0, 1)))(jnp.array(hidden), jnp.array(head), extra)
        assert max(sizes(jaxpr.jaxpr)) <= 8 * vocab < rows * vocab


def test_constraint_and_allowed_come_together():
    with pytest.raises(ValueError, match="constraint and allowed belong together"):
        models.token_logprobs(
            jnp.ones((2, 3)), jnp.ones((3, 4)), jnp.zeros(2, jnp.int32), constraint=jnp.zeros(2, jnp.int8)
        )

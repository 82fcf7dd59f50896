"""Log-probabilities of given tokens, without ever holding the logits of all of them."""

import chex
import jax
import jax.numpy as jnp

from rspo_jax.trajectory import FREE_TEXT, LISTED

_EMPTY = -1e30  # logit of a token outside a distribution's support; finite, so that an empty row gives no NaN


def token_logprobs(
    hidden: jax.Array,
    head: jax.Array,
    targets: jax.Array,
    *,
    temperature: jax.Array | float = 1.0,
    constraint: jax.Array | None = None,
    allowed: jax.Array | None = None,
    free_tokens: jax.Array | None = None,
    mask: jax.Array | None = None,
    chunk: int = 512,
) -> tuple[jax.Array, jax.Array]:
    """Log-probability of each target and entropy of its distribution, both f32[M].

    hidden [M, D], head [D, V], targets i32[M]. The distribution is softmax(hidden @ head / temperature) over

        all tokens                                     where constraint is UNCONSTRAINED (or None),
        free_tokens bool[V] and allowed[m] (if >= 0)   where it is FREE_TEXT,
        allowed[m] i32[K] (-1 pads, ids distinct)      where it is LISTED.

    A target outside its support has a log-probability of about -1e30. mask bool[M]: rows that are False are skipped
    and give (0, 0). Rows are computed `chunk` at a time, and again in the backward pass: memory is chunk x V.
    """
    chex.assert_rank([hidden, head, targets], [2, 2, 1])
    logits = jnp.matmul(hidden, head, preferred_element_type=jnp.float32)
    return logits_logprobs(
        logits, targets, temperature=temperature, constraint=constraint, allowed=allowed, free_tokens=free_tokens
    )


def logits_logprobs(
    logits: jax.Array,
    targets: jax.Array,
    *,
    temperature: jax.Array | float = 1.0,
    constraint: jax.Array | None = None,
    allowed: jax.Array | None = None,
    free_tokens: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """`token_logprobs` of logits f32[M, V] that the caller already has."""
    scaled = logits.astype(jnp.float32) / temperature
    if constraint is not None:
        scaled = jnp.where(support(logits.shape[1], constraint, allowed, free_tokens), scaled, _EMPTY)
    log_p = jax.nn.log_softmax(scaled, axis=-1)
    entropy = -jnp.sum(jnp.exp(log_p) * log_p, axis=-1)
    return jnp.take_along_axis(log_p, targets[:, None], axis=1)[:, 0], entropy


def support(vocab: int, constraint: jax.Array, allowed: jax.Array, free_tokens: jax.Array | None) -> jax.Array:
    """Tokens that each row may take, bool[M, V]; arguments as in `token_logprobs`."""
    rows = jnp.arange(allowed.shape[0])[:, None]
    listed = (
        jnp.zeros((allowed.shape[0], vocab), bool)
        .at[rows, jnp.where(allowed >= 0, allowed, vocab)]
        .set(True, mode="drop")
    )
    free = jnp.zeros(vocab, bool) if free_tokens is None else free_tokens
    kind = constraint[:, None]
    return jnp.where(kind == LISTED, listed, jnp.where(kind == FREE_TEXT, listed | free, True))

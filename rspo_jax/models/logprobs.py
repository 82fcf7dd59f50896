"""Log-probabilities of given tokens, without ever holding the logits of all of them."""

import functools

import chex
import jax
import jax.numpy as jnp

from rspo_jax.trajectory import FREE_TEXT, LISTED, UNCONSTRAINED

_EMPTY = -1e30  # score of a token outside a distribution's support; finite, so that an empty row gives no NaN

# What a row needs, in the order that rows are sorted by: the whole vocabulary, its listed tokens only, nothing.
_DENSE, _SPARSE, _SKIPPED = 0, 1, 2
_GATHER_COST = 20  # one listed token read from the head costs about as much as 20 logits of a dense product (CPU)


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

        all tokens                                     where constraint i8[M] is UNCONSTRAINED (or None),
        free_tokens bool[V] and allowed[m] (if >= 0)   where it is FREE_TEXT,
        allowed[m] i32[K] (-1 pads, ids distinct)      where it is LISTED.

    A target outside its support has a log-probability of about -1e30. mask bool[M]: rows that are False give (0, 0).
    Rows are computed `chunk` at a time, and again in the backward pass, so memory is chunk x V; on a mesh the rows of
    all devices count. With a mask or a constraint, rows are first sorted by what they need: masked ones are skipped,
    listed ones read a few columns of the head. Sorting moves rows between devices, so on a mesh give a mask only where
    most rows are masked.
    """
    chex.assert_rank([hidden, head, targets], [2, 2, 1])
    chex.assert_equal_shape_prefix([x for x in (hidden, targets, constraint, allowed, mask) if x is not None], 1)
    if (constraint is None) != (allowed is None):
        raise ValueError("constraint and allowed belong together; give both or neither.")
    rows = jax.tree.map(jnp.asarray, (hidden, targets, constraint, allowed))
    need = _need(constraint, allowed, mask, head.shape[1])
    chunk = min(chunk, targets.shape[0])
    need, rows, join = _strided(rows, chunk) if need is None else _sorted(need, rows, chunk)
    # A column of the head is contiguous in its transpose; for a tied head the transpose is the embedding itself.
    compute = functools.partial(
        _chunk_logprobs, columns=jnp.asarray(head).T, free_tokens=free_tokens, temperature=temperature, chunk=chunk
    )
    compute = jax.checkpoint(compute, prevent_cse=False)
    _, (logp, entropy) = jax.lax.scan(lambda _, xs: (None, compute(*xs)), None, (need, rows))
    return join(logp), join(entropy)


def logits_logprobs(
    logits: jax.Array,
    targets: jax.Array,
    *,
    temperature: jax.Array | float = 1.0,
    constraint: jax.Array | None = None,
    allowed: jax.Array | None = None,
    free_tokens: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """`token_logprobs` of logits [M, V] that the caller already has."""
    scores = jnp.asarray(logits, jnp.float32) / temperature
    if constraint is None:
        return _statistics([scores], [jnp.take_along_axis(scores, targets[:, None], axis=1)[:, 0]])
    free = jnp.zeros(scores.shape[1], bool) if free_tokens is None else jnp.asarray(free_tokens)
    kind = constraint[:, None]
    listed = (kind == LISTED) | ((kind == FREE_TEXT) & ~free[allowed])  # what free_tokens has counts once
    listed = jnp.where(listed & (allowed >= 0), jnp.take_along_axis(scores, jnp.maximum(allowed, 0), axis=1), _EMPTY)
    scores = jnp.where((kind == UNCONSTRAINED) | ((kind == FREE_TEXT) & free), scores, _EMPTY)
    target_scores = [jnp.take_along_axis(scores, targets[:, None], axis=1)[:, 0], _hit(listed, allowed, targets)]
    return _statistics([scores, listed], target_scores)


def _chunk_logprobs(need, rows, *, columns, free_tokens, temperature, chunk):
    """Log-probs and entropies f32[chunk] of one chunk; `need` is None or i32[chunk], sorted."""

    def dense(hidden, targets, constraint, allowed):
        logits = jnp.matmul(hidden, columns.T, preferred_element_type=jnp.float32)
        options = {"constraint": constraint, "allowed": allowed, "free_tokens": free_tokens}
        return logits_logprobs(logits, targets, temperature=temperature, **options)

    def sparse(hidden, targets, _, allowed):
        listed = columns[jnp.maximum(allowed, 0)]
        scores = jnp.einsum("mkd,md->mk", listed, hidden, preferred_element_type=jnp.float32) / temperature
        scores = jnp.where(allowed >= 0, scores, _EMPTY)
        return _statistics([scores], [_hit(scores, allowed, targets)])

    def skip(*_):
        return jnp.zeros(chunk), jnp.zeros(chunk)

    if need is None:
        return dense(*rows)
    branches = [dense, dense if rows[3] is None else sparse, skip]
    logp, entropy = jax.lax.switch(need[0], branches, *rows)  # the first row of a sorted chunk needs most
    return jnp.where(need == _SKIPPED, 0.0, logp), jnp.where(need == _SKIPPED, 0.0, entropy)


def _statistics(pieces, target_scores):
    """Log-probability and entropy under the softmax over all `pieces` [M, *] of one distribution.

    The target's score is the largest of `target_scores` (each f32[M], _EMPTY where the target is not in its piece).
    """
    peak = jax.lax.stop_gradient(functools.reduce(jnp.maximum, [jnp.max(p, axis=1) for p in pieces]))
    total = sum(jnp.sum(jnp.exp(p - peak[:, None]), axis=1) for p in pieces)
    normaliser = peak + jnp.log(total)
    log_p = [p - normaliser[:, None] for p in pieces]
    entropy = -sum(jnp.sum(jnp.exp(p) * p, axis=1) for p in log_p)
    return functools.reduce(jnp.maximum, target_scores) - normaliser, entropy


def _hit(scores, allowed, targets):
    """Score of the target among the allowed tokens, f32[M]; _EMPTY where it is not one of them."""
    return jnp.max(jnp.where(allowed == targets[:, None], scores, _EMPTY), axis=1, initial=_EMPTY)


def _need(constraint, allowed, mask, vocab):
    """What each row needs, i32[M], or None where every row needs the whole vocabulary."""
    if constraint is None and mask is None:
        return None
    if constraint is None:
        return jnp.where(mask, _DENSE, _SKIPPED)
    few = allowed.shape[1] * _GATHER_COST < vocab
    need = jnp.where((constraint == LISTED) & few, _SPARSE, _DENSE)
    return need if mask is None else jnp.where(mask, need, _SKIPPED)


def _strided(rows, chunk):
    """Chunks that each take rows from every device of a sharded batch, so that the scan keeps all of them busy."""
    count = rows[0].shape[0]
    chunks = -(-count // chunk)

    def split(x):
        x = jnp.pad(x, [(0, chunks * chunk - count)] + [(0, 0)] * (x.ndim - 1))
        return x.reshape(chunk, chunks, *x.shape[1:]).swapaxes(0, 1)

    return None, jax.tree.map(split, rows), lambda x: x.T.reshape(-1)[:count]


def _sorted(need, rows, chunk):
    """Chunks of rows sorted by need; the last one is filled with skipped copies of row 0."""
    count = need.shape[0]
    chunks = -(-count // chunk)
    order = jnp.argsort(need)
    filled = jnp.pad(order, (0, chunks * chunk - count)).reshape(chunks, chunk)
    need = jnp.where(jnp.arange(chunks * chunk).reshape(chunks, chunk) < count, need[filled], _SKIPPED)

    def join(x):
        return jnp.zeros(count, x.dtype).at[order].set(x.reshape(-1)[:count], unique_indices=True)

    return need, jax.tree.map(lambda x: x[filled], rows), join

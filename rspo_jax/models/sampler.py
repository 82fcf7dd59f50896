"""Sampling with a key/value cache: prefill what is new, then generate one turn for all rows in one jitted loop.

A turn is one `prefill` and one `generate`. Rows share one slot index and are independent otherwise: own key, own
position, own constraint; so a row's sample does not depend on what is sampled beside it. Letters: B rows, R response
positions (max_tokens + 1), K children of a trie node, V vocabulary, D width, S cache slots.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rspo_jax.models import transformer
from rspo_jax.models.constrain import Trie
from rspo_jax.models.transformer import Cache, ModelConfig, Params
from rspo_jax.trajectory import FREE_TEXT, LISTED, UNCONSTRAINED

_EMPTY = -1e30  # logit of a token outside the distribution; finite, so that a row without any token gives no NaN
_ONE_LEVEL = 256  # longest distribution that is summed up in one go
_BELOW_ONE = 1 - 2.0**-23


class Generated(NamedTuple):
    """One turn's responses.

    tokens:     i32[B, R]     ids; every response of an active row ends with the end token.
    mask:       bool[B, R]    True on those; a prefix of each row.
    sampled:    bool[B, R]    True where the policy had a choice. Forced are: a token that was the only one allowed, and
                              the end token of a response that reached max_tokens.
    logp:       f32[B, R]     log-prob under the distribution sampled from; 0 on forced tokens.
    constraint: i8[B, R]      UNCONSTRAINED, FREE_TEXT or LISTED.
    allowed:    i32[B, R, K]  the ids listed at that position, -1 pads (K = 0 without a trie).
    fed:        i32[B]        so many tokens of the response are in the cache. The others are not: the next chunk starts
                              with them.
    slots:      i32[]         cache slots taken, the same for all rows.
    """

    tokens: jax.Array
    mask: jax.Array
    sampled: jax.Array
    logp: jax.Array
    constraint: jax.Array
    allowed: jax.Array
    fed: jax.Array
    slots: jax.Array


def right_align(rows: Sequence[Sequence[int]], multiple: int) -> tuple[np.ndarray, np.ndarray]:
    """Pads lists of ids on the left to one chunk (tokens i32[B, C], mask bool[B, C]); C is a multiple of `multiple`."""
    longest = max((len(row) for row in rows), default=0)
    width = max(1, -(-longest // multiple)) * multiple
    tokens, mask = np.zeros((len(rows), width), np.int32), np.zeros((len(rows), width), bool)
    for b, row in enumerate(rows):
        if row:
            tokens[b, -len(row) :], mask[b, -len(row) :] = row, True
    return tokens, mask


def prefill(
    params: Params,
    config: ModelConfig,
    cache: Cache,
    tokens: jax.Array,
    mask: jax.Array,
    slot: int,
    *,
    chunk: int = 512,
) -> tuple[jax.Array, Cache]:
    """Feeds right-aligned tokens i32[B, C] with mask bool[B, C] at slots [slot, slot + C).

    Returns the hidden state of each row's last token, [B, D], and the cache (the one passed in is donated). `chunk`
    columns are fed at a time, which bounds memory. A row without tokens gets a hidden state that means nothing.
    """
    chex.assert_rank([tokens, mask], 2)
    last = None
    for start in range(0, tokens.shape[1], chunk):
        columns = slice(start, start + chunk)
        _check_room(cache, slot + start, tokens[:, columns].shape[1])
        at = None if slot + start == 0 else slot + start
        last, cache = _prefill(params, config, cache, tokens[:, columns], mask[:, columns], at)
    return last, cache


def generate(
    params: Params,
    config: ModelConfig,
    cache: Cache,
    hidden_last: jax.Array,
    slot: int,
    keys: jax.Array,
    *,
    trie: Trie | None,
    active: jax.Array,
    max_tokens: int,
    temperature: float,
    end_token: int,
    greedy: bool = False,
    top_k: int = 0,
) -> tuple[Generated, Cache]:
    """Samples one response per active row from hidden_last [B, D]; needs max_tokens - 1 free slots from `slot` on.

    keys: one PRNG key per row; token t is drawn with fold_in(key, t), by inverting the cumulative distribution. With a
    trie the distribution is that of the policy restricted to what the row's tree allows, renormalised: exactly the one
    that `logprobs.token_logprobs` computes from `constraint` and `allowed`. greedy takes the likeliest token instead;
    top_k > 0 keeps the top_k likeliest ones, for evaluation only, and `logp` is then that of the cut distribution.
    The loop ends when every row has ended or its rest is decided by its tree: those tokens are written without the
    model. The cache passed in is donated.
    """
    chex.assert_rank([hidden_last, active], [2, 1])
    chex.assert_equal_shape_prefix([hidden_last, active, keys, cache.length], 1)
    _check_room(cache, slot, max_tokens - 1)
    draws = None if greedy else _uniforms(keys, max_tokens)
    return _generate(
        params, config, cache, hidden_last, slot, draws, trie, active, temperature, end_token, max_tokens, top_k
    )


def _check_room(cache: Cache, slot: int, length: int) -> None:
    slots = cache.valid.shape[1]
    if slot + length > slots:
        raise ValueError(f"{length} tokens at slot {slot} do not fit into {slots} cache slots; call grow_cache first.")


@functools.partial(jax.jit, static_argnames="config", donate_argnames="cache")
def _prefill(params, config, cache, tokens, mask, slot):
    hidden, cache = transformer.extend(params, config, cache, tokens, mask, 0 if slot is None else slot)
    return hidden[:, -1], cache


class _Row(NamedTuple):
    """Where each row stands: last token, node in its tree, free tokens so far at this node, length, whether it is done
    (nothing left to sample). All [B]."""

    token: jax.Array
    node: jax.Array
    free_count: jax.Array
    length: jax.Array
    done: jax.Array


class _Written(NamedTuple):
    """Outputs so far, position first so that a step writes one contiguous piece: [R, B] and allowed [R, B, K]."""

    tokens: jax.Array
    sampled: jax.Array
    logp: jax.Array
    constraint: jax.Array
    allowed: jax.Array


@functools.partial(jax.jit, static_argnames=("config", "max_tokens", "top_k"), donate_argnames="cache")
def _generate(params, config, cache, hidden, slot, draws, trie, active, temperature, end_token, max_tokens, top_k):
    """`generate` with draws f32[max_tokens, B], one uniform number per token, or None for the likeliest token."""
    choose = functools.partial(_choose, top_k)

    def feed(hidden, cache, row, t):
        hidden, cache = transformer.extend(params, config, cache, row.token[:, None], ~row.done[:, None], slot + t)
        return hidden[:, 0], cache

    def body(state):
        t, hidden, cache, row, written = state
        draw = None if draws is None else draws[t]
        token, logp, constraint, allowed, forced = _draw(
            params, config, hidden, row, trie, temperature, functools.partial(choose, draw)
        )
        sampled = ~row.done & ~forced
        allowed = jnp.where(row.done[:, None], -1, allowed)
        step = _Written(jnp.where(row.done, 0, token), sampled, jnp.where(sampled, logp, 0.0), constraint, allowed)
        written = jax.tree.map(lambda out, new: out.at[t].set(new.astype(out.dtype)), written, step)
        row = _advance(row, token, trie, end_token)
        go_on = (t + 1 < max_tokens) & ~jnp.all(row.done)
        hidden, cache = jax.lax.cond(go_on, feed, lambda hidden, cache, *_: (hidden, cache), hidden, cache, row, t)
        return t + 1, hidden, cache, row, written

    state = (jnp.int32(0), hidden, cache, _start(active, trie), _empty(active.shape[0], max_tokens + 1, trie))
    t, _, cache, row, written = jax.lax.while_loop(
        lambda state: (state[0] < max_tokens) & ~jnp.all(state[3].done), body, state
    )
    tokens, length = _complete(row, written.tokens, trie, active, end_token)
    written = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), written._replace(tokens=tokens))
    return Generated(
        tokens=written.tokens,
        mask=jnp.arange(max_tokens + 1) < length[:, None],
        sampled=written.sampled,
        logp=written.logp,
        constraint=written.constraint,
        allowed=written.allowed,
        fed=jnp.maximum(row.length - 1, 0),
        slots=jnp.maximum(t - 1, 0),
    ), cache


@functools.partial(jax.jit, static_argnames="count")
def _uniforms(keys, count):
    """One uniform number per position and row, f32[count, B], each from its own key."""
    draw = lambda t, key: jax.random.uniform(jax.random.fold_in(key, t))  # noqa: E731
    return jax.vmap(jax.vmap(draw, (None, 0)), (0, None))(jnp.arange(count), keys)


def _start(active, trie) -> _Row:
    zeros = jnp.zeros(active.shape, jnp.int32)
    done = ~active if trie is None else ~active | trie.decided[:, 0]
    return _Row(zeros, zeros, zeros, zeros, done)


def _empty(batch, positions, trie) -> _Written:
    shape, width = (positions, batch), 0 if trie is None else trie.child_token.shape[2]
    forced = UNCONSTRAINED if trie is None else LISTED
    return _Written(
        tokens=jnp.zeros(shape, jnp.int32),
        sampled=jnp.zeros(shape, bool),
        logp=jnp.zeros(shape, jnp.float32),
        constraint=jnp.full(shape, forced, jnp.int8),
        allowed=jnp.full((*shape, width), -1, jnp.int32),
    )


def _draw(params, config, hidden, row, trie, temperature, choose):
    """One token per row: (token i32[B], logp f32[B], constraint i8[B], allowed i32[B, K], forced bool[B])."""
    batch = hidden.shape[0]
    if trie is None:
        token, logp = choose(_all_logits(params, config, hidden) / temperature)
        return token, logp, jnp.full(batch, UNCONSTRAINED), jnp.zeros((batch, 0), jnp.int32), jnp.zeros(batch, bool)
    rows = jnp.arange(batch)
    at_slot = trie.free[rows, row.node]
    open_ = at_slot & (row.free_count < trie.free_limit)
    allowed = jnp.where((at_slot & (row.free_count == 0))[:, None], -1, trie.child_token[rows, row.node])

    def free_text():
        """Over the whole vocabulary, then the listed tokens (which are never free tokens)."""
        logits = _all_logits(params, config, hidden)
        listed = jnp.take_along_axis(logits, jnp.maximum(allowed, 0), axis=1)
        support = jnp.concatenate([open_[:, None] & trie.free_tokens, allowed >= 0], axis=1)
        logits = jnp.concatenate([logits, listed], axis=1) / temperature
        index, logp = choose(jnp.where(support, logits, _EMPTY))
        place = index - trie.free_tokens.shape[0]
        return jnp.where(place < 0, index, allowed[rows, jnp.maximum(place, 0)]), logp

    def listed():
        logits = _logits_of(params, config, hidden, jnp.maximum(allowed, 0)) / temperature
        index, logp = choose(jnp.where(allowed >= 0, logits, _EMPTY))
        return allowed[rows, index], logp

    token, logp = jax.lax.cond(jnp.any(open_ & ~row.done), free_text, listed)
    forced = ~open_ & (jnp.sum(allowed >= 0, axis=1) == 1)
    return token, logp, jnp.where(open_, FREE_TEXT, LISTED), allowed, forced


def _all_logits(params, config, hidden):
    return jnp.matmul(hidden, transformer.head(params, config), preferred_element_type=jnp.float32)


def _logits_of(params, config, hidden, ids):
    """Logits f32[B, K] of ids i32[B, K] only."""
    if config.tie_word_embeddings:
        return jnp.einsum("bd,bkd->bk", hidden, params["embed_tokens"][ids], preferred_element_type=jnp.float32)
    columns = jnp.take(params["lm_head"]["kernel"], ids, axis=1)
    return jnp.einsum("bd,dbk->bk", hidden, columns, preferred_element_type=jnp.float32)


def _advance(row: _Row, token, trie, end_token) -> _Row:
    """Follows the sampled token; rows that are done stay as they are."""
    length, done = row.length + 1, row.done | (token == end_token)
    node, free_count = row.node, row.free_count
    if trie is not None:
        rows = jnp.arange(token.shape[0])
        is_child = trie.child_token[rows, row.node] == token[:, None]
        moved = jnp.any(is_child, axis=1)
        target = jnp.sum(jnp.where(is_child, trie.child_node[rows, row.node], 0), axis=1)
        node, free_count = jnp.where(moved, target, node), jnp.where(moved, 0, free_count + 1)
        done = done | trie.decided[rows, node]
    new = _Row(token, node, free_count, length, done)
    return jax.tree.map(lambda old, new: jnp.where(row.done, old, new), row, new)


def _complete(row: _Row, tokens, trie, active, end_token):
    """Writes what is left of each response without the model: the decided rest of its path, or the end token alone.

    tokens i32[R, B] -> (tokens, length i32[B]).
    """
    last_position = tokens.shape[0] - 1
    rows = jnp.arange(tokens.shape[1])

    def body(state):
        tokens, node, length, ended = state
        token = jnp.full(rows.shape, end_token, tokens.dtype)
        if trie is not None:
            follows = trie.decided[rows, node] & (length < last_position)
            token = jnp.where(follows, trie.child_token[rows, node, 0], token)
            node = trie.child_node[rows, node, 0]
        tokens = tokens.at[jnp.where(ended, last_position + 1, length), rows].set(token, mode="drop")
        return tokens, node, length + ~ended, ended | (token == end_token)

    ended = ~active | ((row.length > 0) & (row.token == end_token))
    tokens, _, length, _ = jax.lax.while_loop(
        lambda state: ~jnp.all(state[3]), body, (tokens, row.node, row.length, ended)
    )
    return tokens, length


def _choose(top_k, draw, logits):
    """(index i32[B], log-prob f32[B]) from logits f32[B, N]: the likeliest where draw is None, else by inverse CDF."""
    if top_k and top_k < logits.shape[1]:
        least = jax.lax.top_k(logits, top_k)[0][:, -1:]
        logits = jnp.where(logits >= least, logits, _EMPTY)
    best = jnp.max(logits, axis=1, keepdims=True)
    weights = jnp.exp(logits - best)
    index = jnp.argmax(logits, axis=1) if draw is None else inverse_cdf(weights, draw)
    chosen = jnp.take_along_axis(logits, index[:, None], axis=1) - best
    return index, chosen[:, 0] - jnp.log(jnp.sum(weights, axis=1))


def inverse_cdf(weights: jax.Array, draw: jax.Array) -> jax.Array:
    """Index i32[B] with probability weights / sum(weights), f32[B, N], from one uniform number in [0, 1) per row.

    An index of weight 0 is never chosen. Long rows are searched in two levels, blocks and then one block: cumulative
    sums of length sqrt(N) instead of N.
    """
    batch, count = weights.shape
    if count <= _ONE_LEVEL:
        sums = jnp.cumsum(weights, axis=1)
        return jnp.sum(sums <= draw[:, None] * sums[:, -1:], axis=1, dtype=jnp.int32)
    width = 1 << ((count - 1).bit_length() + 1) // 2
    blocks = jnp.pad(weights, ((0, 0), (0, -count % width))).reshape(batch, -1, width)
    sums = jnp.cumsum(jnp.sum(blocks, axis=2), axis=1)
    target = draw * sums[:, -1]
    block = jnp.sum(sums <= target[:, None], axis=1)
    before = jnp.where(block > 0, jnp.take_along_axis(sums, jnp.maximum(block - 1, 0)[:, None], axis=1)[:, 0], 0.0)
    inside = jnp.cumsum(jnp.take_along_axis(blocks, block[:, None, None], axis=1)[:, 0], axis=1)
    rest = jnp.minimum(target - before, _BELOW_ONE * inside[:, -1])  # the two sums round differently
    return block * width + jnp.sum(inside <= rest[:, None], axis=1, dtype=jnp.int32)

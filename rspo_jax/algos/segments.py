"""Statistics inside groups of equal ids, with static shapes: the arithmetic under every group-relative advantage.

Ids are small integers with arbitrary values in arbitrary order. They are sorted into dense segment numbers, so the cost
is O(n log n) and nothing of size [n, n] is built.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

PADDING = -1  # the one group id that is not a group: its episodes enter no statistics and get advantage 0

# Values of one group that differ by no more than float32 rounding are equal. Without this, the rounding of a sum of
# rewards is divided by a standard deviation of the same size and becomes an advantage of order one.
_ABSOLUTE_TOLERANCE = 1e-6
_RELATIVE_TOLERANCE = 4e-6  # about 32 units in the last place


class Statistics(NamedTuple):
    """Of the segment that each entry belongs to; entries that are not valid read 0 and False.

    count:  f32[n]  valid entries.
    mean:   f32[n]
    std:    f32[n]  unbiased (divides by count - 1); 0 in a segment of one.
    varied: bool[n] the segment holds at least two values that differ by more than rounding.
    """

    count: jax.Array
    mean: jax.Array
    std: jax.Array
    varied: jax.Array


def segment_ids(valid: jax.Array, *keys: jax.Array) -> jax.Array:
    """Dense segment number i32[n] in [0, n): equal exactly where all `keys` i32[n] are equal; n where not `valid`."""
    chex.assert_rank([valid, *keys], 1)
    chex.assert_equal_shape([valid, *keys])
    n = valid.shape[0]
    order = jnp.lexsort((*keys, ~valid))
    starts = jnp.zeros(n, bool)
    for key in (*keys, valid):
        sorted_key = key[order]
        starts = starts.at[1:].set(starts[1:] | (sorted_key[1:] != sorted_key[:-1]))
    ids = jnp.zeros(n, jnp.int32).at[order].set(jnp.cumsum(starts).astype(jnp.int32))
    return jnp.where(valid, ids, n)


def differ(low: jax.Array, high: jax.Array) -> jax.Array:
    """True where `high` exceeds `low` by more than the rounding of float32 sums of that size."""
    scale = jnp.maximum(jnp.abs(low), jnp.abs(high))
    return high - low > _ABSOLUTE_TOLERANCE + _RELATIVE_TOLERANCE * scale


def statistics(x: jax.Array, ids: jax.Array) -> Statistics:
    """Statistics of x f32[n] inside the segments `ids` i32[n] made by `segment_ids`."""
    chex.assert_equal_shape([x, ids])
    n = x.shape[0]
    valid = ids < n
    x = jnp.where(valid, x, 0.0)

    def total(values):
        return jax.ops.segment_sum(jnp.where(valid, values, 0.0), ids, n + 1)[ids]

    count = total(jnp.ones_like(x))
    mean = total(x) / jnp.maximum(count, 1.0)
    # Two passes: the one-pass formula loses every digit when the mean is large against the spread.
    std = jnp.sqrt(total((x - mean) ** 2) / jnp.maximum(count - 1.0, 1.0))
    low = jax.ops.segment_min(x, ids, n + 1)[ids]
    high = jax.ops.segment_max(x, ids, n + 1)[ids]
    return Statistics(count, mean, std, valid & differ(low, high))


def normalise(x: jax.Array, ids: jax.Array, *, norm: str, eps: float) -> jax.Array:
    """(x - mean) / (std + eps) for norm "std", x - mean for "none"; exactly 0 where a segment has nothing to compare.

    x: f32[n]; ids: i32[n] from `segment_ids`. Segments of one entry, of equal values, and invalid entries give 0.
    """
    if norm not in ("std", "none"):
        raise ValueError(f'norm must be "std" or "none", got {norm!r}.')
    stats = statistics(x, ids)
    centred = jnp.where(stats.varied, x - stats.mean, 0.0)
    return centred / (stats.std + eps) if norm == "std" else centred

"""Which stored trajectories enter the target's next updates: pure selections on one value per stored episode.

The advantage of a stored episode is computed inside its own group of N BEFORE anything is selected. After a selection
of successes every group would hold equal returns, all advantages would be 0, and the off-policy term would vanish.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from rspo_jax.algos import segments

SAMPLINGS = ("reward", "variance", "random")


class Stored(NamedTuple):
    """M stored episodes.

    outcome:   f32[M]  outcome return.
    success:   bool[M]
    advantage: f32[M]  scalar advantage from the episode's own group (mean over its turns where it has one per turn).
    group:     i32[M]  its group of N; -1 marks an empty slot of the buffer.
    """

    outcome: jax.Array
    success: jax.Array
    advantage: jax.Array
    group: jax.Array


def select(
    key, stored: Stored, *, steps: int, per_step: int, sampling: str = "reward", only_successes: bool = True
) -> jax.Array:
    """Stored episodes for each of the next `steps` updates, without replacement.

    reward:   highest outcome return first
    variance: highest variance of the outcome inside the group first
    random:   a seeded random order
    Ties of the first two: larger advantage first, then a seeded random order. The first update draws first.

    Source: RSPO, arXiv 2607.04713 ("reward", with the other two as its ablation). The paper is silent on ties, on the
    order over updates and on failures; only_successes leaves the failures out.

    Args:
      key: PRNG key. stored: M episodes. steps: k. per_step: alpha * batch * N.

    Returns:
      i32[steps, per_step] indices into the M episodes, -1 where none is left (the caller adds on-policy tasks).
    """
    if sampling not in SAMPLINGS:
        raise ValueError(f"rspo.sampling must be one of {', '.join(SAMPLINGS)}, got {sampling!r}.")
    stored = _as_arrays(stored)
    eligible = stored.group != segments.PADDING
    if only_successes:
        eligible = eligible & stored.success
    if sampling == "random":
        return _draw(key, eligible, (), steps, per_step)
    score = stored.outcome if sampling == "reward" else _group_variance(stored)
    return _draw(key, eligible, (score, stored.advantage), steps, per_step)


def select_self_imitation(key, stored: Stored, baselines, *, steps: int, per_step: int) -> tuple[jax.Array, jax.Array]:
    """Self-imitation replay: the agent's own past episodes that still look good today.

    An episode counts while it was better than its own group (advantage > 0) and is better than the median of the
    recent groups' mean returns; the second difference replaces its old advantage, which the policy has outgrown.

    Source: after SPEAR, arXiv 2509.22601 (advantage recalibration); its entropy terms are not part of this.

    Args:
      key: PRNG key. stored: M episodes. baselines: f32[W] recent group means, NaN where empty (`push_baselines`).

    Returns:
      (indices i32[steps, per_step] in random order without replacement, -1 where none is left;
       recalibrated advantage f32[M] in reward units, 0 for episodes that do not count).
    """
    stored = _as_arrays(stored)
    median = jnp.nan_to_num(jnp.nanmedian(jnp.asarray(baselines, jnp.float32)))
    gain = stored.outcome - median
    eligible = (stored.group != segments.PADDING) & (stored.advantage > 0) & (gain > 0)
    return _draw(key, eligible, (), steps, per_step), jnp.where(eligible, gain, 0.0)


def push_baselines(baselines, returns, group) -> jax.Array:
    """First-in-first-out window f32[W] of group means after adding those of a batch (returns f32[B], group i32[B])."""
    baselines, returns = jnp.asarray(baselines, jnp.float32), jnp.asarray(returns, jnp.float32)
    group = jnp.asarray(group, jnp.int32)
    chex.assert_rank([baselines, returns, group], 1)
    chex.assert_equal_shape([returns, group])
    ids = segments.segment_ids(group != segments.PADDING, group)
    first = jnp.zeros(group.size + 1, bool).at[ids].set(True)[:-1]  # segment s exists
    sums = jax.ops.segment_sum(returns, ids, group.size + 1)[:-1]
    counts = jax.ops.segment_sum(jnp.ones_like(returns), ids, group.size + 1)[:-1]
    window = jnp.concatenate([baselines, jnp.where(first, sums / jnp.maximum(counts, 1.0), jnp.nan)])
    oldest_first = jnp.argsort(~jnp.isnan(window), stable=True)  # empty places count as the oldest
    return window[oldest_first][-baselines.size :]


def _as_arrays(stored: Stored) -> Stored:
    stored = Stored(
        jnp.asarray(stored.outcome, jnp.float32),
        jnp.asarray(stored.success, bool),
        jnp.asarray(stored.advantage, jnp.float32),
        jnp.asarray(stored.group, jnp.int32),
    )
    chex.assert_rank(list(stored), 1)
    chex.assert_equal_shape(list(stored))
    return stored


def _group_variance(stored: Stored) -> jax.Array:
    ids = segments.segment_ids(stored.group != segments.PADDING, stored.group)
    return segments.statistics(stored.outcome, ids).std ** 2


def _draw(key, eligible, scores, steps, per_step) -> jax.Array:
    """The best eligible indices by `scores` (most significant first), remaining ties in random order."""
    noise = jax.random.uniform(key, eligible.shape)
    order = jnp.lexsort((noise, *(-s for s in reversed(scores)), ~eligible)).astype(jnp.int32)
    order = jnp.where(eligible[order], order, -1)
    missing = max(steps * per_step - order.size, 0)
    order = jnp.concatenate([order, jnp.full(missing, -1, jnp.int32)])
    return order[: steps * per_step].reshape(steps, per_step)

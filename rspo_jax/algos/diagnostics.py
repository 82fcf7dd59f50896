"""Numbers that show whether the reward swap works. Sums first, so that micro-batches can be merged exactly."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from rspo_jax.algos import losses, segments


class PolicySums(NamedTuple):
    """Sums (and maxima) over tokens, all f32[]; see `policy_summary` for their meaning."""

    tokens_on: jax.Array
    tokens_off: jax.Array
    ratio: jax.Array
    ratio_max: jax.Array
    clipped_on: jax.Array
    clipped_off: jax.Array
    centre_off: jax.Array
    centre_max: jax.Array
    ratio_off: jax.Array
    ratio_off_squared: jax.Array
    kl: jax.Array


def policy_sums(
    logp,
    logp_old,
    logp_behaviour,
    advantage,
    mask,
    off_policy,
    *,
    eps_low=0.2,
    eps_high=0.2,
    off_clip="generalized",
    off_ratio="behaviour",
    off_ratio_cap=None,
) -> PolicySums:
    """Sums over the tokens of a (micro-)batch; arrays f32[...] and bool[...] of one shape, options as the loss has."""
    logp, logp_old, logp_behaviour = (jnp.where(mask, x, 0.0) for x in (logp, logp_old, logp_behaviour))
    on, off = mask & ~off_policy, mask & off_policy
    ratio, centre = losses.ratio_and_centre(
        logp, logp_old, logp_behaviour, off_ratio=off_ratio, off_ratio_cap=off_ratio_cap
    )
    low, high = losses.clip_interval(centre, eps_low=eps_low, eps_high=eps_high, off_clip=off_clip)
    if off_clip == "none":
        on_low, on_high = losses.clip_interval(centre, eps_low=eps_low, eps_high=eps_high)
        low, high = jnp.where(off_policy, low, on_low), jnp.where(off_policy, high, on_high)
    # Clipped means: the clip removed the gradient. Outside the interval on the side that the advantage pulls to.
    clipped = ((advantage > 0) & (ratio > high)) | ((advantage < 0) & (ratio < low))

    def total(x, where):
        return jnp.sum(jnp.where(where, x, 0.0))

    return PolicySums(
        tokens_on=total(1.0, on),
        tokens_off=total(1.0, off),
        ratio=total(ratio, mask),
        ratio_max=jnp.max(jnp.where(mask, ratio, 0.0)),
        clipped_on=total(clipped, on),
        clipped_off=total(clipped, off),
        centre_off=total(centre, off),
        centre_max=jnp.max(jnp.where(off, centre, 0.0)),
        ratio_off=total(ratio, off),
        ratio_off_squared=total(ratio**2, off),
        kl=total(losses.kl_penalty(logp_old, logp, "k3"), on),
    )


def merge(a: PolicySums, b: PolicySums) -> PolicySums:
    """Sums of two disjoint sets of tokens together."""
    merged = PolicySums(*(x + y for x, y in zip(a, b, strict=True)))
    return merged._replace(
        ratio_max=jnp.maximum(a.ratio_max, b.ratio_max), centre_max=jnp.maximum(a.centre_max, b.centre_max)
    )


def policy_summary(sums: PolicySums) -> dict[str, jax.Array]:
    """Diagnostics f32[] by name; those of an empty part read 0.

    ratio_mean, ratio_max: of r over all tokens. clip_fraction_on, clip_fraction_off: tokens whose gradient the clip
    removed. clip_centre_mean, clip_centre_max: of c = pi_old / pi_B, off-policy. effective_sample_size: (sum r)^2 /
    (n sum r^2) off-policy, in (0, 1], 1 when all ratios are equal. approx_kl: KL(pi_old || pi) by k3, on-policy (the
    tokens that pi_old sampled).
    """

    def mean(total, count):
        return total / jnp.maximum(count, 1.0)

    return {
        "ratio_mean": mean(sums.ratio, sums.tokens_on + sums.tokens_off),
        "ratio_max": sums.ratio_max,
        "clip_fraction_on": mean(sums.clipped_on, sums.tokens_on),
        "clip_fraction_off": mean(sums.clipped_off, sums.tokens_off),
        "clip_centre_mean": mean(sums.centre_off, sums.tokens_off),
        "clip_centre_max": sums.centre_max,
        "effective_sample_size": jnp.where(
            sums.tokens_off > 0,
            sums.ratio_off**2 / jnp.maximum(sums.tokens_off * sums.ratio_off_squared, 1e-30),
            0.0,
        ),
        "approx_kl": mean(sums.kl, sums.tokens_on),
    }


def group_fractions(success, group) -> dict[str, jax.Array]:
    """Parts f32[] of the groups in which all, none, or some of the episodes succeed; success bool[B], group i32[B]."""
    success, group = jnp.asarray(success, jnp.float32), jnp.asarray(group, jnp.int32)
    stats = segments.statistics(success, segments.segment_ids(group != segments.PADDING, group))
    share = jnp.where(stats.count > 0, 1.0 / jnp.maximum(stats.count, 1.0), 0.0)  # the episodes of a group share one
    groups = jnp.maximum(jnp.sum(share), 1e-12)
    all_fail = jnp.sum(jnp.where(stats.mean <= 0, share, 0.0)) / groups
    all_success = jnp.sum(jnp.where(stats.mean >= 1, share, 0.0)) / groups
    return {
        "groups_all_fail": all_fail,
        "groups_all_success": all_success,
        "groups_mixed": jnp.sum(jnp.where((stats.mean > 0) & (stats.mean < 1), share, 0.0)) / groups,
    }


def repeated_states(state, mask, group) -> jax.Array:
    """i32[]: turns whose (group, state) another turn of the batch had already reached, the paper's diversity measure.

    Turns that happened minus distinct pairs. With group = arange(B) it counts revisits inside single episodes.
    state: i32[B, T]; mask: bool[B, T]; group: i32[B], -1 is padding.
    """
    state, group = jnp.asarray(state, jnp.int32), jnp.asarray(group, jnp.int32)
    valid = jnp.asarray(mask, bool) & (group != segments.PADDING)[:, None]
    group_BT = jnp.broadcast_to(group[:, None], state.shape)
    ids = segments.segment_ids(valid.ravel(), group_BT.ravel(), state.ravel())
    distinct = jnp.sum(jnp.zeros(ids.size + 1, jnp.int32).at[ids].set(1)[:-1])
    return jnp.sum(valid) - distinct

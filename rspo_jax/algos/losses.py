"""Per-token losses. All return one value per token; `aggregation.token_weights` turns them into a scalar.

Log-probs: `logp` of the policy being trained (the only one with a gradient), `logp_old` of the same policy at the start
of the step, `logp_behaviour` of the policy that sampled the token.
"""

import chex
import jax
import jax.numpy as jnp

LOG_RATIO_LIMIT = 20.0  # |log-ratio| is clipped to this before exp: exp(20) is 5e8, still exact in every product here

OFF_CLIPS = ("generalized", "standard", "decoupled", "none")
OFF_RATIOS = ("behaviour", "old")


def _exp(log_ratio) -> jax.Array:
    return jnp.exp(jnp.clip(log_ratio, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))


def ratio_and_centre(
    logp, logp_old, logp_behaviour, *, off_ratio="behaviour", off_ratio_cap=None
) -> tuple[jax.Array, jax.Array]:
    """Importance ratio r = pi / pi_B and clip centre c = pi_old / pi_B.

    off_ratio "old" uses r = pi / pi_old and c = 1. `off_ratio_cap` bounds c from above and scales r with it (truncated
    importance sampling: r = (pi / pi_old) * min(c, cap)). No gradient flows through c.
    """
    if off_ratio not in OFF_RATIOS:
        raise ValueError(f"off_ratio must be one of {', '.join(OFF_RATIOS)}, got {off_ratio!r}.")
    logp_old = jax.lax.stop_gradient(logp_old)
    logp_behaviour = logp_old if off_ratio == "old" else jax.lax.stop_gradient(logp_behaviour)
    ratio, centre = _exp(logp - logp_behaviour), _exp(logp_old - logp_behaviour)
    if off_ratio_cap is None:
        return ratio, centre
    capped = jnp.minimum(centre, off_ratio_cap)
    return ratio * (capped / centre), capped


def clip_interval(centre, *, eps_low, eps_high, off_clip="generalized") -> tuple[jax.Array, jax.Array]:
    """(low, high) that the ratio pi / pi_B is clipped to, for a clip centre c.

    generalized: [c - eps_low, c + eps_high]          GePPO, Queeney et al. 2021: a trust region around pi_old
    standard:    [1 - eps_low, 1 + eps_high]          PPO applied off-policy as it stands
    decoupled:   [c (1 - eps_low), c (1 + eps_high)]  decoupled PPO, Hilton et al. 2021: clips pi / pi_old
    none:        no bound
    """
    if off_clip not in OFF_CLIPS:
        raise ValueError(f"off_clip must be one of {', '.join(OFF_CLIPS)}, got {off_clip!r}.")
    one = jnp.ones_like(centre)
    return {
        "generalized": (centre - eps_low, centre + eps_high),
        "standard": (one - eps_low, one + eps_high),
        "decoupled": (centre * (1.0 - eps_low), centre * (1.0 + eps_high)),
        "none": (-jnp.inf * one, jnp.inf * one),
    }[off_clip]


def clipped_surrogate(
    logp,
    logp_old,
    logp_behaviour,
    advantage,
    *,
    eps_low=0.2,
    eps_high=0.2,
    dual_clip=3.0,
    off_clip="generalized",
    off_ratio="behaviour",
    off_ratio_cap=None,
    off_policy=None,
    mask=None,
) -> jax.Array:
    """Clipped policy-gradient loss for on- and off-policy tokens, one value per token, to minimise.

        r = pi / pi_B,  c = pi_old / pi_B
        objective = min(r A, clip(r, c - eps_low, c + eps_high) A);   if A < 0: max(objective, dual_clip A)
        loss = -objective

    On-policy pi_B = pi_old, hence c = 1: PPO. Off-policy the trust region lies around pi_old, whatever pi_B was; around
    pi_B it would pull the policy back to the one that sampled.

    Sources: PPO, arXiv 1707.06347; the shifted interval, GePPO (NeurIPS 2021) as used by RSPO, arXiv 2607.04713; dual
    clip, arXiv 1912.09729; eps_high > eps_low, DAPO, arXiv 2503.14476.

    Args:
      logp, logp_old, logp_behaviour, advantage: f32[...], same shape. No gradient flows through the last three.
      eps_low, eps_high: half widths of the clip interval.
      dual_clip: bound for negative advantages, > 1; None for no bound.
      off_clip: see `clip_interval`; differs from "generalized" where c != 1 only, except "none".
      off_ratio, off_ratio_cap: see `ratio_and_centre`.
      off_policy: bool[...] tokens that another policy sampled; off_clip "none" frees these only (None: all).
      mask: bool[...] or None; masked tokens, whose log-probs may be any placeholder, give loss and gradient 0.

    Returns:
      f32[...].
    """
    arrays = [jnp.asarray(x, jnp.float32) for x in (logp, logp_old, logp_behaviour, advantage)]
    chex.assert_equal_shape(arrays)
    if mask is not None:
        arrays = [jnp.where(mask, x, 0.0) for x in arrays]  # before exp, so that not even the gradient sees them
    logp, logp_old, logp_behaviour, advantage = arrays
    advantage = jax.lax.stop_gradient(advantage)

    ratio, centre = ratio_and_centre(logp, logp_old, logp_behaviour, off_ratio=off_ratio, off_ratio_cap=off_ratio_cap)
    low, high = clip_interval(centre, eps_low=eps_low, eps_high=eps_high, off_clip=off_clip)
    if off_clip == "none" and off_policy is not None:
        on_low, on_high = clip_interval(centre, eps_low=eps_low, eps_high=eps_high)
        low, high = jnp.where(off_policy, low, on_low), jnp.where(off_policy, high, on_high)
    objective = jnp.minimum(ratio * advantage, jnp.clip(ratio, low, high) * advantage)
    if dual_clip is not None:
        objective = jnp.where(advantage < 0, jnp.maximum(objective, dual_clip * advantage), objective)
    return -objective


def sequence_logprobs(logp, mask, segment, *, segments: int) -> jax.Array:
    """Mean log-prob of the sequence that a token belongs to, at each of its tokens: GSPO's length-normalised ratio.

    `clipped_surrogate` of three such arrays is GSPO (arXiv 2507.18071, equation 7), with the off-policy clip centre
    taken per sequence too: s = exp(mean over tokens of log pi - log pi_B).

    Args:
      logp: f32[N, L]; mask: bool[N, L] action tokens.
      segment: i32[N, L] in [0, segments): sequence inside the row, e.g. `rows.turn`. A sequence never spans two rows,
        so any micro-batching by rows gives the same result.

    Returns:
      f32[N, L]; 0 where mask is False.
    """
    logp, mask = jnp.asarray(logp, jnp.float32), jnp.asarray(mask, bool)
    chex.assert_rank([logp, mask, segment], 2)
    chex.assert_equal_shape([logp, mask, segment])
    logp = jnp.where(mask, logp, 0.0)
    segment = jnp.where(mask, segment, segments)  # one extra bin takes what is not an action token

    def row_mean(logp_L, mask_L, segment_L):
        total = jax.ops.segment_sum(logp_L, segment_L, segments + 1)
        count = jax.ops.segment_sum(mask_L.astype(jnp.float32), segment_L, segments + 1)
        return (total / jnp.maximum(count, 1.0))[segment_L]

    return jnp.where(mask, jax.vmap(row_mean)(logp, mask, segment), 0.0)


def kl_penalty(logp, logp_ref, kind="k3") -> jax.Array:
    """Estimate of KL(pi || pi_ref) from one token sampled from pi; f32[...].

        k1 = log pi - log pi_ref              unbiased, any sign; as a loss its expected gradient is 0: for rewards only
        k2 = (log pi - log pi_ref)^2 / 2      biased, >= 0; its gradient as a loss is unbiased
        k3 = x - 1 - log x, x = pi_ref / pi   unbiased, >= 0

    Source: Schulman, "Approximating KL divergence" (2020); k3 is GRPO's. Log-ratios are clipped to +-20.
    """
    log_ratio = jnp.asarray(logp, jnp.float32) - jax.lax.stop_gradient(jnp.asarray(logp_ref, jnp.float32))
    log_ratio = jnp.clip(log_ratio, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    if kind == "k1":
        return log_ratio
    if kind == "k2":
        return 0.5 * log_ratio**2
    if kind == "k3":
        return jnp.expm1(-log_ratio) + log_ratio
    raise ValueError(f"KL estimator must be k1, k2 or k3, got {kind!r}.")


def value_loss(values, values_old, returns, *, clip=0.5) -> jax.Array:
    """Half squared error of the critic, max'ed with that of a prediction kept within `clip` of the old one; f32[...].

    Source: the PPO implementation of OpenAI Baselines. clip None: the plain half squared error.
    """
    values, values_old, returns = (jnp.asarray(x, jnp.float32) for x in (values, values_old, returns))
    chex.assert_equal_shape([values, values_old, returns])
    values_old, returns = jax.lax.stop_gradient(values_old), jax.lax.stop_gradient(returns)
    error = (values - returns) ** 2
    if clip is not None:
        near = values_old + jnp.clip(values - values_old, -clip, clip)
        error = jnp.maximum(error, (near - returns) ** 2)
    return 0.5 * error


def entropy_bonus(entropy, coefficient) -> jax.Array:
    """Loss term -coefficient * H per token; f32[...]. entropy: that of the distribution the token was sampled from."""
    return -coefficient * jnp.asarray(entropy, jnp.float32)

"""Advantage estimators: pure functions of turn-level arrays (B episodes, T turns).

Every group statistic is taken over episodes (or over the turns of one anchor state), never over token or turn rows, so
a long episode weighs no more than a short one. Group id -1 marks padding. Masked turns enter no statistic and read 0.
"""

import chex
import jax
import jax.numpy as jnp

from rspo_jax.algos import segments
from rspo_jax.trajectory import TokenRows


def grpo_advantage(returns, group, *, norm="std", eps=1e-6) -> jax.Array:
    """Group-relative advantage, A_i = (R_i - mean) / (std + eps) over the episodes of one task.

    Source: DeepSeekMath, arXiv 2402.03300, section 4.1. The standard deviation is the unbiased one (N - 1).

    Args:
      returns: f32[B] episode returns, before any penalty for invalid responses.
      group: i32[B] equal for episodes of the same task; any values, any order; -1 is padding.
      norm: "std", or "none" for A_i = R_i - mean.
      eps: added to the standard deviation.

    Returns:
      f32[B]. A group of one, a group of returns equal up to float rounding, and padding give exactly 0.
    """
    returns, group = jnp.asarray(returns, jnp.float32), jnp.asarray(group, jnp.int32)
    chex.assert_rank([returns, group], 1)
    chex.assert_equal_shape([returns, group])
    return segments.normalise(returns, segments.segment_ids(group != segments.PADDING, group), norm=norm, eps=eps)


def dr_grpo_advantage(returns, group) -> jax.Array:
    """Dr.GRPO, A_i = R_i - mean: GRPO without the division that favours groups of little variance.

    Source: arXiv 2503.20783. Its second half, a constant length normaliser, is `token_weights(mode="constant")`.
    Shapes, group of one and padding as `grpo_advantage`.
    """
    return grpo_advantage(returns, group, norm="none")


def rloo_advantage(returns, group) -> jax.Array:
    """REINFORCE leave-one-out, A_i = R_i - mean of the other episodes of the group = N / (N - 1) (R_i - mean).

    Source: Ahmadian et al., arXiv 2402.14740. The baseline of an episode does not depend on it: the estimator of the
    policy gradient is unbiased. Shapes, group of one (0) and padding as `grpo_advantage`.
    """
    returns, group = jnp.asarray(returns, jnp.float32), jnp.asarray(group, jnp.int32)
    chex.assert_rank([returns, group], 1)
    chex.assert_equal_shape([returns, group])
    stats = segments.statistics(returns, segments.segment_ids(group != segments.PADDING, group))
    scale = stats.count / jnp.maximum(stats.count - 1.0, 1.0)
    return jnp.where(stats.varied, scale * (returns - stats.mean), 0.0)


def discounted_returns(rewards, mask, *, gamma) -> jax.Array:
    """G_t = r_t + gamma * G_{t+1} over the turns that happened; f32[B, T], 0 at masked turns.

    A masked turn is skipped, not discounted: padding anywhere changes nothing.
    """
    rewards, mask = jnp.asarray(rewards, jnp.float32), jnp.asarray(mask, bool)
    chex.assert_rank([rewards, mask], 2)
    chex.assert_equal_shape([rewards, mask])

    def step(future, inputs):
        reward, happened = inputs
        future = jnp.where(happened, reward + gamma * future, future)
        return future, future

    _, returns_TB = jax.lax.scan(step, jnp.zeros(rewards.shape[0]), (rewards.T, mask.T), reverse=True)
    return jnp.where(mask, returns_TB.T, 0.0)


def gigpo_advantage(rewards, mask, group, state, *, gamma=0.95, omega=1.0, norm="std", eps=1e-6) -> jax.Array:
    """Group-in-group advantage, A = A_episode + omega * A_step.

    A_episode is GRPO's on the undiscounted episode returns. A_step compares the discounted return G_t of a turn with
    those of all turns of its task that started from the same anchor state, over all episodes and over revisits inside
    one episode: (G_t - mean) / (std + eps).

    Source: GiGPO, arXiv 2505.10978, sections 4.1-4.3.

    Args:
      rewards: f32[B, T] before any penalty for invalid responses.
      mask: bool[B, T] True where the turn happened.
      group: i32[B] task; -1 is padding.
      state: i32[B, T] anchor state of the observation that the turn acted on; compared within a group only.
      gamma: discount per turn of the step level.
      omega: weight of the step level.
      norm: "std", or "none" for means only; applies to both levels.
      eps: added to both standard deviations.

    Returns:
      f32[B, T]; 0 at masked turns and padding. An anchor group of one turn (or of equal returns) has A_step = 0.
    """
    rewards, mask = jnp.asarray(rewards, jnp.float32), jnp.asarray(mask, bool)
    group, state = jnp.asarray(group, jnp.int32), jnp.asarray(state, jnp.int32)
    chex.assert_rank([rewards, mask, group, state], [2, 2, 1, 2])
    chex.assert_equal_shape([rewards, mask, state])
    chex.assert_equal_shape_prefix([rewards, group], 1)

    mask = mask & (group != segments.PADDING)[:, None]
    group = jnp.where(mask.any(axis=1), group, segments.PADDING)  # an episode without turns is no episode
    returns = jnp.sum(jnp.where(mask, rewards, 0.0), axis=1)
    episode_B = grpo_advantage(returns, group, norm=norm, eps=eps)

    step_returns = discounted_returns(rewards, mask, gamma=gamma).ravel()
    group_BT = jnp.broadcast_to(group[:, None], mask.shape)
    ids = segments.segment_ids(mask.ravel(), group_BT.ravel(), state.ravel())
    step_BT = segments.normalise(step_returns, ids, norm=norm, eps=eps).reshape(mask.shape)
    return jnp.where(mask, episode_B[:, None] + omega * step_BT, 0.0)


def gae(rewards, values, mask, *, gamma, lam) -> tuple[jax.Array, jax.Array]:
    """Generalised advantage estimation over the turns of an episode.

    delta_t = r_t + gamma * V_{t+1} - V_t;  A_t = delta_t + gamma * lam * A_{t+1};  returns_t = A_t + V_t.
    V after the last turn is 0: the turn limit belongs to the task here, so running out of turns is a failure like any
    other. A masked turn is skipped (t + 1 is the next turn that happened).

    Source: Schulman et al., arXiv 1506.02438, equations 11-16.

    Args:
      rewards, values: f32[B, T]; values[b, t] is predicted from what the agent saw before acting in turn t.
      mask: bool[B, T].
      gamma, lam: discount and GAE lambda per turn.

    Returns:
      (advantages f32[B, T], returns f32[B, T]); both 0 at masked turns.
    """
    rewards, values = jnp.asarray(rewards, jnp.float32), jnp.asarray(values, jnp.float32)
    mask = jnp.asarray(mask, bool)
    chex.assert_rank([rewards, values, mask], 2)
    chex.assert_equal_shape([rewards, values, mask])

    def step(carry, inputs):
        next_value, next_advantage = carry
        reward, value, happened = inputs
        advantage = reward + gamma * next_value - value + gamma * lam * next_advantage
        carry = jnp.where(happened, value, next_value), jnp.where(happened, advantage, next_advantage)
        return carry, advantage

    start = (jnp.zeros(rewards.shape[0]), jnp.zeros(rewards.shape[0]))
    _, advantages_TB = jax.lax.scan(step, start, (rewards.T, values.T, mask.T), reverse=True)
    advantages = jnp.where(mask, advantages_TB.T, 0.0)
    return advantages, jnp.where(mask, advantages + values, 0.0)


def token_gae(episode_return, values, rows: TokenRows) -> tuple[jax.Array, jax.Array]:
    """Token-level GAE with gamma = lambda = 1 inside one turn, the episode's return on the turn's last token.

    With gamma = lambda = 1 the deltas telescope: A_l = R - V_l for every token l of the turn, and the critic's target
    is R. Nothing crosses a turn, because every turn carries the whole episode's return.

    Source: the layout of verl-agent, in which a turn is a row of its own.

    Args:
      episode_return: f32[B].
      values: f32[N, L] predicted at each action token.
      rows: the token rows; `action_mask` and `episode` are read.

    Returns:
      (advantages f32[N, L], returns f32[N, L]); 0 where action_mask is False.
    """
    episode_return, values = jnp.asarray(episode_return, jnp.float32), jnp.asarray(values, jnp.float32)
    chex.assert_rank([episode_return, values], [1, 2])
    chex.assert_equal_shape([values, rows.action_mask])
    target = jnp.where(rows.action_mask, episode_return[rows.episode][:, None], 0.0)
    return jnp.where(rows.action_mask, target - values, 0.0), target


def whiten(x, weight, *, eps=1e-6, floor=0.0) -> jax.Array:
    """(x - mean) / max(std + eps, floor) over the entries of positive weight; others read 0.

    Args:
      x: f32[...].
      weight: bool[...] mask, or f32[...] non-negative weights (the variance divides by their sum minus one: the
        unbiased estimate for a mask).
      floor: smallest divisor, in units of x: keeps a batch that carries no signal from being blown up to unit variance.

    Returns:
      f32[...]; exactly 0 everywhere when all entries are equal up to float rounding.
    """
    return whiten_with_unit(x, weight, eps=eps, floor=floor)[0]


def whiten_with_unit(x, weight, *, eps=1e-6, floor=0.0) -> tuple[jax.Array, jax.Array]:
    """`whiten`, and the divisor f32[] it used."""
    x, weight = jnp.asarray(x, jnp.float32), jnp.asarray(weight, jnp.float32)
    chex.assert_equal_shape([x, weight])
    valid = weight > 0
    x = jnp.where(valid, x, 0.0)
    total = jnp.sum(weight)
    mean = jnp.sum(weight * x) / jnp.maximum(total, 1e-12)
    std = jnp.sqrt(jnp.sum(weight * (x - mean) ** 2) / jnp.maximum(total - 1.0, 1.0))
    unit = jnp.maximum(std + eps, floor)
    low = jnp.min(jnp.where(valid, x, jnp.inf), initial=jnp.inf)
    high = jnp.max(jnp.where(valid, x, -jnp.inf), initial=-jnp.inf)
    return jnp.where(valid & segments.differ(low, high), (x - mean) / unit, 0.0), unit


def reinforce_pp_advantage(rewards, mask, *, gamma=1.0, eps=1e-6, floor=0.0) -> jax.Array:
    """REINFORCE++: the return to go of each turn, whitened over the whole batch instead of inside groups.

    Every episode has weight one in mean and standard deviation (its turns share it), so long episodes do not dominate.

    Source: arXiv 2501.03262 (there over tokens, with the KL penalty inside the reward).

    Args:
      rewards: f32[B, T]; mask: bool[B, T]; gamma: discount per turn; eps, floor: see `whiten`.

    Returns:
      f32[B, T]; 0 at masked turns, and everywhere in a batch of one episode or of equal returns.
    """
    rewards, mask = jnp.asarray(rewards, jnp.float32), jnp.asarray(mask, bool)
    return whiten(discounted_returns(rewards, mask, gamma=gamma), episode_weight(mask), eps=eps, floor=floor)


def episode_weight(mask) -> jax.Array:
    """f32[B, T]: 1 / (turns of the episode) at turns that happened, so that every episode weighs one."""
    return mask / jnp.maximum(jnp.sum(mask, axis=1, keepdims=True), 1)


def mixed_groups(returns, group) -> jax.Array:
    """bool[B]: True for episodes whose group has returns that differ, the only groups with a gradient.

    DAPO's dynamic sampling (arXiv 2503.14476, section 3.2) keeps these and samples new tasks for the others.
    """
    returns, group = jnp.asarray(returns, jnp.float32), jnp.asarray(group, jnp.int32)
    chex.assert_rank([returns, group], 1)
    chex.assert_equal_shape([returns, group])
    return segments.statistics(returns, segments.segment_ids(group != segments.PADDING, group)).varied

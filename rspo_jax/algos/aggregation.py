"""From turns to tokens and back, and the weight of every token in the loss.

The weights depend on counts over the whole batch and are computed before it is split, so that the sum of the gradients
of any micro-batches is the gradient of the batch.
"""

import chex
import jax
import jax.numpy as jnp

from rspo_jax.trajectory import TokenRows

MODES = ("token_mean", "turn_mean", "sequence_mean", "constant")


def token_weights(rows: TokenRows, off_policy, *, alpha, mode="token_mean", turns=None, length=None) -> jax.Array:
    """Weight f32[N, L] of each action token: on-policy tokens share 1 - alpha, off-policy tokens share alpha.

    The loss of a batch is sum(weights * per-token loss). Inside the on- and the off-policy part:

        token_mean     every token weighs the same (DAPO)
        turn_mean      every response weighs the same, its tokens share (verl-agent's sequence mean)
        sequence_mean  every episode weighs the same, its tokens share (GRPO)
        constant       a token weighs 1 / (episodes * length): sums over episodes, divided by a constant (Dr.GRPO)

    A part without tokens gives its share to the other one. With `constant` the weights do not sum to one.

    Args:
      rows: token rows of the whole batch; action_mask, episode and turn are read.
      off_policy: bool[B] episodes that another policy sampled.
      alpha: share of the off-policy part, f32[] in [0, 1].
      mode: one of MODES.
      turns: T, larger than every turn index; needed by turn_mean.
      length: the constant of Dr.GRPO in tokens, e.g. turns * response limit; needed by constant.

    Returns:
      f32[N, L], 0 where action_mask is False. For M optimizer steps on parts of one batch, multiply by M.
    """
    off_policy, mask = jnp.asarray(off_policy, bool), jnp.asarray(rows.action_mask, bool)
    chex.assert_rank([off_policy, mask, rows.episode], [1, 2, 1])
    chex.assert_equal_shape([mask, rows.turn])
    if mode == "turn_mean" and turns is None or mode == "constant" and length is None:
        raise ValueError(f'Aggregation "{mode}" needs {"turns" if mode == "turn_mean" else "length"}: pass an integer.')
    episodes = off_policy.shape[0]
    off_N = off_policy[rows.episode]
    share_of = _shares(mask, off_N, alpha)

    if mode == "token_mean":
        weight = jnp.ones(mask.shape)
    elif mode == "turn_mean":
        weight = 1.0 / jnp.maximum(turns_to_tokens(_counts(rows, episodes, turns), rows), 1.0)
    elif mode == "sequence_mean":
        weight = 1.0 / jnp.maximum(_counts(rows, episodes, 1)[rows.episode], 1.0)
    elif mode == "constant":
        present = _counts(rows, episodes, 1)[:, 0] > 0
        total = jnp.where(off_N, jnp.sum(present & off_policy), jnp.sum(present & ~off_policy)) * length
        return jnp.where(mask, (share_of / jnp.maximum(total, 1))[:, None], 0.0)
    else:
        raise ValueError(f"Aggregation must be one of {', '.join(MODES)}, got {mode!r}.")
    weight = jnp.where(mask, weight, 0.0)
    per_row = jnp.sum(weight, axis=1)
    total = jnp.where(off_N, jnp.sum(per_row * off_N), jnp.sum(per_row * ~off_N))
    return weight * (share_of / jnp.maximum(total, 1e-12))[:, None]


def _shares(mask, off_N, alpha) -> jax.Array:
    """f32[N]: 1 - alpha or alpha; 1 where the other part of the batch is empty."""
    tokens = jnp.any(mask, axis=1)
    alpha = jnp.where(jnp.any(tokens & off_N), alpha, 0.0)
    alpha = jnp.where(jnp.any(tokens & ~off_N), alpha, 1.0)
    return jnp.where(off_N, alpha, 1.0 - alpha)


def _counts(rows: TokenRows, episodes: int, turns: int) -> jax.Array:
    """f32[B, turns]: action tokens of each turn (turns = 1: of each episode)."""
    return tokens_to_turns(jnp.ones(rows.action_mask.shape), rows, (episodes, turns))


def weighted_sum(per_token, weights) -> jax.Array:
    """f32[]: sum(weights * per_token); entries of weight 0 may hold anything, NaN included."""
    chex.assert_equal_shape([per_token, weights])
    return jnp.sum(jnp.where(weights != 0, per_token, 0.0) * weights)


def turns_to_tokens(values, rows: TokenRows) -> jax.Array:
    """values f32[B, T] read at each action token's episode and turn: f32[N, L], 0 where action_mask is False."""
    chex.assert_rank(values, 2)
    values = jnp.asarray(values)
    turn = jnp.clip(rows.turn, 0, values.shape[1] - 1)
    return jnp.where(rows.action_mask, values[jnp.asarray(rows.episode)[:, None], turn], 0.0)


def tokens_to_turns(values, rows: TokenRows, shape: tuple[int, int]) -> jax.Array:
    """Sum of values f32[N, L] over the action tokens of each turn: f32[B, T] for shape = (B, T).

    With T = 1 the sum runs over the episode. Used for a KL penalty inside the reward: reward - beta * this.
    """
    chex.assert_equal_shape([values, rows.action_mask])
    episodes, turns = shape
    cell = jnp.asarray(rows.episode)[:, None] * turns + jnp.clip(rows.turn, 0, turns - 1)
    cell = jnp.where(rows.action_mask, cell, episodes * turns)
    total = jax.ops.segment_sum(jnp.where(rows.action_mask, values, 0.0).ravel(), cell.ravel(), episodes * turns + 1)
    return total[:-1].reshape(shape)

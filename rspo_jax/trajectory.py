"""The trajectory pytree: what a rollout returns and what every estimator and loss reads.

Shape letters, used everywhere in the project:

    B  episodes            N  token rows          D  model width
    T  turns               L  tokens in a row     H  attention heads
    G  episodes per task   K  allowed tokens      V  vocabulary

Turn-level arrays `[B, T]` carry rewards, masks and anchor states: advantage estimators see nothing else. Token-level
arrays `[N, L]` carry the exact ids that the sampler produced. In `append` context one row holds a whole episode
(N = B); in `window` context one row holds one turn (N >= B). `episode` and `turn` connect the two levels.
"""

import chex
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array | np.ndarray

# How a sampled token was constrained (`TokenRows.constraint`).
UNCONSTRAINED, FREE_TEXT, LISTED = 0, 1, 2


@flax.struct.dataclass
class TokenRows:
    """Token-level half of a trajectory.

    tokens:      i32[N, L]     ids, left-aligned, exactly as sampled (never re-encoded).
    mask:        bool[N, L]    False on padding.
    action_mask: bool[N, L]    True on tokens the policy sampled: the only ones in a loss. Forced tokens, prompts and
                               observations are False.
    turn:        i32[N, L]     turn that a sampled token belongs to; the last begun turn elsewhere.
    episode:     i32[N]        episode of the row; -1 marks a padding row (its masks are all False).
    logp:        f32[N, L]     behaviour log-prob of tokens[n, l] (0 where action_mask is False).
    constraint:  i8[N, L]      UNCONSTRAINED, FREE_TEXT (the tokenizer's fixed set) or LISTED (see `allowed`).
    allowed:     i32[N, L, K]  ids the sampler chose from where constraint is LISTED; -1 pads. K = 0 without constraint.
    """

    tokens: Array
    mask: Array
    action_mask: Array
    turn: Array
    episode: Array
    logp: Array
    constraint: Array
    allowed: Array


@flax.struct.dataclass
class Trajectory:
    """B episodes of at most T turns.

    reward:         f32[B, T]  what estimators see; `algos.swap_reward` sets it from the two below.
    outcome_reward: f32[B, T]  true task reward, on the turn that earned it.
    dense_reward:   f32[B, T]  process reward of each turn.
    penalty:        f32[B, T]  >= 0, subtracted from the advantage side after statistics (invalid responses).
    mask:           bool[B, T] True where the turn happened.
    state:          i32[B, T]  anchor-state id of the observation the turn acted on; compared within a group only.
    group:          i32[B]     equal for episodes of the same task in the same batch.
    success:        bool[B]    the environment's own verdict.
    rows:           TokenRows or None (estimators do not need it).
    """

    reward: Array
    outcome_reward: Array
    dense_reward: Array
    mask: Array
    state: Array
    group: Array
    success: Array
    penalty: Array
    rows: TokenRows | None = None


def episode_return(trajectory: Trajectory) -> jax.Array:
    """Undiscounted return f32[B] of the current `reward`; masked turns count nothing."""
    return jnp.sum(jnp.where(trajectory.mask, trajectory.reward, 0.0), axis=1)


def check(trajectory: Trajectory) -> None:
    """Raises AssertionError where the shapes of a trajectory do not belong together."""
    t = trajectory
    chex.assert_rank([t.reward, t.group, t.success], [2, 1, 1])
    chex.assert_equal_shape([t.reward, t.outcome_reward, t.dense_reward, t.mask, t.state, t.penalty])
    chex.assert_equal_shape_prefix([t.reward, t.group, t.success], 1)
    if t.rows is not None:
        r = t.rows
        chex.assert_rank([r.tokens, r.allowed], [2, 3])
        chex.assert_equal_shape([r.tokens, r.mask, r.action_mask, r.turn, r.logp, r.constraint])
        chex.assert_equal_shape_prefix([r.tokens, r.allowed], 2)
        chex.assert_equal_shape_prefix([r.tokens, r.episode], 1)

"""The registry of base algorithms: name -> advantage(trajectory, options, values) -> f32[B, T].

To add an algorithm, write one estimator and one line of `ADVANTAGES`.

The penalty for invalid responses enters here, after all statistics, at the turn that earned it and nowhere else:

    A[b, t] = estimator(unpenalised rewards)[b, t] - penalty[b, t] / unit[b]

`unit` converts the penalty from reward units to the estimator's: 1 for estimators in reward units (norm "none", RLOO,
Dr.GRPO), max(std, `penalty_floor`) for those divided by a standard deviation (of the group, or of the batch). The floor
keeps the penalties of an all-fail group, whose std is 0, at penalty / penalty_floor. With the default floor, half the
outcome reward of 10, a penalty of 0.1 costs at most 0.02; it can never become an advantage of order one.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rspo_jax.algos import advantages, segments
from rspo_jax.trajectory import Trajectory, check, episode_return


class Options(NamedTuple):
    """Numbers that estimators read; hashable, so it can be a static argument of jit.

    norm: "std" or "none" (GRPO, GiGPO).
    eps: added to every standard deviation.
    gamma: discount per turn (GiGPO's step level, REINFORCE++, GAE).
    lam: GAE lambda per turn (PPO).
    omega: weight of GiGPO's step level.
    penalty_floor: smallest std, in reward units, that a penalty is divided by: half the reward of a success.
    whiten_floor: smallest std, in reward units, that a batch of GAE advantages is divided by. One success in 128
      episodes has a std of 0.9 at an outcome of 10; what lies below the default is the critic's noise.
    """

    norm: str = "std"
    eps: float = 1e-6
    gamma: float = 0.95
    lam: float = 1.0
    omega: float = 1.0
    penalty_floor: float = 5.0
    whiten_floor: float = 0.5


def grpo(trajectory: Trajectory, options: Options, values=None) -> jax.Array:
    """`grpo_advantage` on episode returns, broadcast to the turns."""
    returns, group = _episodes(trajectory)
    advantage_B = advantages.grpo_advantage(returns, group, norm=options.norm, eps=options.eps)
    return _finish(trajectory, advantage_B[:, None], _group_unit(returns, group, options))


def dr_grpo(trajectory: Trajectory, options: Options, values=None) -> jax.Array:
    """`dr_grpo_advantage` on episode returns, broadcast to the turns."""
    return _finish(trajectory, advantages.dr_grpo_advantage(*_episodes(trajectory))[:, None], 1.0)


def rloo(trajectory: Trajectory, options: Options, values=None) -> jax.Array:
    """`rloo_advantage` on episode returns, broadcast to the turns."""
    return _finish(trajectory, advantages.rloo_advantage(*_episodes(trajectory))[:, None], 1.0)


def gigpo(trajectory: Trajectory, options: Options, values=None) -> jax.Array:
    """`gigpo_advantage`."""
    returns, group = _episodes(trajectory)
    advantage_BT = advantages.gigpo_advantage(
        trajectory.reward,
        trajectory.mask,
        group,
        trajectory.state,
        gamma=options.gamma,
        omega=options.omega,
        norm=options.norm,
        eps=options.eps,
    )
    return _finish(trajectory, advantage_BT, _group_unit(returns, group, options))


def reinforce_pp(trajectory: Trajectory, options: Options, values=None) -> jax.Array:
    """`reinforce_pp_advantage` over the batch."""
    mask = _turns(trajectory)
    to_go = advantages.discounted_returns(trajectory.reward, mask, gamma=options.gamma)
    advantage_BT, unit = advantages.whiten_with_unit(to_go, advantages.episode_weight(mask), eps=options.eps)
    return _finish(trajectory, advantage_BT, jnp.maximum(unit, options.penalty_floor))


def ppo(trajectory: Trajectory, options: Options, values=None) -> jax.Array:
    """Turn-level GAE on the critic's `values` f32[B, T], whitened over the turns of the batch.

    A batch whose episode returns are all equal teaches the policy nothing: what GAE leaves there is the critic's own
    error, which whitening would blow up, so its advantage is 0 (the critic still learns from it). For the same reason
    the whitening divides by no less than `whiten_floor`.
    """
    if values is None:
        raise ValueError('The advantage "ppo" needs values f32[B, T]: pass the predictions of the critic.')
    mask = _turns(trajectory)
    advantage_BT, _ = advantages.gae(trajectory.reward, values, mask, gamma=options.gamma, lam=options.lam)
    whitened, unit = advantages.whiten_with_unit(advantage_BT, mask, eps=options.eps, floor=options.whiten_floor)
    advantage_BT = jnp.where(returns_vary(trajectory), whitened, 0.0)
    return _finish(trajectory, advantage_BT, jnp.maximum(unit, options.penalty_floor))


ADVANTAGES: dict[str, Callable[[Trajectory, Options, jax.Array | None], jax.Array]] = {
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "gigpo": gigpo,
    "reinforce_pp": reinforce_pp,
    "ppo": ppo,
}


def returns_vary(trajectory: Trajectory) -> jax.Array:
    """bool[]: the batch holds two episodes (of any tasks) whose returns differ by more than rounding."""
    returns, group = _episodes(trajectory)
    everyone = jnp.where(group == segments.PADDING, segments.PADDING, 0)
    return advantages.mixed_groups(returns, everyone).any()


def _turns(trajectory: Trajectory) -> jax.Array:
    """bool[B, T]: turns that happened, in episodes that are not padding."""
    return jnp.asarray(trajectory.mask) & (jnp.asarray(trajectory.group) != segments.PADDING)[:, None]


def _episodes(trajectory: Trajectory) -> tuple[jax.Array, jax.Array]:
    """(returns f32[B], group i32[B]), with the group of episodes without any turn set to padding."""
    check(trajectory)
    group = jnp.where(_turns(trajectory).any(axis=1), trajectory.group, segments.PADDING)
    return episode_return(trajectory), group


def _group_unit(returns, group, options: Options) -> jax.Array:
    """f32[B, 1]: what one unit of reward is divided by in a group-relative advantage."""
    if options.norm == "none":
        return jnp.ones((returns.shape[0], 1))
    stats = segments.statistics(returns, segments.segment_ids(group != segments.PADDING, group))
    return jnp.maximum(stats.std, options.penalty_floor)[:, None]


def _finish(trajectory: Trajectory, advantage, unit) -> jax.Array:
    """Subtracts the penalty and zeroes what is not a turn."""
    penalised = advantage - jnp.asarray(trajectory.penalty, jnp.float32) / unit
    return jnp.where(_turns(trajectory), penalised, 0.0)

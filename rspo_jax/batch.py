"""From trajectories to the batch of one update: advantages, token weights, pi_old and the reference."""

from dataclasses import dataclass

import jax
import numpy as np

from rspo_jax import algos, critic
from rspo_jax.critic import ValueBatch, explained_variance, first_of_turn
from rspo_jax.learner import pad_rows
from rspo_jax.packing import ActionBatch, concatenate, gather_actions, pad_actions, pad_episodes
from rspo_jax.trajectory import Trajectory
from rspo_jax.update import LossBatch

_token_weights = jax.jit(algos.token_weights, static_argnames=("mode", "turns", "length"))


@dataclass(frozen=True)
class Part:
    """Trajectories of one origin in a batch. advantage: f32[B, T] where it was taken before a selection (the buffer),
    or None to take it here from `trajectory.reward`."""

    trajectory: Trajectory
    off_policy: bool
    advantage: np.ndarray | None = None


def build_batch(run, name: str, parts: list[Part], alpha: float) -> tuple[LossBatch, ValueBatch | None, dict]:
    """(LossBatch, ValueBatch of the critic or None, metrics) for an update of agent `name`.

    alpha is the loss share of the off-policy parts; where every part is off-policy (a guide that learns from recycled
    episodes) they carry the whole loss.
    """
    config = run.config
    joined, off_B, given_BT = join(parts, run.shapes[name])
    actions = pad_actions(gather_actions(joined.rows), run.shapes[name])
    off_N = (actions.episode >= 0) & off_B[actions.episode]

    logp_old = old_logprobs(run, name, actions, off_N)
    logp_ref = run.learner.logprobs(run.reference, actions, run.shapes[name]) if run.uses_reference else logp_old
    if config.loss.kl_in == "reward":
        joined = penalise_kl(joined, actions, logp_old - logp_ref, run.progress.kl_coef, off_B)
    advantage, values = advantages(run, name, joined, actions, off_B)
    advantage = advantage + np.asarray(algos.turns_to_tokens(given_BT, actions))

    turns = advantage[first_of_turn(actions)]
    metrics = {
        "advantage_mean": float(turns.mean()) if turns.size else 0.0,
        "advantage_std": float(turns.std()) if turns.size else 0.0,
    }
    if values is not None:
        read = values.weight > 0
        metrics["explained_variance"] = explained_variance(values.values_old, values.returns, read)
        metrics["value_mean"] = float(values.values_old[read].mean()) if read.any() else 0.0
    weight = _token_weights(
        actions,
        off_B,
        alpha=alpha,
        mode=config.loss.aggregation,
        turns=config.env.max_turns,
        length=config.env.max_turns * config.decoding.max_response,
    )
    batch = LossBatch(
        actions=actions,
        advantage=advantage,
        weight=np.asarray(weight),
        logp_old=logp_old,
        logp_behaviour=np.where(off_N[:, None], actions.logp, logp_old),
        logp_ref=logp_ref,
        off_policy=off_N,
    )
    return batch, values, metrics


def join(parts: list[Part], shapes) -> tuple[Trajectory, np.ndarray, np.ndarray]:
    """(trajectory, off_policy bool[B], given advantage f32[B, T]) of all parts, padded to the run's sizes.

    Episodes whose advantage is given are in no group (-1): no statistic of the others sees them.
    """
    trajectory = concatenate([p.trajectory for p in parts])
    T = trajectory.reward.shape[1]
    sizes = [len(p.trajectory.success) for p in parts]
    off_B = np.repeat([p.off_policy for p in parts], sizes)
    known = np.repeat([p.advantage is not None for p in parts], sizes)
    given = np.zeros((len(known), T), np.float32)
    if known.any():
        given[known] = np.concatenate([p.advantage for p in parts if p.advantage is not None])
    trajectory = trajectory.replace(group=np.where(known, -1, trajectory.group).astype(np.int32))
    B = shapes.fit("B", len(known))
    extra = B - len(known)
    return pad_episodes(trajectory, B), np.pad(off_B, (0, extra)), np.pad(given, ((0, extra), (0, 0)))


def old_logprobs(run, name: str, actions: ActionBatch, off_N) -> np.ndarray:
    """pi_old f32[N, M]: the agent at the start of the step. On-policy that is the sampler itself (unless config says to
    compute it again); stored tokens are always evaluated anew."""
    params = getattr(run, name).params
    if run.config.loss.old_logp == "trainer":
        return run.learner.logprobs(params, actions, run.shapes[name])
    rows = np.flatnonzero(off_N)
    if not len(rows):
        return actions.logp
    stored = jax.tree.map(lambda x: x[rows], actions)
    computed = run.learner.logprobs(
        params, pad_rows(stored, run.shapes[name].fit("N_off", len(rows))), run.shapes[f"{name}_old"]
    )
    old = actions.logp.copy()
    old[rows] = computed[: len(rows)]
    return old


def penalise_kl(joined: Trajectory, actions: ActionBatch, k1, kl_coef: float, off_B) -> Trajectory:
    """The KL penalty in the reward: each turn loses kl_coef * sum of log pi_old / pi_ref over its tokens and over those
    of all later turns, which it led to.

    It enters where the penalty for invalid responses does, after the group statistics: inside them, the tiny spread of
    the KL in a group that fails as a whole would be divided by itself. On-policy episodes only.
    """
    to_go = np.asarray(_kl_to_go(k1, actions, joined.mask))
    return joined.replace(penalty=joined.penalty + kl_coef * np.where(off_B[:, None], 0.0, to_go))


@jax.jit
def _kl_to_go(k1, actions, mask):
    turns = algos.tokens_to_turns(k1, actions, mask.shape)
    return algos.discounted_returns(turns, mask, gamma=1.0)


def advantages(run, name: str, joined: Trajectory, actions: ActionBatch, off_B):
    """(advantage f32[N, M], ValueBatch or None). Critics learn from on-policy rows, or from all if there are none."""
    if run.critic is None:
        return np.asarray(algos.turns_to_tokens(run.advantage(joined, None), actions)), None
    values = run.critic.values(run.critics[name], getattr(run, name).params, actions, run.shapes[name])
    if run.config.algo.gae_level == "token":
        estimate = critic.token_estimate(joined, values, actions, run.options)
    else:
        estimate = critic.turn_estimate(joined, values, actions, run.advantage, run.options)
    on_policy = estimate.read & ~off_B[actions.episode][:, None]
    read = on_policy if on_policy.any() else estimate.read
    weight = (read / max(int(read.sum()), 1)).astype(np.float32)
    return estimate.advantage, ValueBatch(actions, estimate.returns, values, weight)


__all__ = ["Part", "build_batch", "join", "penalise_kl"]

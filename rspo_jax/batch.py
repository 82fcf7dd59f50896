"""From trajectories to the batch of one update: advantages, token weights, pi_old and the reference."""

from dataclasses import dataclass

import numpy as np

from rspo_jax import algos
from rspo_jax.packing import ActionBatch, concatenate, gather_actions, pad_actions
from rspo_jax.trajectory import Trajectory
from rspo_jax.update import LossBatch


@dataclass(frozen=True)
class Part:
    """Trajectories of one origin in a batch. advantage: f32[B, T], or None to compute it here (on-policy parts)."""

    trajectory: Trajectory
    off_policy: bool
    advantage: np.ndarray | None = None


def build_batch(run, name: str, parts: list[Part], alpha: float) -> tuple[LossBatch, dict]:
    """(LossBatch, metrics) for an update of agent `name`; alpha is the loss share of the off-policy parts.

    Where every part is off-policy (a guide that learns from recycled episodes) they carry the whole loss.
    """
    config, agent = run.config, getattr(run, name)
    joined = concatenate([p.trajectory for p in parts])
    off_B = np.concatenate([np.full(len(p.trajectory.success), p.off_policy) for p in parts])
    actions = gather_actions(joined.rows)
    actions = pad_actions(actions, run.shapes)
    off_N = np.where(actions.episode >= 0, off_B[actions.episode], False)

    recompute = config.loss.old_logp == "trainer" or off_N.any()
    logp_old = actions.logp
    if recompute:
        computed = run.learner.logprobs(agent.params, actions)
        logp_old = computed if config.loss.old_logp == "trainer" else np.where(off_N[:, None], computed, actions.logp)
    logp_behaviour = np.where(off_N[:, None], actions.logp, logp_old)
    uses_reference = config.loss.kl_coef > 0 or config.loss.kl_target > 0
    logp_ref = run.learner.logprobs(run.reference, actions) if uses_reference else np.zeros_like(actions.logp)

    advantage_BT = np.zeros(joined.reward.shape, np.float32)
    first = 0
    values = run.critic_values(name, joined, actions)
    for part in parts:
        B, T = part.trajectory.reward.shape
        rows = slice(first, first + B)
        part_values = None if values is None else values[rows, :T]
        advantage = run.advantage(part.trajectory, part_values) if part.advantage is None else part.advantage
        advantage_BT[rows, :T] = advantage
        first += B
    advantage_NM = np.asarray(algos.turns_to_tokens(advantage_BT, actions))
    T = advantage_BT.shape[1]
    weight = algos.token_weights(
        actions,
        off_B,
        alpha=alpha,
        mode=config.loss.aggregation,
        turns=T,
        length=config.env.max_turns * config.decoding.max_response,
    )
    turns = np.asarray(joined.mask)
    metrics = {
        "advantage_mean": float(advantage_BT[turns].mean()) if turns.any() else 0.0,
        "advantage_std": float(advantage_BT[turns].std()) if turns.any() else 0.0,
    }
    batch = LossBatch(
        actions=actions,
        advantage=advantage_NM,
        weight=np.asarray(weight),
        logp_old=np.asarray(logp_old, np.float32),
        logp_behaviour=np.asarray(logp_behaviour, np.float32),
        logp_ref=np.asarray(logp_ref, np.float32),
        off_policy=off_N,
    )
    return batch, metrics


__all__ = ["ActionBatch", "Part", "build_batch"]

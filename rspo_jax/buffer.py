"""The buffer D: stored trajectories with outcome rewards, and which of them each coming target update draws."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from rspo_jax import algos
from rspo_jax.learner import pad_rows
from rspo_jax.packing import (
    concatenate,
    from_arrays,
    gather_actions,
    pad_actions,
    pad_episodes,
    take_episodes,
    to_arrays,
)
from rspo_jax.trajectory import Trajectory

KL_ROWS = 64  # token rows on which KL(B || A) is estimated


@dataclass(frozen=True)
class Buffer:
    """trajectory: the episodes that will be drawn, rewards swapped; advantage: f32[M, T], taken among all episodes of
    their groups before any selection; draws: i32[k, slots], their indices for each update, -1 where none is left."""

    trajectory: Trajectory
    advantage: np.ndarray
    draws: np.ndarray

    def take(self, update: int, slots: int) -> tuple[Trajectory, np.ndarray] | None:
        """(trajectories, their advantages) for one of the k updates, at most `slots`; None where there are none."""
        drawn = self.draws[update, :slots]
        drawn = drawn[drawn >= 0]
        return (take_episodes(self.trajectory, drawn), self.advantage[drawn]) if len(drawn) else None

    def to_arrays(self) -> dict:
        return {"trajectory": to_arrays(self.trajectory), "advantage": self.advantage, "draws": self.draws}

    @classmethod
    def from_arrays(cls, stored: dict) -> "Buffer":
        return cls(from_arrays(stored["trajectory"]), stored["advantage"], stored["draws"])


def fill(run, stored: list[Trajectory], key, slots: int) -> tuple[Buffer | None, dict]:
    """(D from stored trajectories, diagnostics). Their rewards are swapped for the outcome rewards, advantages are
    taken inside each group of N, and only then is anything selected; what no update will draw is dropped."""
    if not stored:
        return None, {"buffer_episodes": 0, "buffer_successes": 0}
    config = run.config
    joined = concatenate(stored)
    episodes = len(joined.success)
    padded = pad_episodes(joined, run.shapes["stored"].fit("B", episodes))
    swapped = run.on_host(algos.swap_reward(padded, "outcome"))
    actions = pad_actions(gather_actions(joined.rows), run.shapes["stored"])
    advantage = run.advantage(swapped, run.critic_values("target", swapped, actions))
    summary = algos.Stored(
        outcome=np.sum(swapped.reward * swapped.mask, axis=1),
        success=swapped.success,
        advantage=advantage.sum(axis=1) / np.maximum(swapped.mask.sum(axis=1), 1),
        group=swapped.group,
    )
    draw = dict(steps=config.rspo.k, per_step=slots)
    if config.rspo.source == "self_imitation":
        draws, gain = _self_imitation(key, summary, **draw)
        advantage = np.where(swapped.mask, np.asarray(gain)[:, None] / gain_unit(run, summary), 0.0)
    else:
        draws = _select(key, summary, sampling=config.rspo.sampling, only_successes=config.rspo.successes_only, **draw)
    draws = np.asarray(draws)
    kept = np.unique(draws[draws >= 0])
    place = np.full(len(summary.success) + 1, -1, np.int32)  # the last one serves the index -1
    place[kept] = np.arange(len(kept))
    metrics = {"buffer_episodes": episodes, "buffer_successes": int(joined.success.sum())}
    if config.rspo.source == "guide":
        metrics["kl_guide"] = kl_from_target(run, actions)
    buffer = Buffer(take_episodes(swapped, kept), advantage[kept].astype(np.float32), place[draws])
    return buffer, metrics


_select = jax.jit(algos.select, static_argnames=("steps", "per_step", "sampling", "only_successes"))


def _self_imitation(key, summary: algos.Stored, *, steps: int, per_step: int):
    """`algos.select_self_imitation` against the groups of the stored episodes themselves."""
    baselines = algos.push_baselines(jnp.full(len(summary.group), jnp.nan), summary.outcome, summary.group)
    return algos.select_self_imitation(key, summary, baselines, steps=steps, per_step=per_step)


def gain_unit(run, summary: algos.Stored) -> float:
    """What a gain in reward units is divided by, to stand beside the advantages of the configured algorithm: 1 for
    those in reward units, else the std of the stored returns, with the floor that penalties have too."""
    algo = run.config.algo
    if algo.name in ("rloo", "dr_grpo") or (algo.name in ("grpo", "gigpo") and algo.norm == "none"):
        return 1.0
    return max(float(summary.outcome[summary.group >= 0].std(ddof=1)), run.options.penalty_floor)


def kl_from_target(run, actions) -> float:
    """KL(B || A) per token, estimated by mean(log pi_B - log pi_A) over tokens that the guide sampled."""
    some = jax.tree.map(lambda x: x[:KL_ROWS], actions)
    some = pad_rows(some, KL_ROWS)
    difference = some.logp - run.learner.logprobs(run.target.params, some, run.shapes["stored"])
    return float(difference[some.action_mask].mean()) if some.action_mask.any() else 0.0


__all__ = ["Buffer", "fill", "gain_unit", "kl_from_target"]

"""The reward swap: which of a trajectory's two reward signals the estimators see."""

import jax
import jax.numpy as jnp

from rspo_jax.trajectory import Trajectory

KINDS = ("outcome", "dense", "mixed")


def swap_reward(trajectory: Trajectory, kind: str, *, mix=1.0, dense_scale=1.0, noise_std=0.0, key=None) -> Trajectory:
    """A trajectory whose `reward` is the chosen signal; everything else, and the input, stay as they are.

        outcome:  outcome_reward, bit for bit
        dense:    dense_scale * (dense_reward + noise_std * n),  n standard normal per turn
        mixed:    outcome_reward + mix * dense

    Source: RSPO, arXiv 2607.04713. The target's objective sees `outcome` only, the guide's `dense`. `mixed` is the sum
    of both, `noise_std` the paper's robustness ablation.

    Args:
      trajectory: with outcome_reward and dense_reward f32[B, T].
      kind: one of KINDS.
      mix: weight of the dense signal in "mixed".
      dense_scale: outcome units per unit of dense reward.
      noise_std: standard deviation of the noise, in units of dense_reward.
      key: PRNG key of the noise; needed when noise_std is not 0.

    Returns:
      A new Trajectory with reward f32[B, T]; masked turns get no noise.
    """
    if kind not in KINDS:
        raise ValueError(f"Reward kind must be one of {', '.join(KINDS)}, got {kind!r}.")
    if kind == "outcome":
        # A copy: the two fields never share a buffer, which donation and in-place NumPy edits would both break.
        return trajectory.replace(reward=jnp.array(trajectory.outcome_reward))
    dense = _dense(trajectory, noise_std, key) * dense_scale
    return trajectory.replace(reward=dense if kind == "dense" else trajectory.outcome_reward + mix * dense)


def _dense(trajectory: Trajectory, noise_std, key) -> jax.Array:
    dense = jnp.asarray(trajectory.dense_reward, jnp.float32)
    if isinstance(noise_std, (int, float)) and noise_std == 0:
        return dense
    if key is None:
        raise ValueError("swap_reward with noise_std > 0 needs a PRNG key: pass key=jax.random.key(seed).")
    return dense + jnp.where(trajectory.mask, noise_std * jax.random.normal(key, dense.shape), 0.0)

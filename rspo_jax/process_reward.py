"""Dense process rewards: where the guide's reward signal comes from (`config.process_reward`)."""

from collections.abc import Callable, Sequence

import numpy as np

from rspo_jax.rollout import Episode
from rspo_jax.trajectory import Trajectory

Scorer = Callable[[Sequence[Episode], Trajectory], np.ndarray]
"""(episodes, trajectory) -> dense rewards f32[B, T]."""


def make_scorer(config, policy) -> Scorer:
    """The scorer of config.process_reward.source."""
    source, scale = config.process_reward.source, config.process_reward.scale
    if source == "model":
        raise ValueError("process_reward.source = 'model' needs a trained model")
    per_turn = {"env": env_progress, "click": page_changes}[source]
    return lambda episodes, trajectory: per_turn(episodes, trajectory.reward.shape, scale)


def env_progress(episodes: Sequence[Episode], shape: tuple[int, int], scale: float) -> np.ndarray:
    """scale * increase of the simulator's progress, a potential with a running maximum: at most `scale` an episode."""
    out = np.zeros(shape, np.float32)
    for b, episode in enumerate(episodes):
        out[b, : len(episode.turns)] = [scale * turn.progress for turn in episode.turns]
    return out


def page_changes(episodes: Sequence[Episode], shape: tuple[int, int], scale: float) -> np.ndarray:
    """A deliberately hackable reward: scale / 10 for every action that changes what is seen, useful or not."""
    out = np.zeros(shape, np.float32)
    for b, episode in enumerate(episodes):
        out[b, : len(episode.turns)] = [0.1 * scale * turn.changed for turn in episode.turns]
    return out

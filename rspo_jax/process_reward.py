"""Dense process rewards: where the guide's reward signal comes from (`config.process_reward`)."""

import abc
from collections.abc import Callable, Sequence

import jax
import numpy as np

from rspo_jax import reward_fit, reward_model, sharding
from rspo_jax.configuration import require
from rspo_jax.learner import init_state
from rspo_jax.packing import bucket
from rspo_jax.reward_model import RewardModel
from rspo_jax.rollout import Episode
from rspo_jax.trajectory import Trajectory


class Scorer(abc.ABC):
    """(episodes, trajectory) -> dense rewards f32[B, T], 0 where no turn happened.

    `state` is what training has changed in the scorer, as a dict of NumPy arrays for a checkpoint; it can be set.
    """

    state: dict[str, np.ndarray] = {}

    @abc.abstractmethod
    def __call__(self, episodes: Sequence[Episode], trajectory: Trajectory) -> np.ndarray: ...

    def again(self, trajectory: Trajectory) -> np.ndarray:
        """Dense rewards f32[B, T] of a trajectory scored before; another answer only where the scorer has learned."""
        return trajectory.dense_reward

    def refit(self, trajectory: Trajectory, outcomes: np.ndarray) -> dict[str, float]:
        """Learns from episodes with outcomes f32[B] in [0, 1]; returns metrics. Only learned rewards do anything."""
        del trajectory, outcomes
        return {}


class TurnScorer(Scorer):
    """Rewards that the environment's turns already carry."""

    def __init__(self, per_turn: Callable, scale: float):
        self._per_turn, self._scale = per_turn, scale

    def __call__(self, episodes, trajectory):
        return self._per_turn(episodes, trajectory.reward.shape, self._scale)


class ModelScorer(Scorer):
    """scale * tanh(MLP(h_t)) of a process reward model, in batches on the device; refitting changes its head only."""

    def __init__(self, model: RewardModel, config, mesh):
        self._model, self._mesh, self._seed = model, mesh, config.seed
        self._scale, self._passes = config.process_reward.scale, config.process_reward.refit
        self._settings = config.reward_model
        self._optimizer = reward_fit.reward_optimizer(config)
        self._fit = init_state(self._optimizer, reward_fit.own_copy(model.params["head"]), mesh)

    def __call__(self, episodes, trajectory):
        del episodes  # the model reads what the policy read and said, token for token
        params = self._model.params | {"head": self._fit.params}
        out = reward_model.episode_rewards(
            self._model, params, trajectory.rows, trajectory.reward.shape, size=self._settings.rows, mesh=self._mesh
        )
        return np.float32(self._scale) * out

    def again(self, trajectory):
        return self([], trajectory) if self._passes else trajectory.dense_reward

    def refit(self, trajectory, outcomes):
        """config.process_reward.refit passes over the episodes, with an optimizer that lives as long as the scorer."""
        if not self._passes:
            return {}
        B, T = trajectory.reward.shape
        features, present = reward_model.episode_features(
            self._model, trajectory.rows, (B, bucket(T, 8)), size=self._settings.rows, mesh=self._mesh
        )
        problem = reward_fit.head_problem(features, present, np.asarray(outcomes, np.float32), self._mesh)
        losses = []
        for _ in range(self._passes):
            order = np.random.default_rng([self._seed, int(self._fit.updates)]).permutation(B)
            self._fit, loss = reward_fit.one_pass(self._fit, problem, order, self._settings.batch, self._optimizer)
            losses.append(loss)
        return {"reward_model_loss": float(np.mean(losses))}

    @property
    def state(self) -> dict[str, np.ndarray]:
        return {name: np.asarray(leaf) for name, leaf in _named(self._fit).items()} if self._passes else {}

    @state.setter
    def state(self, arrays: dict[str, np.ndarray]) -> None:
        if not self._passes:
            return
        own = _named(self._fit)
        if {k: v.shape for k, v in own.items()} != {k: np.shape(v) for k, v in arrays.items()}:
            raise ValueError("the checkpoint's process reward head is another one than that of process_reward.path")
        leaves = [np.asarray(arrays[name], leaf.dtype) for name, leaf in own.items()]
        self._fit = sharding.shard_params(jax.tree.unflatten(jax.tree.structure(self._fit), leaves), self._mesh)


def make_scorer(config, policy) -> Scorer:
    """The scorer of config.process_reward.source; raises ValueError or FileNotFoundError where it cannot be had."""
    p = config.process_reward
    if p.source != "model":
        require(not p.refit, "process_reward.refit", p.refit, "only process_reward.source = 'model' can be refitted")
        return TurnScorer({"env": env_progress, "click": page_changes}[p.source], p.scale)
    require(bool(p.path), "process_reward.path", p.path, "give the directory that --mode=reward_model saved")
    context = config.context
    longest = context.max_tokens if context.mode == "append" else context.max_prompt
    model = reward_model.load_reward_model(p.path, mesh=policy.mesh, dtype=config.model.dtype, max_length=longest)
    reward_model.check_fits(model, p.path, policy=policy, context=context.mode, format=context.format, longest=longest)
    graded = model.info.get("outcome", "success") != "success"
    require(not (p.refit and graded), "process_reward.refit", p.refit, "the model was fitted to scores, not to success")
    return ModelScorer(model, config, policy.mesh)


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


def _named(tree) -> dict[str, jax.Array]:
    """Leaves by dotted path, in the order of the tree."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


__all__ = ["ModelScorer", "Scorer", "TurnScorer", "env_progress", "make_scorer", "page_changes"]

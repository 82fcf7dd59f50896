"""Any Gymnasium text environment of a user as a `TaskSuite`: tasks are seeds."""

import functools
from collections.abc import Mapping
from typing import Any

import gymnasium

from rspo_jax.envs.base import TaskSuite

_STRIDE = 1 << 20
"""Seeds of two suites whose `seed` differs never meet while a suite has fewer tasks than this."""


def gym_suite(env_id: str, num_train: int = 1000, num_valid: int = 200, seed: int = 0) -> TaskSuite:
    """Tasks of a registered environment, with disjoint training and validation seeds.

    Args:
      env_id: a Gymnasium id; `"package:Env-v0"` imports `package` first, which registers it. Observations and actions
        are strings. Info keys that the environment lacks get defaults (see `TextDefaults`).
      num_train, num_valid: how many seeds; validation seeds come first, so they stay when `num_train` changes.
      seed: moves both ranges of seeds.

    Raises:
      ValueError: the id is unknown, the environment is not on text, or the sizes are impossible.
    """
    if min(num_train, num_valid) < 1 or num_train + num_valid > _STRIDE:
        raise ValueError(
            f"num_train = {num_train} and num_valid = {num_valid} must be at least 1 and together at most {_STRIDE}."
        )
    _check_text(make_env(env_id), env_id)
    first = seed * _STRIDE
    seeds = range(first, first + num_valid + num_train)
    tasks = [{"seed": task_seed} for task_seed in seeds]
    return TaskSuite(
        make_env=functools.partial(make_env, env_id), splits={"train": tasks[num_valid:], "valid": tasks[:num_valid]}
    )


def make_env(env_id: str) -> gymnasium.Env:
    """Makes the environment with the info keys that the rollout reads.

    Raises:
      ValueError: the id is unknown, or its package cannot be imported.
    """
    try:
        return TextDefaults(gymnasium.make(env_id, disable_env_checker=True))
    except ModuleNotFoundError as error:
        raise ValueError(f"env.id = {env_id!r}: its package cannot be imported ({error}); install it first.") from None
    except gymnasium.error.Error as error:
        remedy = "write it as 'package:Env-v0', where importing the package registers the environment"
        raise ValueError(f"env.id = {env_id!r} is not a registered environment ({error}); {remedy}.") from None
    except Exception as error:  # a user's environment may raise anything
        raise ValueError(
            f"env.id = {env_id!r} cannot be made ({_spelled(error)}); repair id or environment."
        ) from error


def _spelled(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _check_text(env: gymnasium.Env, env_id: str) -> None:
    try:
        observation, _ = env.reset(seed=0)
    except Exception as error:  # a user's environment may raise anything
        raise ValueError(f"env.id = {env_id!r} cannot be reset ({_spelled(error)}); repair the environment.") from error
    env.close()
    if not isinstance(observation, str):
        kind = type(observation).__name__
        raise ValueError(f"env.id = {env_id!r} returns {kind} observations; only text environments (str) can be used.")


class TextDefaults(gymnasium.Wrapper):
    """Fills the info keys that an environment does not give.

    task: the first observation; won: reward > 0 when the episode terminates; score: the last reward; progress: 0.0;
    anchor: the observation; task_type: "". `admissible_actions` stays absent where the environment does not list any.
    """

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        self._task = info.get("task", observation)
        return observation, self._complete(observation, info, score=0.0, won=False)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        info = self._complete(observation, info, score=float(reward), won=bool(terminated and reward > 0))
        return observation, float(reward), bool(terminated), bool(truncated), info

    def _complete(self, observation: str, info: Mapping[str, Any], score: float, won: bool) -> dict[str, Any]:
        defaults = {
            "task": self._task,
            "won": won,
            "score": score,
            "progress": 0.0,
            "anchor": observation,
            "task_type": "",
        }
        return {**defaults, **info}

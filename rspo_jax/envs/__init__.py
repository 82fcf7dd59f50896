"""Text environments as `gymnasium.Env`, the pool that runs them and the prompts that show them. Imports no JAX."""

import gymnasium

from rspo_jax.envs import alfworld, prompts, webshop
from rspo_jax.envs.base import FREE_TEXT, TaskSuite
from rspo_jax.envs.gym_suite import gym_suite
from rspo_jax.envs.pool import EnvPool
from rspo_jax.envs.projection import project_action

__all__ = ["FREE_TEXT", "EnvPool", "TaskSuite", "alfworld", "gym_suite", "project_action", "prompts", "webshop"]

for _id, _entry_point in {
    "rspo_jax/WebShop-v0": "rspo_jax.envs.webshop.suite:make_env",
    "rspo_jax/ALFWorld-v0": "rspo_jax.envs.alfworld:ALFWorldEnv",
}.items():
    # Gymnasium's checker warns about observations that are not arrays.
    gymnasium.register(id=_id, entry_point=_entry_point, disable_env_checker=True, order_enforce=False)

"""WebShop: shopping by text, exactly as the public text environment behaves."""

from rspo_jax.envs.webshop.catalog import Catalogue
from rspo_jax.envs.webshop.demonstrator import demonstrator
from rspo_jax.envs.webshop.env import WebShopEnv, parse_action
from rspo_jax.envs.webshop.reward import reward
from rspo_jax.envs.webshop.suite import files_suite, generated_suite

__all__ = ["Catalogue", "WebShopEnv", "demonstrator", "files_suite", "generated_suite", "parse_action", "reward"]

"""WebShop: shopping by text, exactly as the public text environment behaves."""

from rspo_jax.envs.webshop.catalog import Catalogue
from rspo_jax.envs.webshop.env import WebShopEnv, parse_action
from rspo_jax.envs.webshop.reward import reward

__all__ = ["Catalogue", "WebShopEnv", "parse_action", "reward"]

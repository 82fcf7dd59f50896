"""RSPO on PPO, WebShop (rspo.enabled=False: plain PPO). Presets: tiny, sparse, smoke, paper-1.5b, paper-7b."""

from configs import presets


def get_config(preset: str | None = None):
    return presets.make("webshop", "ppo", preset)

"""RSPO on PPO, ALFWorld. Presets: tiny (default), smoke, paper-1.5b, paper-7b; rspo.enabled=False is plain PPO."""

from configs import presets


def get_config(preset: str | None = None):
    return presets.make("alfworld", "ppo", preset)

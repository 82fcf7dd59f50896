"""RSPO on GiGPO, ALFWorld. Presets: tiny (default), smoke, paper-1.5b, paper-7b; rspo.enabled=False is plain GiGPO."""

from configs import presets


def get_config(preset: str | None = None):
    return presets.make("alfworld", "gigpo", preset)

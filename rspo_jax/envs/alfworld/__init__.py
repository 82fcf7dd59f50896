"""ALFWorld: household tasks in text, played by an own simulator that behaves like the official text engine."""

from rspo_jax.envs.alfworld.demonstrator import demonstrator
from rspo_jax.envs.alfworld.env import ALFWorldEnv, load_game
from rspo_jax.envs.alfworld.game import Game, Goal, Object, Receptacle
from rspo_jax.envs.alfworld.official import OfficialALFWorldEnv, OfficialGame, official_games
from rspo_jax.envs.alfworld.suite import generated_suite, official_suite

__all__ = [
    "ALFWorldEnv",
    "Game",
    "Goal",
    "Object",
    "OfficialALFWorldEnv",
    "OfficialGame",
    "Receptacle",
    "demonstrator",
    "generated_suite",
    "load_game",
    "official_games",
    "official_suite",
]

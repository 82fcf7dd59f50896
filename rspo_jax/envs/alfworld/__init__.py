"""ALFWorld: household tasks in text, played by an own simulator that behaves like the official text engine."""

from rspo_jax.envs.alfworld.env import ALFWorldEnv as ALFWorldEnv
from rspo_jax.envs.alfworld.env import load_game as load_game
from rspo_jax.envs.alfworld.game import Game as Game
from rspo_jax.envs.alfworld.game import Goal as Goal
from rspo_jax.envs.alfworld.game import Object as Object
from rspo_jax.envs.alfworld.game import Receptacle as Receptacle

"""ALFWorld as a Gymnasium environment: text in, text out."""

from __future__ import annotations

import gzip
import os
import string
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium

from rspo_jax.envs.alfworld.engine import Engine
from rspo_jax.envs.alfworld.game import Game, number_names

WIN_REWARD = 10.0

Source = str | os.PathLike | Game
"""Where a game comes from: a path to a `game.tw-pddl` (also `.gz`), its text, or a `Game`."""


def load_game(source: Source) -> Game:
    """The game of a source. FileNotFoundError or ValueError, in one sentence, if there is none."""
    if isinstance(source, Game):
        return source
    text = read_text(source)
    try:
        return Game.from_text(text)
    except ValueError as error:
        if text is source:
            raise
        raise ValueError(f"{os.fspath(source)}: {error}") from None


def read_text(source: str | os.PathLike) -> str:
    """The text of a `game.tw-pddl`, given itself or as a path."""
    if isinstance(source, str) and source.lstrip().startswith("{"):
        return source
    path = Path(source)
    try:
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rt", encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError, zlib.error, EOFError) as error:  # the last two: a damaged .gz
        message = f"game={str(source)[:200]!r} cannot be read ({error}); give a path to a game.tw-pddl or its text"
        raise (FileNotFoundError if isinstance(error, FileNotFoundError) else ValueError)(message) from None


def text_space() -> gymnasium.spaces.Text:
    """Any printable text; the spaces of a text environment are only declarative."""
    return gymnasium.spaces.Text(max_length=1 << 16, charset=string.printable)


class ALFWorldEnv(gymnasium.Env):
    """Household tasks in text.

    The observation is what the game says, to the byte what the official engine says. The reward is 10.0 when the step
    leaves the goal fulfilled, else 0.0. `info` has, after reset and step:

      task: what to do, e.g. "put a clean apple in fridge."; task_type: "pick", "look", "clean", "heat", "cool", "pick2"
        (or "movable").
      admissible_commands, admissible_actions: the possible commands, sorted; the same list under both names.
      won: the goal holds now; score: 1.0 if so, else 0.0.
      progress: completed subgoals / all, a running maximum (goals.py says which).
      anchor: the observation, the state that GiGPO groups by.

    Without `max_steps` the environment goes on after a win, as the bare engine does: `terminated` tells whether the
    present state is won. With `max_steps` an episode is over when the game is won or that many steps were made
    (impossible commands count); further steps return the last result unchanged, as in the batched official environment.
    """

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(
        self,
        game: Source | Sequence[Source] | None = None,
        max_steps: int | None = None,
        domain_randomization: bool = False,
    ):
        """game: one source or a sequence of them; None: each reset names its own.

        max_steps: turns after which an episode is truncated; None: never.
        domain_randomization: shuffle the numbers in the names ("apple 2") at each reset, from the environment's seed.
        """
        if max_steps is not None and max_steps < 1:
            raise ValueError(f"max_steps={max_steps} must be at least 1, or None for no limit")
        self.observation_space = self.action_space = text_space()
        single = game is None or isinstance(game, Source)
        self._games = [game] if single and game is not None else list(game or ())
        self._max_steps = max_steps
        self._randomize = domain_randomization
        self._source: Source | None = None
        self._engine: Engine | None = None
        self._game: Game | None = None
        self._last: tuple | None = None

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[str, dict]:
        """Starts `options["game"]`: a source, or an index into the games the environment was built with.

        Without it, the only game it was built with, or one drawn at random.
        """
        super().reset(seed=seed)
        options = options or {}
        if unknown := options.keys() - {"game"}:
            raise ValueError(f"reset options {sorted(unknown)} are unknown; the only option is 'game'")
        self._load(self._choose(options.get("game")))
        self._steps, self._last = 0, None
        observation = self._engine.reset()
        return observation, self._info(observation)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict]:
        if self._engine is None:
            raise RuntimeError("step was called before reset; call reset first")
        if not isinstance(action, str):
            raise ValueError(f"an action is a string such as 'go to desk 1', not {type(action).__name__}")
        if self._last is not None:
            return self._last
        observation = self._engine.step(action)
        self._steps += 1
        info = self._info(observation)
        terminated = info["won"]
        truncated = not terminated and self._steps == self._max_steps
        result = observation, WIN_REWARD if terminated else 0.0, terminated, truncated, info
        if self._max_steps is not None and (terminated or truncated):
            self._last = result
        return result

    @property
    def engine(self) -> Engine:
        """The simulator with its full, partly hidden, state."""
        return self._engine

    def _choose(self, game: Source | int | None) -> Source:
        if game is None:
            if not self._games:
                raise ValueError('no game to play: give ALFWorldEnv(game=...) or reset(options={"game": ...}) one')
            return self._games[0 if len(self._games) == 1 else int(self.np_random.integers(len(self._games)))]
        if isinstance(game, Source):
            return game
        if not 0 <= game < len(self._games):
            raise ValueError(
                f'options["game"]={game} is not an index into the {len(self._games)} games of this environment'
            )
        return self._games[game]

    def _load(self, source: Source) -> None:
        """Makes an engine for the source, unless the present one plays it already."""
        if self._engine is not None and (source is self._source or source == self._source) and not self._randomize:
            return
        self._game = load_game(source)
        names = None
        if self._randomize:
            names = number_names(self.np_random.permutation(sorted(self._game.ids())).tolist())
        self._engine, self._source = Engine(self._game, names), source

    def _info(self, observation: str) -> dict[str, Any]:
        engine = self._engine
        commands, won = engine.commands(), engine.won
        return {
            "task": self._game.task,
            "task_type": self._game.goal.kind,
            "admissible_commands": commands,
            "admissible_actions": commands,
            "won": won,
            "score": float(won),
            "progress": engine.progress,
            "anchor": observation,
        }

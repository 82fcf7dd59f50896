"""Sets of household tasks: generated games without limit, or the official games of a data folder."""

import functools
import itertools
import os
from collections.abc import Sequence
from typing import Any

from absl import logging

from rspo_jax.envs.alfworld import game, generator, official, rooms
from rspo_jax.envs.alfworld.env import ALFWorldEnv
from rspo_jax.envs.base import TaskSuite

MAX_STEPS = 50
"""Turn limit of every published configuration."""

_VERBS = "go to;take;from;move;to;open;close;examine;use;clean;heat;cool;slice;with;look;inventory;help"
_TASKS = (
    "your task is to:;put a;put some;put two;find two;and put them in;and put it in;clean some;heat some;cool some;"
    "put a clean;put a hot;put a cool;look at;under the;examine the;with the;in;on"
)
_ROOM = "you are in the middle of a room. looking quickly around you, you see a"
_FEEDBACK = (
    f"{_ROOM};, a;, and a;.;you arrive at;. on the;. the;on the;the;, you see a;, you see nothing.;is closed.;"
    "is open. in it, you see a;is open. in it, you see nothing.;you open the;you close the;you pick up the;from the;"
    "you move the;to the;you clean the;you heat the;you cool the;using the;you turn on the;you are facing the;, and;"
    ". next to it, you see a;. next to it, you see nothing.;you are carrying: a;you are not carrying anything.;"
    "nothing happens.;there's nothing special about;this is a normal;. in it, you see a;. in it, you see nothing.;"
    "this is a clean;this is a hot;this is a cold;this is a hot and clean;this is a cool and clean;you sliced the"
)


class GeneratedEnv(ALFWorldEnv):
    """`ALFWorldEnv` whose `reset` also takes `options={"generated": (split, index)}`: a game of the generator."""

    def __init__(self, seed: int = 0, size: str = "tiny", max_steps: int | None = MAX_STEPS):
        super().__init__(max_steps=max_steps)
        self._generator = seed, size

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[str, dict]:
        if options and "generated" in options:
            options = {"game": _generated(*self._generator, *options["generated"])}
        return super().reset(seed=seed, options=options)


class GeneratedTasks(Sequence):
    """Games of a split by their indices, as tasks that name a game and generate it when it is played."""

    def __init__(self, split: str, indices: Sequence[int]):
        self._split, self._indices = split, indices

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"options": {"generated": (self._split, self._indices[index])}}


def generated_suite(
    seed: int = 0,
    *,
    size: str = "tiny",
    num_train: int = 3553,
    num_valid: int = 200,
    max_steps: int = MAX_STEPS,
    task_types: Sequence[str] = (),
) -> TaskSuite:
    """Generated games: splits `train`, `valid_seen` (other games in rooms of train), `valid_unseen` (other rooms).

    Args:
      seed: gives other rooms and other games.
      size: "tiny" (6-9 receptacles, 6-12 objects) or "official" (6-54 and 19-75, as in the official set).
      num_train, num_valid: games in `train`, and in each of the other two; a longer split begins with the same games.
      max_steps: turns of an episode.
      task_types: kinds of task to keep (of `game.TASK_KINDS`), the others are left out; () keeps all.

    Raises:
      ValueError: the size or a kind of task is unknown, or a number is not positive.
    """
    _check_task_types(task_types)
    if size not in generator.SIZES:
        raise ValueError(f"size is {size!r}; use one of {', '.join(map(repr, generator.SIZES))}.")
    for key, value in (("num_train", num_train), ("num_valid", num_valid), ("max_steps", max_steps)):
        if value < 1:
            raise ValueError(f"{key} is {value}; use a number of at least 1.")
    counts = {"train": num_train, "valid_seen": num_valid, "valid_unseen": num_valid}
    return TaskSuite(
        make_env=functools.partial(GeneratedEnv, seed, size, max_steps),
        splits={
            split: GeneratedTasks(split, _indices(seed, size, split, count, tuple(task_types)))
            for split, count in counts.items()
        },
        phrases=phrases(size),
    )


def _check_task_types(task_types: Sequence[str]) -> None:
    unknown = sorted(set(task_types) - set(game.TASK_KINDS))
    if unknown:
        raise ValueError(f"task_types holds {', '.join(unknown)}; choose from {', '.join(game.TASK_KINDS)}.")


def _indices(seed: int, size: str, split: str, count: int, task_types: tuple[str, ...]) -> Sequence[int]:
    """Indices of the first `count` games of the given kinds."""
    if not task_types:
        return range(count)
    right = (i for i in itertools.count() if _generated(seed, size, split, i).goal.kind in task_types)
    return list(itertools.islice(right, count))


def official_suite(
    path: str | os.PathLike | None, *, max_steps: int = MAX_STEPS, task_types: Sequence[str] = ()
) -> TaskSuite:
    """The official games of a data folder (None: `$ALFWORLD_DATA`), each split sorted by path.

    task_types: kinds of task to keep, () keeps all.

    FileNotFoundError if the folder or a split is not there or holds no playable game.
    """
    _check_task_types(task_types)
    if max_steps < MAX_STEPS:
        logging.warning(
            "Episodes on official ALFWorld data end after %d turns; every published setting allows %d (env.max_turns, "
            "which the presets set so where ALFWORLD_DATA names the data).",
            max_steps,
            MAX_STEPS,
        )
    return TaskSuite(
        make_env=functools.partial(ALFWorldEnv, max_steps=max_steps),
        splits={
            split: [
                {"options": {"game": found.path}}
                for found in official.official_games(path, split)
                if not task_types or found.kind in task_types
            ]
            for split in generator.SPLITS
        },
        phrases=phrases("official"),
    )


def phrases(size: str) -> tuple[str, ...]:
    """Verbs, pieces of feedback, and every name that occurs in rooms of that size, lower-case, each once."""
    names: dict[str, int] = {}
    for room in rooms.ROOMS:
        most = 2 * generator.SIZES.index(size) + 1
        counts = {name: limits[most] for name, limits in room.receptacles.items()}
        # A target may occur twice and once more as a distractor.
        counts |= dict.fromkeys(room.movables(size), max(3, generator.COPIES[size]))
        counts |= {fixture.name: getattr(fixture, size)[1] for fixture in room.fixtures if fixture.homes}
        names |= {name: max(count, names.get(name, 0)) for name, count in counts.items() if count}
    entities = [f"{name.lower()} {number + 1}" for name, count in names.items() for number in range(count)]
    texts = [
        *_VERBS.split(";"),
        *_TASKS.split(";"),
        *_FEEDBACK.split(";"),
        *(name.lower() for name in names),
        *entities,
    ]
    return tuple(dict.fromkeys([*texts, *_help_blocks()]))


def _help_blocks(lines_per_block: int = 5) -> list[str]:
    """The help text in a few long pieces: asking for it must not cost an agent its whole context."""
    lines = [line for line in game.HELP.lower().split("\n") if line.strip()]
    return ["\n".join(lines[i : i + lines_per_block]).strip() for i in range(0, len(lines), lines_per_block)]


@functools.lru_cache(maxsize=64)  # episodes of one group play the same game
def _generated(seed: int, size: str, split: str, index: int) -> game.Game:
    return generator.generate_game(seed, split, index, size=size).game

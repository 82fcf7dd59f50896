"""Speed and memory of the ALFWorld simulator, against the official engine where that is installed.

    python benchmarks/alfworld.py [GAME ...] [--steps=N]

GAME is a game.tw-pddl (.gz will do). Without one, generated games of the official size are played. The agent picks
admissible commands at random, half of the time among those that change something. Times are CPU seconds.
"""

import argparse
import importlib.util
import pathlib
import random
import sys
import time
import tracemalloc

# Without this folder, where `import alfworld` would find this file instead of the official package.
sys.path.pop(0)
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from rspo_jax.envs.alfworld import ALFWorldEnv, Game, OfficialALFWorldEnv, load_game
from rspo_jax.envs.alfworld.engine import Engine
from rspo_jax.envs.alfworld.env import read_text
from rspo_jax.envs.alfworld.generator import generate_game

_IDLE = ("go to", "look", "help", "inventory", "examine")
WALK = 50


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("games", nargs="*", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=100_000)
    arguments = parser.parse_args()
    games = [load_game(path) for path in arguments.games]
    games = games or [generate_game(0, "train", index, size="official").game for index in range(48)]
    if arguments.games:
        texts = [read_text(path) for path in arguments.games]
        _show(
            "parse a game.tw-pddl", _milliseconds(lambda: [Game.from_text(text) for text in texts]) / len(texts), "ms"
        )
    env = ALFWorldEnv(games)
    reset = _milliseconds(lambda: [env.reset(options={"game": index}) for index in range(len(games))])
    _show("reset to another game", reset / len(games), "ms")
    _show("memory of a game being played", _kibibytes(arguments.games, games), "KiB")
    ours = _steps_per_second(env, len(games), arguments.steps)
    _show("steps with the admissible list", ours, "/s")
    if all(importlib.util.find_spec(name) for name in ("alfworld", "textworld", "fast_downward")):
        theirs = _steps_per_second(OfficialALFWorldEnv(arguments.games or games), len(games), 4 * WALK)
        _show("the official engine", theirs, "/s")
        _show("ours / official", ours / theirs, "")
    else:
        print("the official engine is not installed: pip install 'rspo-jax[alfworld-official]'")


def _show(name: str, value: float, unit: str) -> None:
    print(f"{name:34} {value:12,.2f} {unit}")


def _milliseconds(call) -> float:
    start = time.process_time()
    call()
    return (time.process_time() - start) * 1e3


def _kibibytes(paths: list, games: list) -> float:
    """Of the game itself, its tables and all caches after visiting every receptacle."""
    source = random.Random(0).choice(paths) if paths else None
    tracemalloc.start()
    engine = Engine(load_game(source) if source else generate_game(0, "train", 10**6, size="official").game)
    for command in engine.commands():
        engine.step(command)
        engine.commands()
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return size / 1024


def _steps_per_second(env: ALFWorldEnv, games: int, steps: int) -> float:
    """Walks of WALK steps through the games in turn; resets and the choice of commands are not counted."""
    rng, seconds = random.Random(0), 0.0
    for walk in range(max(1, steps // WALK)):
        _, info = env.reset(options={"game": walk % games})
        for _ in range(WALK):
            commands = info["admissible_commands"]
            active = [command for command in commands if not command.startswith(_IDLE)]
            command = rng.choice(active) if active and rng.random() < 0.5 else rng.choice(commands)
            start = time.process_time()
            *_, info = env.step(command)
            seconds += time.process_time() - start
    return max(1, steps // WALK) * WALK / seconds


if __name__ == "__main__":
    main()

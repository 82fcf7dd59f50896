"""The official data set and, where it is installed, the official engine.

The data set is the folder that `alfworld-download` fills (`$ALFWORLD_DATA`). The engine comes with the optional extra
`alfworld-official` (packages alfworld and textworld[pddl]); it is hundreds of times slower than ours and serves for
cross-checks.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import sys
from pathlib import Path
from typing import NamedTuple

from absl import logging

from rspo_jax.envs.alfworld.env import ALFWorldEnv, Source, load_game, read_text
from rspo_jax.envs.alfworld.game import OFFICIAL_KINDS, TASK_KINDS, Game

COUNTS = {
    "train": dict(zip(TASK_KINDS, (790, 308, 650, 459, 533, 813), strict=True)),
    "valid_seen": dict(zip(TASK_KINDS, (35, 13, 27, 16, 25, 24), strict=True)),
    "valid_unseen": dict(zip(TASK_KINDS, (24, 18, 31, 23, 21, 17), strict=True)),
    "valid_train": dict(zip(TASK_KINDS, (46, 19, 37, 25, 28, 45), strict=True)),
}
"""Split -> kind of task -> number of playable games in the official data set."""

_VERSION = "json_2.1.1"
_TAIL_BYTES = 16_384  # `solvable` follows the long texts of a game.tw-pddl, so its end usually tells


class OfficialGame(NamedTuple):
    """path of the `game.tw-pddl`; kind of task, one of TASK_KINDS."""

    path: str
    kind: str


def official_games(folder: str | os.PathLike | None, split: str) -> list[OfficialGame]:
    """The playable games of a split, sorted by path.

    Playable by the rules of the official loader: a trial's folder holds `traj_data.json` with one of the six task types
    and a `game.tw-pddl` marked solvable, and its path says neither `movable` nor `Sliced`.

    The result is kept in the user's cache folder (`$XDG_CACHE_HOME`, default `~/.cache`) and computed anew when the
    split's folder or one of its task or trial folders changes.

    Args:
      folder: the data set (holding `json_2.1.1`), or `json_2.1.1` itself; None means `$ALFWORLD_DATA`.
      split: a key of COUNTS.

    Raises FileNotFoundError if the folder, the split or its games are not there, ValueError for an unknown split.
    """
    root = split_folder(folder, split)
    key = [str(root), _state(root)]
    cache = _cache_folder() / (hashlib.sha256(key[0].encode()).hexdigest()[:16] + ".json")
    games = _read_cache(cache, key)
    if games is None:
        games = _find_games(root)
        _write_cache(cache, key, games)
    if not games:
        raise FileNotFoundError(
            f"{root} holds no playable game: each needs a traj_data.json and a game.tw-pddl marked solvable; "
            "alfworld-download fetches them"
        )
    if len(games) != sum(COUNTS[split].values()):
        logging.warning("%s holds %d playable games, officially %d.", root, len(games), sum(COUNTS[split].values()))
    return [OfficialGame(str(root / path), kind) for path, kind in games]


def split_folder(folder: str | os.PathLike | None, split: str) -> Path:
    """The folder of a split; errors as in `official_games`."""
    if split not in COUNTS:
        raise ValueError(f"split={split!r} is unknown: choose one of {', '.join(COUNTS)}")
    if folder is None:
        folder = os.environ.get("ALFWORLD_DATA")
        if not folder:
            raise FileNotFoundError("the official ALFWorld data is not given: set ALFWORLD_DATA or name its folder")
    base = Path(folder).expanduser().resolve()
    if not base.is_dir():
        raise FileNotFoundError(f"the ALFWorld data folder {base} does not exist; alfworld-download makes it")
    for root in (base / _VERSION / split, base / split):
        if root.is_dir():
            return root
    raise FileNotFoundError(f"{base} is not the official ALFWorld data: it has neither {_VERSION}/{split} nor {split}")


def _state(root: Path) -> str:
    """Tells whether something was added or removed: the times of the split's, the task and the trial folders.

    The official data come in several archives, so that games arrive in trial folders that exist already.
    """
    times, folders = [], [str(root)]
    for _ in range(3):
        times += [(folder, os.stat(folder).st_mtime_ns) for folder in folders]
        folders = sorted(entry.path for folder in folders for entry in os.scandir(folder) if entry.is_dir())
    return hashlib.sha256(repr(times).encode()).hexdigest()


def _find_games(root: Path) -> list[tuple[str, str]]:
    """(path below root, kind) of the playable games."""
    games = []
    for folder, _, files in os.walk(root):
        name = os.path.relpath(folder, root)
        if "traj_data.json" not in files or "game.tw-pddl" not in files or "movable" in name or "Sliced" in name:
            continue
        kind = OFFICIAL_KINDS.get(_task_type(Path(folder, "traj_data.json")))
        if kind in TASK_KINDS and _solvable(Path(folder, "game.tw-pddl")):
            games.append((Path(name, "game.tw-pddl").as_posix(), kind))
    return sorted(games)


def _task_type(path: Path) -> str:
    match = re.search(rb'"task_type"\s*:\s*"(\w+)"', path.read_bytes())
    if not match:
        raise ValueError(f'{path} has no key "task_type"; the file seems damaged, fetch the data set again')
    return match[1].decode()


def _solvable(path: Path) -> bool:
    pattern = re.compile(rb'"solvable"\s*:\s*(\w+)')
    with open(path, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
        match = pattern.search(file.read()) or pattern.search(path.read_bytes())
    return bool(match) and match[1] == b"true"


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rspo_jax" / "alfworld"


def _read_cache(path: Path, key: list) -> list | None:
    try:
        data = json.loads(path.read_text())
        return data["games"] if data["key"] == key else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write_cache(path: Path, key: list, games: list) -> None:
    """Replaces the cache file in one go; where it cannot be written, the next start is slower and that is all."""
    temporary = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps({"key": key, "games": games}))
        temporary.replace(path)
    except OSError as error:
        logging.warning("The index of the ALFWorld games cannot be kept in %s (%s).", path, error)


@contextlib.contextmanager
def _arguments_kept():
    """The PDDL translator of the official engine overwrites the command line of the process."""
    arguments = sys.argv
    try:
        yield
    finally:
        sys.argv = arguments


class OfficialEngine:
    """The official engine behind the interface of our `Engine`; `progress` knows nothing but won."""

    def __init__(self, text: str):
        """text: of a `game.tw-pddl`. ImportError, in one sentence, if the packages are missing."""
        try:
            from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
            from textworld import EnvInfos
            from textworld.envs import PddlEnv

            self._env = AlfredDemangler(PddlEnv(EnvInfos(won=True, admissible_commands=True)))
        except ImportError as error:
            raise ImportError(
                f"the official ALFWorld engine is not installed ({error}): pip install 'rspo-jax[alfworld-official]'"
            ) from None
        with _arguments_kept():
            self._env.load(json.loads(text))

    def reset(self) -> str:
        self.progress = 0.0
        with _arguments_kept():
            return self._observe(self._env.reset())

    def step(self, command: str) -> str:
        return self._observe(self._env.step(command)[0])

    def commands(self) -> list[str]:
        return list(self._state.admissible_commands)

    @property
    def won(self) -> bool:
        return bool(self._state.won)

    def _observe(self, state) -> str:
        self._state = state
        self.progress = max(self.progress, float(self.won))
        return state.feedback


class OfficialALFWorldEnv(ALFWorldEnv):
    """`ALFWorldEnv` played by the official engine. A `Game` is exported first; `progress` is 0.0, and 1.0 once won."""

    def __init__(self, game=None, max_steps: int | None = None):
        super().__init__(game, max_steps)

    def _load(self, source: Source) -> None:
        if self._engine is not None and source == self._source:
            return
        if isinstance(source, Game):
            from rspo_jax.envs.alfworld.export import game_text  # needs the logic files of the alfworld package

            text = game_text(source)
        else:
            text = read_text(source)
        self._game = load_game(text)
        self._engine, self._source = OfficialEngine(text), source

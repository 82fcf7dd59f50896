"""Episodes gathered beforehand (`--mode=collect`), as a directory: what a process reward model is fitted on."""

import dataclasses
import json
import os
import pathlib

import jax
import numpy as np

from rspo_jax import build, rollout
from rspo_jax.configuration import fingerprint
from rspo_jax.tasks import TaskStream
from rspo_jax.trajectory import TokenRows

_ARRAYS, _INFO = "episodes.npz", "episodes.json"
_LEVEL = ("outcome", "success", "turns", "task")
_KEY, _STREAM = 0xC011, 2  # collection draws from its own key and its own stream of tasks


@dataclasses.dataclass(frozen=True)
class Collected:
    """B episodes and where they come from.

    rows: their token rows, exactly as the agent sampled them; outcome: f32[B] in [0, 1], what a process reward must sum
    to; success: bool[B]; turns: i32[B]; task: i32[B], equal for episodes of the same task; info: JSON values.
    """

    rows: TokenRows
    outcome: np.ndarray
    success: np.ndarray
    turns: np.ndarray
    task: np.ndarray
    info: dict


def play(config) -> Collected:
    """Plays config.collect.episodes episodes with the configured agent."""
    c = config.collect
    suite = build.make_suite(config)
    if c.split not in suite.splits:
        raise ValueError(f"collect.split = {c.split!r}: this environment has {', '.join(suite.splits)}")
    policy, params = whole_policy(config)
    settings = dataclasses.replace(
        build.rollout_settings(config), temperature=c.temperature or 1.0, greedy=c.temperature == 0
    )
    tasks = TaskStream(suite.splits[c.split], config.seed, stream=_STREAM).take(0, c.episodes)
    key = jax.random.fold_in(jax.random.key(config.seed), _KEY)
    with build.make_pool(config, suite, settings.rows) as pool:
        episodes = rollout.play(policy, params, pool, tasks, key, 1, settings)
    info = {
        "model": str(build.model_path(config)),
        "vocab_size": policy.config.vocab_size,
        "vocabulary": fingerprint(policy.tokenizer.get_vocab()),
        "context": config.context.mode,
        "format": config.context.format,
        "split": c.split,
        "temperature": c.temperature,
        "outcome": c.outcome,
    }
    return from_episodes(episodes, info)


def from_episodes(episodes, info: dict) -> Collected:
    """Finished episodes as arrays; info["outcome"] says what R is: "success" (0 or 1) or the task's "score".

    Episodes that their environment broke are left out: their outcome says nothing about what was done.
    """
    episodes = [e for e in episodes if not e.error]
    if not episodes:
        raise ValueError("every episode was broken by its environment; there is nothing to collect")
    outcome = [e.won if info["outcome"] == "success" else np.clip(e.score, 0, 1) for e in episodes]
    tasks: dict[str, int] = {}
    return Collected(
        rows=rollout.assemble(episodes, None).rows,
        outcome=np.asarray(outcome, np.float32),
        success=np.asarray([e.won for e in episodes], bool),
        turns=np.asarray([len(e.turns) for e in episodes], np.int32),
        task=np.asarray([tasks.setdefault(_name(e.task), len(tasks)) for e in episodes], np.int32),
        info=info,
    )


def save(directory: str | os.PathLike, collected: Collected) -> None:
    """Writes the episodes; the JSON file comes last, so that a directory that has one is whole."""
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / _INFO).unlink(missing_ok=True)
    rows = {f"rows.{f.name}": np.asarray(getattr(collected.rows, f.name)) for f in dataclasses.fields(TokenRows)}
    np.savez_compressed(directory / _ARRAYS, **rows, **{name: getattr(collected, name) for name in _LEVEL})
    counts = {
        "episodes": len(collected.outcome),
        "rows": len(collected.rows.episode),
        "successes": int(collected.success.sum()),
    }
    temporary = directory / (_INFO + ".tmp")
    temporary.write_text(json.dumps(collected.info | counts, indent=2, sort_keys=True) + "\n")
    os.replace(temporary, directory / _INFO)


def load(directory: str | os.PathLike) -> Collected:
    """Reads what `save` wrote; raises FileNotFoundError or ValueError, in one sentence, where it cannot."""
    directory = pathlib.Path(directory)
    if not (directory / _INFO).is_file():
        raise FileNotFoundError(f"{directory} holds no collected episodes; run --mode=collect with this work directory")
    try:
        info = json.loads((directory / _INFO).read_text())
        with np.load(directory / _ARRAYS) as arrays:
            rows = TokenRows(**{f.name: arrays[f"rows.{f.name}"] for f in dataclasses.fields(TokenRows)})
            level = {name: arrays[name] for name in _LEVEL}
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"the collected episodes in {directory} are damaged ({error}); collect them again") from None
    return Collected(rows=rows, **level, info=info)


def whole_policy(config):
    """(Policy, parameters) of the configured agent without adapters."""
    config = config.copy_and_resolve_references()
    with config.unlocked():
        config.model.lora.rank = 0
    return build.make_policy(config, build.make_mesh(config))


def _name(task: dict) -> str:
    return json.dumps(task, sort_keys=True, default=str)


__all__ = ["Collected", "from_episodes", "load", "play", "save", "whole_policy"]

"""Evaluation on fixed panels: the same tasks, the same sampling keys, every time."""

from collections.abc import Mapping, Sequence

import jax
import numpy as np

from rspo_jax.rollout import Episode, RolloutSettings, play
from rspo_jax.tasks import panel

_KEY = 0xE7A1  # evaluation draws from its own key, whatever the training seed or step


def evaluate(
    policy, params, pool, suite, splits: Sequence[str], episodes: int, settings: RolloutSettings, *, repeats: int = 1
):
    """({metric: value}, {split: episodes}) for each panel; metric names as in metrics.METRICS.

    episodes: tasks in a panel, at most all of the split; each is played `repeats` times.
    """
    metrics: dict[str, float] = {}
    played: dict[str, list[Episode]] = {}
    for split in splits:
        tasks = panel(suite.splits[split], episodes)
        key = jax.random.key(_KEY)
        played[split] = play(policy, params, pool, tasks, key, repeats, settings, keep_rows=False)
        if not any(episode.turns or episode.error for episode in played[split]):
            raise ValueError(
                f"context.max_tokens = {settings.max_tokens}: not one episode's first prompt fits into a row with "
                f"decoding.max_response = {settings.max_response}; give more"
            )
        metrics |= panel_metrics(split, played[split])
    return metrics, played


def panel_metrics(split: str, episodes: Sequence[Episode]) -> Mapping[str, float]:
    """Success, return, score and turns of a panel, and success by task type where there are types."""
    name = f"eval/{split}"
    out = {
        f"{name}/success": float(np.mean([e.won for e in episodes])),
        f"{name}/episodes": len(episodes),
        f"{name}/return": float(np.mean([e.reward for e in episodes])),
        f"{name}/score": float(np.mean([e.score for e in episodes])),
        f"{name}/turns": float(np.mean([len(e.turns) for e in episodes])),
    }
    for kind in sorted({e.task_type for e in episodes} - {""}):
        of_kind = [e for e in episodes if e.task_type == kind]
        out[f"{name}/success/{kind}"] = float(np.mean([e.won for e in of_kind]))
        out[f"{name}/episodes/{kind}"] = len(of_kind)
    return out


def check_splits(suite, splits: Sequence[str]) -> None:
    """Raises ValueError where a panel's split does not exist or is empty."""
    keys = "eval.splits or eval.final_splits"
    for split in splits:
        if split not in suite.splits:
            raise ValueError(f"{keys} names {split!r}; this environment has {', '.join(suite.splits)}")
        if not len(suite.splits[split]):
            raise ValueError(f"{keys} names {split!r}, which has no tasks; check config.env")


__all__ = ["check_splits", "evaluate", "panel_metrics"]

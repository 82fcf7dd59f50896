"""The loop itself: the order of its phases, and that it teaches an agent something."""

import numpy as np
import tiny

from rspo_jax import phases, train
from rspo_jax.experiment import Progress


def sequence(count: int, **changes) -> list[str]:
    """The phases that come, from the rules alone."""
    config = tiny.config(**changes)
    progress = Progress(phase=phases.first_phase(config), kl_coef=0.0)
    out = []
    for _ in range(count):
        out.append(progress.phase)
        following = {"guide": "collect", "collect": "target", "target": phases.first_phase(config)}[progress.phase]
        train.advance(progress, following, after=1 if progress.phase == "collect" else config.rspo.k)
    return out


def test_a_loop_is_k_updates_of_the_guide_one_collection_and_k_updates_of_the_target():
    assert sequence(8, rspo__k=3) == ["guide"] * 3 + ["collect"] + ["target"] * 3 + ["guide"]


def test_without_a_guide_only_its_phases_are_missing():
    assert sequence(4, rspo__enabled=False) == ["target"] * 4
    assert sequence(4, rspo__source="history") == ["collect", "target", "target", "collect"]


def test_an_agent_learns(tmp_path):
    """From what it does at first, by outcome rewards alone and with a guide's help."""
    for enabled in (False, True):
        config = tiny.config(
            rspo__enabled=enabled,
            batch__tasks=8,
            batch__group_size=4,
            rspo__alpha=0.25,
            train__steps=14,
            eval__episodes=12,
        )
        path = tmp_path / str(enabled)
        final = train.train(config, path)
        rows = [row for row in tiny.rows_of(path) if row["phase"] == "target"]
        early, late = (np.mean([row["success"] for row in part]) for part in (rows[:3], rows[-3:]))
        assert late > early + 0.3
        assert final["eval/valid/success"] > 0.6

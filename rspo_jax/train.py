"""Training: the loop of RSPO (arXiv 2607.04713), in the order of the paper.

    A = base model;  D = empty
    repeat
      B <- copy(A)
      k times: roll out B, score with the DENSE reward, update B            phase "guide"
      roll out B once, swap to the OUTCOME reward, put into D               phase "collect"
      k times: roll out A on OUTCOME reward; draw from D; update A on both  phase "target"
      D <- empty

With config.rspo.enabled = False only the target phase remains, which is the base algorithm.
"""

import pathlib

from absl import logging

from rspo_jax import phases, report
from rspo_jax.experiment import Experiment
from rspo_jax.metrics import read_rows
from rspo_jax.rollout import transcript


def train(config, workdir: str | pathlib.Path) -> dict:
    """Trains (or resumes) the run of a work directory; returns its last evaluation, or {} where it was interrupted."""
    with Experiment(config, workdir) as run:
        while not run.stop_requested:
            if run.evaluation_due():
                run.evaluate()
                run.checkpoint()
            if run.progress.step >= config.train.steps:
                break
            tick(run)
            if run.checkpoint_due():
                run.checkpoint()
        else:
            logging.warning("stopped at step %d; run the same command again to resume", run.progress.step)
            return {}
        agent = run.save_agent()
    report.build_report(workdir)
    logging.info("agent saved in %s", agent)
    return [row for row in read_rows(workdir) if row["phase"] == "eval"][-1]


def tick(run) -> None:
    """One rollout and at most one update: the part of the loop that comes next."""
    progress, rspo = run.progress, run.config.rspo
    if progress.phase == "guide":
        if progress.inner == 0:
            run.reset_guide()
        run.writer.phase(f"guide {progress.inner + 1}/{rspo.k}")
        run.log("guide", phases.update_guide(run))
        advance(progress, "collect", after=rspo.k)
    elif progress.phase == "collect":
        run.writer.phase("collect")
        run.log("collect", phases.collect(run))
        advance(progress, "target", after=1)
    else:
        run.writer.phase(f"target {progress.inner + 1}/{rspo.k}")
        metrics = phases.update_target(run)
        progress.step += 1
        run.log("target", metrics)
        advance(progress, phases.first_phase(run.config), after=rspo.k)
        if progress.inner == 0:
            run.end_loop()
    progress.tick += 1


def advance(progress, following: str, after: int) -> None:
    """Moves to the next tick; to the phase `following` after so many ticks of this one."""
    progress.inner += 1
    if progress.inner >= after:
        progress.phase, progress.inner = following, 0


__all__ = ["tick", "train", "transcript"]

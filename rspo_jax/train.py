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
from rspo_jax.experiment import Experiment, transcript


def train(config, workdir: str | pathlib.Path) -> dict:
    """Trains (or resumes) the run of a work directory; returns the final evaluation."""
    with Experiment(config, workdir) as run:
        run.evaluate(final=True)
        while run.progress.step < config.train.steps and not run.stop_requested:
            tick(run)
            end_tick(run)
        if run.stop_requested:
            logging.warning("stopped at step %d; run the same command again to resume", run.progress.step)
            return {}
        result = run.evaluate(final=True)
        agent = run.save_agent()
    report.build_report(workdir)
    logging.info("agent saved in %s", agent)
    return result


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
        advance(progress, first_phase(run.config), after=rspo.k)
        if progress.inner == 0:
            progress.loop += 1
            run.buffer = run.draws = None
            if rspo.guide_reset == "always":
                run.guide = None
    progress.tick += 1


def first_phase(config) -> str:
    """guide, unless there is no guide: the base algorithm, or the ablation that replays the target's own history."""
    if not config.rspo.enabled:
        return "target"
    return "collect" if config.rspo.source == "history" else "guide"


def advance(progress, following: str, after: int) -> None:
    """Moves to the next tick; to the phase `following` after so many ticks of this one."""
    progress.inner += 1
    if progress.inner >= after:
        progress.phase, progress.inner = following, 0


def end_tick(run) -> None:
    """Evaluation and checkpoint where they are due; always a checkpoint before stopping."""
    config, progress = run.config, run.progress
    every = config.train.eval_every
    if progress.phase == "target" or not config.rspo.enabled or progress.inner == 0:
        if every and progress.step and progress.step % every == 0 and progress.step < config.train.steps:
            run.evaluate()
    last = progress.step >= config.train.steps
    if run.stop_requested or last or progress.tick % config.train.checkpoint_every == 0:
        run.checkpoint()


__all__ = ["tick", "train", "transcript"]

"""The three phases of a loop of RSPO: train the guide B, let it collect, train the target A.

Each function does one rollout and at most one update, reads and changes the run it is given, and returns the metrics of
what it did. The order in which they are called is in train.py.
"""

import time

import jax
import numpy as np

from rspo_jax import algos, rollout
from rspo_jax.batch import Part, build_batch
from rspo_jax.packing import concatenate, take_episodes
from rspo_jax.trajectory import Trajectory

# Purposes of the keys folded from one root key: what one phase draws never changes what another one does.
TARGET, GUIDE, COLLECT, SELECT, NOISE, MINIBATCH = range(6)


def update_guide(run) -> dict:
    """One rollout and update of the guide on the (dense) guide reward."""
    config, progress = run.config, run.progress
    if config.rspo.guide_data == "recycled":
        return _update_guide_recycled(run)
    tasks = run.guide_tasks.take(progress.guide_tasks, on_policy_tasks(config))
    progress.guide_tasks += len(tasks)
    trajectory, metrics = sample(run, run.guide, tasks, run.key(GUIDE))
    swapped = swap(run, trajectory, config.rspo.guide_reward)
    if config.rspo.collect == "reuse":
        run.last_guide = trajectory
    return metrics | learn(run, "guide", [Part(swapped, off_policy=False)], config.rspo.guide_lr_scale)


def _update_guide_recycled(run) -> dict:
    """Trains the guide on the target's own recent episodes, re-scored with the dense reward: no sampling at all."""
    config = run.config
    if not run.recent:
        return {}
    source = run.recent[run.progress.inner % len(run.recent)]
    swapped = swap(run, source, config.rspo.guide_reward)
    return learn(run, "guide", [Part(swapped, off_policy=True)], config.rspo.guide_lr_scale)


def collect(run) -> dict:
    """The guide (or the target's own history) fills buffer D; its rewards are swapped for the outcome rewards."""
    config, progress = run.config, run.progress
    metrics: dict = {}
    if config.rspo.source == "history":
        stored = concatenate(run.recent) if run.recent else None
    elif config.rspo.collect == "reuse":
        stored = run.last_guide
    else:
        tasks = run.guide_tasks.take(progress.guide_tasks, config.rspo.collect_tasks)
        progress.guide_tasks += len(tasks)
        stored, metrics = sample(run, run.guide, tasks, run.key(COLLECT))
    fill_buffer(run, stored)
    run.buffer_successes = 0 if stored is None else int(np.sum(np.asarray(stored.success)))
    return (
        metrics
        | {"buffer_episodes": 0 if stored is None else len(stored.success)}
        | {"buffer_successes": run.buffer_successes}
    )


def fill_buffer(run, stored: Trajectory | None) -> None:
    """D and the draws of the coming target updates. Advantages are taken inside each group before any selection."""
    config = run.config
    run.buffer, run.draws = None, None
    if stored is None:
        return
    swapped = run.on_host(algos.swap_reward(stored, "outcome"))
    advantage = np.asarray(run.advantage(swapped, run.critic_values("target", swapped)))
    scalar = advantage.sum(axis=1) / np.maximum(np.asarray(stored.mask).sum(axis=1), 1)
    summary = algos.Stored(
        outcome=np.sum(np.asarray(swapped.reward) * np.asarray(swapped.mask), axis=1),
        success=np.asarray(stored.success),
        advantage=scalar,
        group=np.asarray(stored.group),
    )
    run.draws = np.asarray(
        algos.select(
            run.key(SELECT),
            summary,
            steps=config.rspo.k,
            per_step=stored_slots(config),
            sampling=config.rspo.sampling,
            only_successes=config.rspo.successes_only,
        )
    )
    kept = np.unique(run.draws[run.draws >= 0])
    place = np.full(len(scalar) + 1, -1)
    place[kept] = np.arange(len(kept))
    run.draws = place[run.draws]  # -1 stays -1
    run.buffer = (take_episodes(swapped, kept), advantage[kept])


def update_target(run) -> dict:
    """One rollout and update of the target: its own outcome rewards, and a few of the guide's best trajectories."""
    config, progress = run.config, run.progress
    draw = np.full(0, -1)
    slots = 0
    if config.rspo.enabled:
        slots = scheduled_slots(config, progress.step)
        if run.draws is not None:
            draw = run.draws[progress.inner][:slots]
    used = draw[draw >= 0]
    missing = slots - len(used)
    tasks_now = config.batch.tasks - slots // config.batch.group_size
    if missing and config.rspo.backfill == "on_policy":
        tasks_now += -(-missing // config.batch.group_size)
    tasks = run.target_tasks.take(progress.target_tasks, tasks_now)
    progress.target_tasks += len(tasks)
    trajectory, metrics = sample(run, run.target, tasks, run.key(TARGET))
    progress.successes += int(np.sum(np.asarray(trajectory.success)))
    parts = [Part(swap(run, trajectory, config.reward), off_policy=False)]
    if len(used):
        stored, advantage = run.buffer
        parts.append(Part(take_episodes(stored, used), off_policy=True, advantage=advantage[used]))
    share = len(used) / (config.batch.tasks * config.batch.group_size)
    metrics |= learn(run, "target", parts, alpha=share)
    if config.rspo.enabled:
        metrics |= {"alpha": share, "buffer_drawn": len(used), "buffer_missing": missing}
        if config.rspo.source == "history" or config.rspo.guide_data == "recycled":
            run.recent = [*run.recent, trajectory][-config.rspo.k :]
    return metrics


def stored_slots(config) -> int:
    """alpha * batch * N, trajectories of D in one target update."""
    return round(config.rspo.alpha * config.batch.tasks) * config.batch.group_size


def scheduled_slots(config, step: int) -> int:
    """`stored_slots` under config.rspo.alpha_schedule, in whole groups."""
    alpha = float(algos.alpha_schedule(config.rspo.alpha_schedule, config.rspo.alpha, step, config.train.steps))
    return round(alpha * config.batch.tasks) * config.batch.group_size


def on_policy_tasks(config) -> int:
    """(1 - alpha) * batch."""
    return config.batch.tasks - round(config.rspo.alpha * config.batch.tasks)


def swap(run, trajectory: Trajectory, kind: str) -> Trajectory:
    """The trajectory with the reward signal `kind`, with the configured noise on dense rewards."""
    noise = run.config.process_reward.noise_std
    key = run.key(NOISE) if noise and kind != "outcome" else None
    scaled = noise * run.config.process_reward.scale
    swapped = algos.swap_reward(trajectory, kind, mix=run.config.reward_mix, noise_std=scaled, key=key)
    return run.on_host(swapped)


def sample(run, agent, tasks, key) -> tuple[Trajectory, dict]:
    """Plays the tasks with an agent; counts episodes and tokens."""
    config = run.config
    start = time.monotonic()
    episodes = rollout.play(
        run.policy, run.policy.merged(agent.params), run.pool, tasks, key, config.batch.group_size, run.settings
    )
    trajectory = run.assemble(episodes)
    run.transcripts = episodes
    run.progress.episodes += len(episodes)
    tokens = int(np.sum(np.asarray(trajectory.rows.action_mask)))
    run.progress.tokens += tokens
    return trajectory, rollout_metrics(trajectory, episodes) | {"rollout_seconds": time.monotonic() - start}


def rollout_metrics(trajectory: Trajectory, episodes) -> dict:
    """What the batch of episodes was like; every value is a Python number."""
    mask = np.asarray(trajectory.mask)
    turns = max(int(mask.sum()), 1)
    tokens = int(np.asarray(trajectory.rows.action_mask).sum())
    fractions = algos.group_fractions(trajectory.success, trajectory.group)
    return {
        "success": float(np.mean(np.asarray(trajectory.success))),
        "return": float(np.mean(np.sum(np.asarray(trajectory.outcome_reward) * mask, axis=1))),
        "dense_return": float(np.mean(np.sum(np.asarray(trajectory.dense_reward) * mask, axis=1))),
        "score": float(np.mean([e.score for e in episodes])),
        "turns": float(np.mean([len(e.turns) for e in episodes])),
        "response_tokens": tokens / turns,
        "valid_actions": float(np.mean([t.valid for e in episodes for t in e.turns] or [0.0])),
        "truncated": float(np.mean([e.truncated for e in episodes])),
        "repeated_states": int(algos.repeated_states(trajectory.state, mask, np.arange(len(mask)))),
        **{name: float(value) for name, value in fractions.items()},
    }


def learn(run, name: str, parts: list[Part], lr_scale: float = 1.0, alpha: float = 0.0) -> dict:
    """Updates one agent ("target" or "guide") on the parts of a batch."""
    start = time.monotonic()
    agent = getattr(run, name)
    key = jax.random.fold_in(run.key(MINIBATCH), 0 if name == "target" else 1)
    batch, metrics = build_batch(run, name, parts, alpha)
    agent, losses = run.learner.update(agent, batch, key, kl_coef=run.kl_coef, lr_scale=lr_scale)
    setattr(run, name, agent)
    return metrics | losses | {"kl_coef": run.kl_coef, "update_seconds": time.monotonic() - start}

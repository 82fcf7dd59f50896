"""The three phases of a loop of RSPO: train the guide B, let it collect, train the target A.

Each function does one rollout and at most one update, reads and changes the run it is given, and returns the metrics of
what it did. The order in which they are called is in train.py.
"""

import math
import time
from collections.abc import Sequence

import jax
import numpy as np

from rspo_jax import algos, buffer, rollout
from rspo_jax.batch import Part, build_batch
from rspo_jax.packing import concatenate, take_episodes
from rspo_jax.trajectory import Trajectory

# Purposes of the keys folded from one root key: what one phase draws never changes what another one does.
SAMPLE, SELECT, NOISE, MINIBATCH = range(4)


def update_guide(run) -> dict:
    """One rollout and update of the guide on the (dense) guide reward."""
    rspo = run.config.rspo
    if rspo.guide_data == "recycled":
        return _update_guide_recycled(run)
    trajectory, metrics = sample(run, "guide", on_policy_tasks(run.config), rspo.guide_reward)
    if rspo.collect == "reuse":
        run.guide_rollouts.append(trajectory)
    return metrics | learn(run, "guide", [Part(trajectory, off_policy=False)], lr_scale=rspo.guide_lr_scale)


def _update_guide_recycled(run) -> dict:
    """Trains the guide on the target's own recent episodes, scored with the dense reward of today: no sampling at all.

    They are off-policy: the ratio to the log-probs stored by the target that sampled them corrects for that.
    """
    if not run.recent:
        return {}
    rspo = run.config.rspo
    past = run.recent[run.progress.inner % len(run.recent)]
    trajectory = swap(run, past.replace(dense_reward=run.scorer.again(past)), rspo.guide_reward)
    return learn(run, "guide", [Part(trajectory, off_policy=True)], lr_scale=rspo.guide_lr_scale)


def collect(run) -> dict:
    """The guide (or the target's own history) fills buffer D; its rewards are swapped for the outcome rewards."""
    config, progress = run.config, run.progress
    metrics: dict = {}
    if config.rspo.source != "guide":
        stored = run.recent
    elif config.rspo.collect == "reuse":
        stored = run.guide_rollouts[-math.ceil(config.rspo.collect_tasks / on_policy_tasks(config)) :]
    else:
        count = collect_tasks(config)
        stored = []
        if count:
            trajectory, metrics = sample(run, "guide", count, "outcome")
            stored = [trajectory]
    run.buffer, filled = buffer.fill(run, stored, run.key(SELECT), stored_slots(config))
    progress.buffer_successes = filled["buffer_successes"]
    if stored and config.process_reward.refit:
        joined = concatenate(stored)
        whole = take_episodes(joined, np.flatnonzero(joined.group >= 0))  # not those that their environment broke
        if len(whole.success):
            filled |= run.scorer.refit(whole, whole.success.astype(np.float32))
    return metrics | filled


def update_target(run) -> dict:
    """One rollout and update of the target: its own outcome rewards, and a few of the guide's best trajectories."""
    config, progress = run.config, run.progress
    slots = scheduled_slots(config, progress.step) if config.rspo.enabled else 0
    drawn = run.buffer.take(progress.inner, slots) if run.buffer else None
    used = len(drawn[1]) if drawn else 0
    trajectory, metrics = sample(run, "target", target_tasks(config, slots, used), config.reward)
    progress.successes += int(trajectory.success.sum())
    parts = [Part(trajectory, off_policy=False)]
    if drawn:
        parts.append(Part(drawn[0], off_policy=True, advantage=drawn[1]))
    # An empty place takes its share of the loss along: one success must not carry the whole off-policy term.
    alpha = used / (config.batch.tasks * config.batch.group_size)
    metrics |= learn(run, "target", parts, alpha=alpha)
    if config.loss.kl_target > 0 and "kl" in metrics:
        progress.kl_coef = float(
            algos.adaptive_kl(
                progress.kl_coef,
                metrics["kl"],
                target=config.loss.kl_target,
                horizon=config.loss.kl_horizon,
                samples=len(trajectory.success) + used,
            )
        )
    if config.rspo.enabled:
        used_successes = int(drawn[0].success.sum()) if drawn else 0
        metrics |= {
            "alpha": alpha,
            "buffer_drawn": used,
            "buffer_used_successes": used_successes,
            "buffer_missing": slots - used,
        }
        keep = kept_rollouts(config)
        run.recent = [*run.recent, trajectory][-keep:] if keep else []
    return metrics


def first_phase(config) -> str:
    """guide, unless there is no guide: the base algorithm, or the ablations that replay the target's own past."""
    if not config.rspo.enabled:
        return "target"
    return "guide" if config.rspo.source == "guide" else "collect"


# How much of everything.


def stored_slots(config) -> int:
    """alpha * batch * N, trajectories of D in one target update."""
    return round(config.rspo.alpha * config.batch.tasks) * config.batch.group_size


def scheduled_slots(config, step: int) -> int:
    """`stored_slots` under config.rspo.alpha_schedule, in whole groups."""
    alpha = float(algos.decay(config.rspo.alpha_schedule, config.rspo.alpha, step, config.train.steps))
    return round(alpha * config.batch.tasks) * config.batch.group_size


def on_policy_tasks(config) -> int:
    """(1 - alpha) * batch."""
    return config.batch.tasks - round(config.rspo.alpha * config.batch.tasks)


def target_tasks(config, slots: int, used: int) -> int:
    """On-policy tasks of a target update with `slots` places for stored trajectories, of which `used` are taken."""
    group = config.batch.group_size
    extra = -(-(slots - used) // group) if config.rspo.backfill == "on_policy" else 0
    return config.batch.tasks - slots // group + extra


def collect_tasks(config) -> int:
    """Tasks the guide collects; with recycled data, as many as the k target updates draw."""
    if config.rspo.guide_data == "recycled":
        return config.rspo.k * (config.batch.tasks - on_policy_tasks(config))
    return config.rspo.collect_tasks


def kept_rollouts(config) -> int:
    """The target's own rollouts that a coming loop reads."""
    rspo = config.rspo
    if rspo.source != "guide":
        return rspo.history or rspo.k
    return rspo.k if rspo.guide_data == "recycled" else 0


# Sampling.


def sample(run, name: str, tasks: int, reward: str) -> tuple[Trajectory, dict]:
    """Plays so many tasks of an agent's stream ("target" or "guide") with it; counts episodes and tokens.

    With algo.dynamic_sampling, groups whose returns do not vary are replaced by those of new tasks that do, for a
    bounded number of rounds. The metrics are of every episode played. Returns (trajectory with `reward`, metrics).
    """
    config, start = run.config, time.monotonic()
    played = [_play(run, name, tasks, reward, 0)]
    batch = played[0][0]
    for attempt in range(config.algo.dynamic_sampling):
        varied = np.asarray(algos.mixed_groups(np.sum(batch.reward * batch.mask, axis=1), batch.group))
        missing = len(np.unique(batch.group[~varied]))
        if not missing:
            break
        played.append(_play(run, name, missing, reward, attempt + 1))
        batch = replace_groups(batch, varied, played[-1][0])
    episodes = [e for _, group in played for e in group]
    everything = concatenate([t for t, _ in played]) if len(played) > 1 else batch
    metrics = rollout_metrics(everything, episodes)
    if config.algo.dynamic_sampling:
        metrics["resampled_groups"] = len(episodes) // config.batch.group_size - tasks
    run.progress.episodes += len(episodes)
    run.progress.tokens += int(everything.rows.action_mask.sum())
    return batch, metrics | {"rollout_seconds": time.monotonic() - start}


def _play(run, name: str, tasks: int, reward: str, attempt: int) -> tuple[Trajectory, list[rollout.Episode]]:
    agent, stream = getattr(run, name), run.streams[name]
    position = run.progress.tasks[name]
    run.progress.tasks[name] = position + tasks
    key = jax.random.fold_in(run.key(SAMPLE), attempt)
    episodes = rollout.play(
        run.policy,
        run.policy.merged(agent.params),
        run.pool,
        stream.take(position, tasks),
        key,
        run.config.batch.group_size,
        run.settings,
    )
    return swap(run, run.assemble(episodes), reward, attempt), episodes


def replace_groups(batch: Trajectory, varied: np.ndarray, fresh: Trajectory) -> Trajectory:
    """`batch` with groups that do not vary replaced by groups of `fresh` that do, as far as those go.

    varied: bool[B], of the episodes of `batch`.
    """
    good = np.asarray(algos.mixed_groups(np.sum(fresh.reward * fresh.mask, axis=1), fresh.group))
    new, old = np.unique(fresh.group[good]), np.unique(batch.group[~varied])
    new = new[: len(old)]
    keep = np.flatnonzero(~np.isin(batch.group, old[: len(new)]))
    added = np.flatnonzero(np.isin(fresh.group, new))
    return concatenate([take_episodes(batch, keep), take_episodes(fresh, added)]) if len(new) else batch


def swap(run, trajectory: Trajectory, kind: str, attempt: int = 0) -> Trajectory:
    """The trajectory with the reward signal `kind`, with the configured noise on dense rewards."""
    noise = run.config.process_reward.noise_std
    key = jax.random.fold_in(run.key(NOISE), attempt) if noise and kind != "outcome" else None
    scaled = noise * run.config.process_reward.scale
    swapped = algos.swap_reward(trajectory, kind, mix=run.config.reward_mix, noise_std=scaled, key=key)
    return run.on_host(swapped)


def rollout_metrics(trajectory: Trajectory, episodes: Sequence[rollout.Episode]) -> dict:
    """What the batch of episodes was like; every value is a Python number."""
    mask = trajectory.mask
    turns, tokens = max(int(mask.sum()), 1), int(trajectory.rows.action_mask.sum())
    fractions, repeated = jax.device_get(_group_metrics(trajectory.replace(rows=None)))
    return {
        "success": float(np.mean(trajectory.success)),
        "return": float(np.mean(np.sum(trajectory.outcome_reward * mask, axis=1))),
        "dense_return": float(np.mean(np.sum(trajectory.dense_reward * mask, axis=1))),
        "score": float(np.mean([e.score for e in episodes])),
        "turns": float(np.mean([len(e.turns) for e in episodes])),
        "response_tokens": tokens / turns,
        "valid_actions": float(np.mean([t.valid for e in episodes for t in e.turns] or [0.0])),
        "truncated": float(np.mean([e.truncated for e in episodes])),
        "env_errors": sum(bool(e.error) for e in episodes),
        "repeated_states": int(repeated),
        **{name: float(value) for name, value in fractions.items()},
    }


@jax.jit
def _group_metrics(trajectory: Trajectory):
    fractions = algos.group_fractions(trajectory.success, trajectory.group)
    return fractions, algos.repeated_states(trajectory.state, trajectory.mask, trajectory.group)


# Learning.


def learn(run, name: str, parts: list[Part], lr_scale: float = 1.0, alpha: float = 0.0) -> dict:
    """Updates one agent ("target" or "guide"), and its critic, on the parts of a batch.

    During the first config.critic.warmup updates of the target only critics learn.
    """
    start, config = time.monotonic(), run.config
    key = run.key(MINIBATCH)
    batch, values, metrics = build_batch(run, name, parts, alpha)
    if values is not None:
        params = getattr(run, name).params
        run.critics[name], losses = run.critic.update(
            run.critics[name], params, values, jax.random.fold_in(key, 1), run.shapes[name]
        )
        metrics |= losses
    if values is None or run.progress.step >= config.critic.warmup:
        coefficient = run.progress.kl_coef if config.loss.kl_in == "loss" else 0.0
        lr_scale *= float(algos.decay(config.optim.lr_schedule, 1.0, run.progress.step, config.train.steps))
        agent, losses = run.learner.update(
            getattr(run, name), batch, key, kl_coef=coefficient, lr_scale=lr_scale, shapes=run.shapes[name]
        )
        setattr(run, name, agent)
        metrics |= losses
    if run.uses_reference:
        metrics["kl_coef"] = run.progress.kl_coef
    else:
        metrics.pop("kl", None)  # there was nothing to compare with
    return metrics | {"update_seconds": time.monotonic() - start}

"""Fits a process reward model on collected episodes (`--mode=reward_model`), and refits its head during a run.

The loss of a batch of episodes is the mean of (sum_t r_t - R)^2. It is not a sum over token rows, because in window
context an episode has many: rewards of all rows are added up by episode first, micro-batch by micro-batch.
"""

import pathlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats

from rspo_jax import reward_model, sharding
from rspo_jax.collected import Collected, whole_policy
from rspo_jax.configuration import check_same_config, fingerprint, save_config
from rspo_jax.learner import init_state, pad_rows
from rspo_jax.models import turn_reward
from rspo_jax.packing import bucket
from rspo_jax.reward_model import RewardModel, TurnRows
from rspo_jax.update import AgentState, apply_gradient, make_optimizer, micro_batches


@flax.struct.dataclass
class Targets:
    """E episodes: outcome f32[E] in [0, 1]; weight f32[E] of each squared error, 0 on padding."""

    outcome: Any
    weight: Any


@dataclass(frozen=True)
class Problem:
    """What is fitted: `predict(params, inputs, E) -> f32[E]`, the sum of an episode's turn rewards.

    inputs(episodes, E): arrays of the given episodes, padded to E of them, on the device.
    """

    predict: Callable
    inputs: Callable
    outcome: np.ndarray
    mesh: Any

    def batches(self, episodes: np.ndarray, size: int) -> Iterator[tuple[Any, Targets, int]]:
        """(inputs, targets, episodes in it) of the given episodes in order, every batch of one shape."""
        parts = self.mesh.shape["data"] * self.mesh.shape["fsdp"]
        E = bucket(min(size, len(episodes)), parts)
        for first in range(0, len(episodes), E):
            part = episodes[first : first + E]
            targets = Targets(self.outcome[part], np.full(len(part), 1 / len(part), np.float32))
            yield self.inputs(part, E), sharding.shard_batch(pad_rows(targets, E), self.mesh), len(part)


def head_problem(features: np.ndarray, present: np.ndarray, outcome: np.ndarray, mesh) -> Problem:
    """Only the head is fitted: features f32[B, T, D], bool[B, T] of a frozen backbone, computed once."""

    def inputs(episodes, E):
        return sharding.shard_batch(pad_rows((features[episodes], present[episodes]), E), mesh)

    return Problem(predict_head, inputs, outcome, mesh)


def predict_head(head, inputs, E: int) -> jax.Array:
    """f32[E] from (h [E, T, D], bool[E, T])."""
    h, present = inputs
    return jnp.sum(jnp.where(present, turn_reward(head, h), 0.0), axis=1)


def whole_problem(model: RewardModel, rows: TurnRows, outcome: np.ndarray, *, size: int, mesh, remat) -> Problem:
    """Backbone and head are fitted, at most `size` token rows on the device at once."""
    turns = reward_model.turns_of_row(rows)
    order = np.argsort(rows.episode, kind="stable")
    starts = np.searchsorted(rows.episode[order], np.arange(len(outcome) + 1))

    def inputs(episodes, E):
        picked = [order[starts[e] : starts[e + 1]] for e in episodes]
        index = np.concatenate(picked)
        batch = jax.tree.map(lambda x: x[index], rows)
        batch = batch.replace(episode=np.repeat(np.arange(len(picked)), [len(p) for p in picked]).astype(np.int32))
        micro = reward_model.chunk_size(len(index), size, mesh)
        padded = pad_rows(batch, bucket(len(index), micro))
        return sharding.shard_batch(padded, mesh)

    def predict(params, batch, E):
        cast = cast_like(params, model.params)

        def total(micro):
            return jnp.sum(reward_model.rewards(cast, model.config, micro, turns, remat), axis=1)

        count = -(-len(batch.episode) // reward_model.chunk_size(len(batch.episode), size, mesh))
        if count == 1:
            totals = total(batch)
        else:  # the backward pass recomputes one micro-batch at a time
            totals = jax.lax.map(jax.checkpoint(total), micro_batches(batch, count))
            totals = jnp.swapaxes(totals, 0, 1).reshape(-1)
        return jax.ops.segment_sum(totals, batch.episode, E)

    return Problem(predict, inputs, outcome, mesh)


def cast_like(params, like):
    """The parameters in the precision of others: what a float32 copy stands for in a forward pass and on disk."""
    return jax.tree.map(lambda x, y: x.astype(y.dtype), params, like)


@partial(jax.jit, static_argnames=("optimizer", "predict"), donate_argnames="state")
def step(state: AgentState, inputs, targets: Targets, *, optimizer, predict: Callable) -> tuple[AgentState, jax.Array]:
    """One optimizer step on a batch: (state, mean squared error before it)."""

    def loss(params):
        error = predict(params, inputs, targets.outcome.shape[0]) - targets.outcome
        return jnp.sum(targets.weight * error**2)

    value, gradient = jax.value_and_grad(loss)(state.params)
    return apply_gradient(optimizer, state, gradient), value


def reward_optimizer(config):
    """AdamW with the settings of config.optim at config.reward_model.lr."""
    optim = config.optim.copy_and_resolve_references()
    optim.lr = config.reward_model.lr
    return make_optimizer(optim)


def own_copy(params):
    """A float32 copy to be trained: small updates would be lost in bfloat16, and a step gives its buffers away."""
    return jax.tree.map(lambda x: jnp.array(x, jnp.float32), params)


def fit(model: RewardModel, data: Collected, config, mesh, on_epoch: Callable[[int, dict], None]) -> RewardModel:
    """The model of the epoch with the least held-out error; its info holds the numbers.

    config: the tree; its group reward_model says what is fitted and for how long. on_epoch(epoch, metrics) is called
    for every epoch, the first time before any step (epoch 0).
    """
    settings = config.reward_model
    train, held_out = split_by_task(data.task, settings.held_out, config.seed)
    check_outcomes(data, train, held_out)
    problem, params = make_problem(model, data, config, mesh)
    optimizer, predict = reward_optimizer(config), jax.jit(problem.predict, static_argnums=2)
    state = init_state(optimizer, own_copy(params), mesh)
    best, best_epoch, best_metrics = None, 0, {}
    for epoch in range(settings.epochs + 1):
        fitted = {}
        if epoch:
            order = np.random.default_rng([config.seed, epoch]).permutation(train)
            state, loss = one_pass(state, problem, order, settings.batch, optimizer)
            fitted = {"reward_model_loss": loss}
        predicted = predict_all(predict, state.params, problem, held_out, settings.batch)
        metrics = quality(predicted, data.outcome[held_out], data.success[held_out])
        on_epoch(epoch, fitted | metrics)
        if epoch == 0 or metrics["reward_model_error"] < best_metrics["reward_model_error"]:
            best_epoch, best_metrics = epoch, metrics
            best = jax.tree.map(jnp.copy, state.params)  # the state's own buffers are given to the next step
        elif epoch - best_epoch >= settings.patience:
            break
    numbers = {name.removeprefix("reward_model_"): number for name, number in best_metrics.items()}
    held = {name: None if np.isnan(number) else number for name, number in numbers.items()}  # JSON has no NaN
    held |= {
        "constant_error": float(np.mean((data.outcome[held_out] - data.outcome[train].mean()) ** 2)),
        "episodes": len(held_out),
        "epoch": best_epoch,
    }
    whole = model.params | {"head": best} if settings.backbone == "frozen" else cast_like(best, model.params)
    return replace(model, params=whole, info=model.info | {"held_out": held, "backbone": settings.backbone})


def make_problem(model: RewardModel, data: Collected, config, mesh) -> tuple[Problem, Any]:
    """(Problem, the parameters it fits) of config.reward_model.backbone."""
    settings = config.reward_model
    if settings.backbone == "frozen":
        shape = (len(data.outcome), bucket(int(data.turns.max()), 8))
        read = reward_model.episode_features(model, data.rows, shape, size=settings.rows, mesh=mesh)
        return head_problem(*read, data.outcome, mesh), model.params["head"]
    rows = reward_model.turn_rows(data.rows)
    remat = config.model.remat
    return whole_problem(model, rows, data.outcome, size=settings.rows, mesh=mesh, remat=remat), model.params


def one_pass(state: AgentState, problem: Problem, episodes: np.ndarray, size: int, optimizer):
    """(state, mean loss) after a step on each batch of the episodes, in their order."""
    losses = []
    for inputs, targets, _ in problem.batches(episodes, size):
        state, loss = step(state, inputs, targets, optimizer=optimizer, predict=problem.predict)
        losses.append(loss)
    return state, float(np.mean(jax.device_get(losses)))


def run(config, data: Collected, writer) -> RewardModel:
    """Fits a model on the configured agent's own language model; writes and prints the numbers of each epoch."""
    policy, params = whole_policy(config)
    check_data(data, policy, config.context.mode)
    info = {name: data.info[name] for name in ("model", "context", "format", "outcome")}
    model = reward_model.new_model(
        policy.config,
        params,
        policy.tokenizer,
        inner=config.reward_model.inner,
        seed=config.seed,
        mesh=policy.mesh,
        info=info,
    )

    def on_epoch(epoch, metrics):
        known = {name: number for name, number in metrics.items() if not np.isnan(number)}
        writer.write({"step": epoch, "phase": "reward_model", "episodes": len(data.outcome), **known})
        if config.train.progress:
            numbers = "  ".join(f"{k.removeprefix('reward_model_')} {v:.4f}" for k, v in known.items())
            print(f"epoch {epoch}/{config.reward_model.epochs}  {numbers}", file=sys.stderr, flush=True)

    return fit(model, data, config, policy.mesh, on_epoch)


def claim(workdir: pathlib.Path, config) -> None:
    """Records the configuration in a work directory; raises ValueError where that belongs to something else."""
    if (workdir / "checkpoints").is_dir():
        raise ValueError(f"{workdir} belongs to a training run; give another --workdir")
    check_same_config(workdir, config, ("reward_model", "train.progress", "env.workers", "env.timeout"))
    save_config(workdir, config)


def summary(held_out: dict) -> str:
    """The held-out numbers of a fit in one sentence; `constant_error` is that of the best constant."""
    correlation, area = (
        "undefined" if held_out[name] is None else f"{held_out[name]:.3f}" for name in ("correlation", "auc")
    )
    useless = held_out["error"] >= held_out["constant_error"]
    return (
        f"held out {held_out['episodes']} episodes, epoch {held_out['epoch']}: mean squared error "
        f"{held_out['error']:.4f} (a constant: {held_out['constant_error']:.4f}), correlation {correlation}, AUC {area}"
        + ("; no better than a constant: collect more episodes" if useless else "")
    )


def predict_all(predict, params, problem: Problem, episodes: np.ndarray, size: int) -> np.ndarray:
    """Sums f32[len(episodes)] of the turn rewards."""
    out = [
        (predict(params, inputs, len(targets.outcome)), count)
        for inputs, targets, count in problem.batches(episodes, size)
    ]
    return np.concatenate([np.asarray(sums)[:count] for sums, count in out])


def check_data(data: Collected, policy, context: str) -> None:
    """Raises ValueError where episodes were collected with another vocabulary or kind of row than is used here."""
    have, want = data.info["vocabulary"], fingerprint(policy.tokenizer.get_vocab())
    if have != want or data.info["vocab_size"] != policy.config.vocab_size:
        raise ValueError(
            f"the episodes were collected by {data.info['model']}, whose vocabulary is another than that of the "
            "configured model; set the same model.path, or collect again"
        )
    if data.info["context"] != context:
        raise ValueError(
            f"context.mode = {context!r}: the episodes were collected with {data.info['context']!r}; set the same"
        )


def split_by_task(task: np.ndarray, held_out: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Episode indices (train, held out). Whole tasks are held out: the model is judged on tasks it has never seen."""
    tasks = np.random.default_rng([seed, 0x5917]).permutation(np.unique(task))
    count = round(held_out * len(tasks))
    if not 0 < count < len(tasks):
        raise ValueError(
            f"reward_model.held_out = {held_out} of {len(tasks)} tasks leaves one side empty; collect more episodes"
        )
    held = np.isin(task, tasks[:count])
    return np.flatnonzero(~held), np.flatnonzero(held)


def check_outcomes(data: Collected, train: np.ndarray, held_out: np.ndarray) -> None:
    """Raises ValueError where there is nothing to learn or to judge by."""
    for name, part in (("training", train), ("held-out", held_out)):
        if np.ptp(data.outcome[part]) == 0:
            raise ValueError(
                f"the {len(part)} {name} episodes all have the outcome {data.outcome[part][0]:g}; collect more "
                "(collect.episodes), or with an agent that sometimes succeeds"
            )


def quality(predicted: np.ndarray, outcome: np.ndarray, success: np.ndarray) -> dict[str, float]:
    """Mean squared error, correlation, and AUC against success; NaN where one is not defined."""
    varied = np.ptp(predicted) > 0 and np.ptp(outcome) > 0
    return {
        "reward_model_error": float(np.mean((predicted - outcome) ** 2)),
        "reward_model_correlation": float(np.corrcoef(predicted, outcome)[0, 1]) if varied else float("nan"),
        "reward_model_auc": auc(predicted, success),
    }


def auc(score: Sequence[float], positive: Sequence[bool]) -> float:
    """Probability that a positive scores above a negative, ties counting half (Mann-Whitney); NaN without both."""
    positive = np.asarray(positive, bool)
    n, rest = int(positive.sum()), int((~positive).sum())
    if not n or not rest:
        return float("nan")
    ranks = scipy.stats.rankdata(score)
    return float((ranks[positive].sum() - n * (n + 1) / 2) / (n * rest))


__all__ = [
    "Problem",
    "auc",
    "check_data",
    "claim",
    "fit",
    "head_problem",
    "make_problem",
    "one_pass",
    "own_copy",
    "predict_all",
    "predict_head",
    "quality",
    "reward_optimizer",
    "run",
    "split_by_task",
    "step",
    "summary",
    "whole_problem",
]

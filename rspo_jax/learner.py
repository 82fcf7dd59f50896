"""The jitted functions of a run: log-probabilities of stored tokens, and optimizer steps on an agent."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from rspo_jax import sharding
from rspo_jax.decoder import Policy
from rspo_jax.packing import ActionBatch, bucket
from rspo_jax.update import (
    AgentState,
    LossBatch,
    LossOptions,
    accumulate,
    action_logprobs,
    apply_gradient,
    loss_metrics,
    make_optimizer,
    merge_sums,
    micro_batches,
    policy_loss,
    with_learning_rate,
)


class Learner:
    """Updates agents of one policy. Holds no agent itself: states go in and come out.

    config: the groups optim, loss, model and decoding of the tree; options: static choices of the objective.
    """

    def __init__(self, policy: Policy, config, options: LossOptions, mesh):
        self.policy, self.config, self.mesh = policy, config, mesh
        self.optimizer = make_optimizer(config.optim)
        self.row_multiple = math.lcm(mesh.shape["data"] * mesh.shape["fsdp"], config.optim.micro_rows or 1)
        model, remat = policy.config, config.model.remat
        free_tokens = None if policy.grammar is None else jnp.asarray(policy.grammar.free_tokens)
        temperature = config.decoding.temperature

        def logprobs(params, base, actions, count):
            def one(micro):
                return action_logprobs(policy.attach(params, base), model, micro, free_tokens, temperature)

            out = jax.lax.map(one, micro_batches(actions, count))
            return jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1).reshape(-1, *x.shape[2:]), out)

        def step(state, base, batch, kl_coef, entropy_coef, learning_rate, count):
            def objective(params, micro):
                logp, entropy = action_logprobs(
                    policy.attach(params, base), model, micro.actions, free_tokens, temperature, remat=remat
                )
                return policy_loss(logp, entropy, micro, options, kl_coef, entropy_coef)

            gradient, sums = accumulate(objective, state.params, batch, count, merge_sums)
            opt_state = with_learning_rate(state.opt_state, learning_rate)
            new = apply_gradient(self.optimizer, state.replace(opt_state=opt_state), gradient)
            norm = jnp.sqrt(sum(jnp.sum(jnp.square(g.astype(jnp.float32))) for g in jax.tree.leaves(gradient)))
            return new, loss_metrics(sums) | {"grad_norm": norm}

        self._logprobs = jax.jit(logprobs, static_argnames="count")
        self._step = jax.jit(step, static_argnames="count", donate_argnums=0)

    def init(self, params) -> AgentState:
        """A fresh agent; parameters and moments are placed by the sharding rules."""
        params = sharding.shard_params(params, self.mesh)
        opt_state = jax.jit(self.optimizer.init)(params)
        opt_state = sharding.shard_params(opt_state, self.mesh)
        return AgentState(params, opt_state, sharding.shard_params(jnp.zeros((), jnp.int32), self.mesh))

    def copy(self, state: AgentState) -> AgentState:
        """An agent of its own: no buffer is shared, so that training one can never touch the other."""
        return jax.tree.map(jnp.copy, state)

    def logprobs(self, params, actions: ActionBatch) -> np.ndarray:
        """f32[N, M] of the sampled tokens under `params` (None: the base model of an adapter)."""
        rows = bucket(len(actions.episode), self.row_multiple)
        padded = pad_rows(actions, rows)
        placed = sharding.shard_batch(padded, self.mesh)
        out, _ = self._logprobs(params, self.policy.base, placed, count=self.micro_count(rows))
        return np.asarray(out)[: len(actions.episode)]

    def split(self, batch, key) -> list:
        """Minibatches of a batch whose `weight` leaf sums over all of it; each is padded to a size of its own run.

        Weights are multiplied by the number of minibatches, so that each is a loss of its own scale.
        """
        size = self.config.optim.minibatch_rows
        rows = len(batch.actions.episode)
        parts = minibatches(rows, size, key)
        width = bucket(min(size or rows, rows), self.row_multiple)
        out = []
        for part in parts:
            picked = jax.tree.map(lambda x: np.asarray(x)[part], batch)  # noqa: B023
            out.append(pad_rows(picked.replace(weight=picked.weight * len(parts)), width))
        return out

    def update(self, state, batch: LossBatch, key, *, kl_coef: float, lr_scale: float = 1.0) -> tuple[AgentState, dict]:
        """All optimizer steps on one batch (epochs x minibatches); the metrics are those of the mean step."""
        history = []
        for epoch in range(self.config.optim.epochs):
            for part in self.split(batch, jax.random.fold_in(key, epoch)):
                state, metrics = self._step(
                    state,
                    self.policy.base,
                    sharding.shard_batch(part, self.mesh),
                    kl_coef,
                    self.config.loss.entropy_coef,
                    self.learning_rate(state) * lr_scale,
                    count=self.micro_count(len(part.off_policy)),
                )
                history.append(metrics)
        metrics = {name: sum(m[name] for m in history) / len(history) for name in history[0]}
        for name in ("ratio_max", "clip_centre_max"):
            metrics[name] = jnp.max(jnp.stack([m[name] for m in history]))
        return state, metrics | {"sampler_gap": history[0]["sampler_gap"]}

    def learning_rate(self, state: AgentState):
        """Linear warm-up to config.optim.lr."""
        optim = self.config.optim
        return optim.lr * jnp.minimum(1.0, (state.updates + 1) / max(optim.warmup, 1))

    def micro_count(self, rows: int) -> int:
        """Micro-batches that a (padded) number of rows is accumulated in."""
        micro = self.config.optim.micro_rows
        return rows // micro if micro else 1


def minibatches(rows: int, size: int, key) -> list[np.ndarray]:
    """Row indices in shuffled parts of at most `size` and nearly equal rows; one part in order where size is 0."""
    if not size or size >= rows:
        return [np.arange(rows)]
    order = np.asarray(jax.random.permutation(key, rows))
    return [np.sort(part) for part in np.array_split(order, -(-rows // size))]


def pad_rows(batch, rows: int):
    """Pads the leading axis of every leaf with zeros: padding rows have no sampled token and no weight."""
    return jax.tree.map(lambda x: np.pad(np.asarray(x), [(0, rows - len(x))] + [(0, 0)] * (np.ndim(x) - 1)), batch)


__all__ = ["Learner", "minibatches", "pad_rows"]

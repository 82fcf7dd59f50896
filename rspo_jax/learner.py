"""The jitted functions of a run: log-probabilities of stored tokens, and optimizer steps on an agent."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax

from rspo_jax import sharding
from rspo_jax.configuration import require
from rspo_jax.decoder import Policy, attach
from rspo_jax.models.transformer import ModelConfig
from rspo_jax.packing import ActionBatch, Shapes, bucket, cut_rows, groups_by_length
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


@dataclass(frozen=True)
class Forward:
    """Static choices of a training forward pass; equal ones share their compiled programs."""

    model: ModelConfig
    dtype: str
    lora_alpha: float
    temperature: float
    remat: bool

    def attach(self, params, base):
        """Parameters as the model computes with them."""
        return attach(params, base, self.lora_alpha, self.dtype)

    def logprobs(self, params, base, actions, free_tokens, remat=False):
        """(log-prob, entropy), both f32[N, M], of the sampled tokens."""
        whole = self.attach(params, base)
        return action_logprobs(whole, self.model, actions, free_tokens, self.temperature, remat=remat)


def check_micro_rows(config, mesh) -> None:
    """Raises ValueError where a micro-batch does not divide over the mesh."""
    parts, micro = mesh.shape["data"] * mesh.shape["fsdp"], config.optim.micro_rows
    require(micro % parts == 0, "optim.micro_rows", micro, f"give a multiple of data x fsdp = {parts}, or 0")


class Learner:
    """Updates agents of one policy. Holds no agent itself: states go in and come out.

    config: the groups optim, loss, model and decoding of the tree; options: static choices of the objective.
    """

    def __init__(self, policy: Policy, config, options: LossOptions, mesh):
        self.policy, self.config, self.options, self.mesh = policy, config, options, mesh
        self.optimizer = make_optimizer(config.optim)
        check_micro_rows(config, mesh)
        self.row_multiple = math.lcm(mesh.shape["data"] * mesh.shape["fsdp"], config.optim.micro_rows or 1)
        self.forward = Forward(
            policy.config, policy.dtype, policy.lora_alpha, config.decoding.temperature, config.model.remat
        )
        self.free_tokens = None if policy.grammar is None else jnp.asarray(policy.grammar.free_tokens)

    def init(self, params) -> AgentState:
        """A fresh agent on its own float32 copy of the parameters, placed by the sharding rules."""
        # Small updates would be lost in a bfloat16 parameter: it keeps 8 bits.
        params = jax.tree.map(lambda x: jnp.array(x, jnp.float32), params)
        return init_state(self.optimizer, params, self.mesh)

    def copy(self, state: AgentState) -> AgentState:
        """An agent of its own: no buffer is shared, so that training one can never touch the other."""
        return jax.tree.map(jnp.copy, state)

    def logprobs(self, params, actions: ActionBatch, shapes: Shapes | None = None) -> np.ndarray:
        """f32[N, M] of the sampled tokens under `params` (None: the base model of an adapter)."""
        out = np.zeros(actions.target.shape, np.float32)
        for rows, part, count in self.pieces(Rows(actions), shapes):
            computed = _logprobs(
                params, self.policy.base, part.actions, self.free_tokens, forward=self.forward, count=count
            )
            out[rows, : computed.shape[1]] = np.asarray(computed)[: len(rows)]
        return out

    def pieces(self, batch, shapes: Shapes | None = None) -> list[tuple[np.ndarray, Any, int]]:
        """[(row indices, those rows on the device, micro-batches)]: a batch in pieces of similar length.

        batch: a pytree with `actions`; shapes: sizes that belong to its kind of batch.
        """
        shapes = Shapes() if shapes is None else shapes
        out = []
        for name, rows in groups_by_length(batch.actions):
            width = bucket(len(rows), self.row_multiple)
            part = pad_rows(cut_rows(batch, rows, name, shapes), width)
            micro = self.config.optim.micro_rows
            out.append((rows, sharding.shard_batch(part, self.mesh), width // micro if micro else 1))
        return out

    def split(self, batch, key) -> list:
        """Minibatches of a batch whose `weight` leaf sums over all of it, padded to one number of rows.

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

    def update(
        self,
        state: AgentState,
        batch: LossBatch,
        key,
        *,
        kl_coef: float,
        lr_scale: float = 1.0,
        shapes: Shapes | None = None,
    ) -> tuple[AgentState, dict]:
        """All optimizer steps on one batch (epochs x minibatches), and their metrics; `state` is donated."""
        shapes = Shapes() if shapes is None else shapes
        sums, norms, rate = [], [], self.learning_rate(state) * lr_scale
        for epoch in range(self.config.optim.epochs):
            for part in self.split(batch, jax.random.fold_in(key, epoch)):
                _, pieces, counts = zip(*self.pieces(part, shapes), strict=True)
                state, one, norm = _step(
                    state,
                    self.policy.base,
                    pieces,
                    self.free_tokens,
                    kl_coef,
                    self.config.loss.entropy_coef,
                    self.learning_rate(state) * lr_scale,
                    forward=self.forward,
                    options=self.options,
                    optimizer=self.optimizer,
                    counts=counts,
                )
                sums.append(one)
                norms.append(norm)
        metrics = loss_metrics(sums) | {"grad_norm": sum(norms) / len(norms), "learning_rate": rate}
        return state, metrics

    def learning_rate(self, state: AgentState):
        """Linear warm-up to config.optim.lr."""
        optim = self.config.optim
        return optim.lr * jnp.minimum(1.0, (state.updates + 1) / max(optim.warmup, 1))


@flax.struct.dataclass
class Rows:
    """Rows to evaluate, without anything beside them."""

    actions: ActionBatch


@partial(jax.jit, static_argnames=("forward", "count"))
def _logprobs(params, base, actions, free_tokens, *, forward: Forward, count: int):
    def one(micro):
        return forward.logprobs(params, base, micro, free_tokens)[0]

    out = jax.lax.map(one, micro_batches(actions, count))
    return jnp.swapaxes(out, 0, 1).reshape(-1, out.shape[-1])


@partial(jax.jit, static_argnames=("forward", "options", "optimizer", "counts"), donate_argnames="state")
def _step(
    state: AgentState,
    base: Any,
    pieces: tuple[LossBatch, ...],
    free_tokens,
    kl_coef,
    entropy_coef,
    learning_rate,
    *,
    forward: Forward,
    options: LossOptions,
    optimizer: optax.GradientTransformation,
    counts: tuple[int, ...],
):
    """One optimizer step on the pieces of a minibatch: (state, LossSums, gradient norm)."""

    def objective(params, micro):
        logp, entropy = forward.logprobs(params, base, micro.actions, free_tokens, forward.remat)
        return policy_loss(logp, entropy, micro, options, kl_coef, entropy_coef)

    gradient, sums = accumulate(objective, state.params, pieces, counts, merge_sums)
    state = state.replace(opt_state=with_learning_rate(state.opt_state, learning_rate))
    return apply_gradient(optimizer, state, gradient), sums, optax.tree.norm(gradient)


def init_state(optimizer: optax.GradientTransformation, params, mesh) -> AgentState:
    """Parameters and fresh moments, placed by the sharding rules. The parameters may be donated with the state."""
    params = sharding.shard_params(params, mesh)
    # Moments are born in their places: whole on one device, those of a 7B model would not fit.
    places = sharding.tree_shardings(jax.eval_shape(optimizer.init, params), mesh)
    opt_state = jax.jit(optimizer.init, out_shardings=places)(params)
    return AgentState(params, opt_state, sharding.shard_params(jnp.zeros((), jnp.int32), mesh))


def minibatches(rows: int, size: int, key) -> list[np.ndarray]:
    """Row indices in shuffled parts of at most `size` and nearly equal rows; one part in order where size is 0."""
    if not size or size >= rows:
        return [np.arange(rows)]
    order = np.asarray(jax.random.permutation(key, rows))
    return [np.sort(part) for part in np.array_split(order, -(-rows // size))]


def pad_rows(batch, rows: int):
    """Pads the leading axis of every leaf with zeros: padding rows have no sampled token and no weight."""
    return jax.tree.map(lambda x: np.pad(np.asarray(x), [(0, rows - len(x))] + [(0, 0)] * (np.ndim(x) - 1)), batch)


__all__ = ["Forward", "Learner", "Rows", "check_micro_rows", "init_state", "minibatches", "pad_rows"]

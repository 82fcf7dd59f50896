"""One optimizer step of a policy: the loss over sampled tokens, exact under any split into micro-batches.

Every token carries its weight in the whole optimizer batch (`algos.token_weights`), so micro-batches and devices only
add up partial sums: no mean is ever taken over a part.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial, reduce
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax

from rspo_jax import algos
from rspo_jax.algos.diagnostics import PolicySums
from rspo_jax.models import logprobs, transformer
from rspo_jax.packing import ActionBatch

Array = jax.Array | np.ndarray


@flax.struct.dataclass
class AgentState:
    """What training changes: parameters (or a LoRA adapter), optimizer state, and the number of optimizer steps."""

    params: Any
    opt_state: Any
    updates: Array


@flax.struct.dataclass
class LossBatch:
    """Rows with the per-token numbers of the objective: f32[N, M] at the sampled tokens, off_policy bool[N].

    weight: share of the token in the loss; logp_old: pi_old; logp_behaviour: the policy that sampled (pi_old itself on
    on-policy rows); logp_ref: the reference policy (anything where the KL coefficient is 0).
    """

    actions: ActionBatch
    advantage: Array
    weight: Array
    logp_old: Array
    logp_behaviour: Array
    logp_ref: Array
    off_policy: Array


@dataclass(frozen=True)
class LossOptions:
    """Static choices of the objective, named as the keys of config.loss and config.rspo; `turns` is T."""

    eps_low: float
    eps_high: float
    dual_clip: float | None
    kl_kind: str
    ratio: str
    off_clip: str
    off_ratio: str
    off_ratio_cap: float | None
    turns: int


def make_optimizer(config) -> optax.GradientTransformation:
    """AdamW behind global-norm clipping; its learning rate is set anew before every step (`with_learning_rate`).

    config: the group optim of the tree. Equal numbers give the same object, so that programs are compiled once.
    """
    return _optimizer(config.lr, config.b1, config.b2, config.weight_decay, config.clip_norm)


@lru_cache
def _optimizer(lr, b1, b2, weight_decay, clip_norm) -> optax.GradientTransformation:
    @partial(optax.inject_hyperparams, static_args=("b1", "b2", "weight_decay", "clip_norm"))
    def build(learning_rate, b1, b2, weight_decay, clip_norm):
        adamw = optax.adamw(learning_rate, b1=b1, b2=b2, weight_decay=weight_decay)
        return optax.chain(optax.clip_by_global_norm(clip_norm), adamw)

    return build(learning_rate=lr, b1=b1, b2=b2, weight_decay=weight_decay, clip_norm=clip_norm)


def with_learning_rate(opt_state, learning_rate):
    """The optimizer state with another learning rate."""
    dtype = opt_state.hyperparams["learning_rate"].dtype
    return opt_state._replace(hyperparams={**opt_state.hyperparams, "learning_rate": jnp.asarray(learning_rate, dtype)})


def micro_batches(batch, count: int):
    """Splits the leading axis of every leaf into [count, rows / count]. Rows are dealt out in turn, so that each device
    keeps its own rows."""
    return jax.tree.map(lambda x: jnp.swapaxes(x.reshape(len(x) // count, count, *x.shape[1:]), 0, 1), batch)


def action_logprobs(params, config, actions: ActionBatch, free_tokens, temperature, *, remat=False, chunk=1024):
    """Log-probability and entropy, both f32[N, M], of the sampled tokens under `params`; 0 on padding."""
    N, M = actions.target.shape
    features = transformer.hidden(params, config, actions.tokens, None, remat=remat)
    before = jnp.maximum(actions.position - 1, 0)
    picked = jnp.take_along_axis(features, before[:, :, None], axis=1).reshape(N * M, -1)
    constrained = free_tokens is not None
    split = config.mesh is not None and config.mesh.size > 1  # leaving padding out would move rows between devices
    allowed = actions.allowed
    if constrained and not allowed.shape[2]:  # nothing is listed anywhere: one column of padding
        allowed = jnp.full((N, M, 1), -1)
    logp, entropy = logprobs.token_logprobs(
        picked,
        transformer.head(params, config),
        actions.target.reshape(-1),
        temperature=temperature,
        constraint=actions.constraint.reshape(-1) if constrained else None,
        allowed=allowed.reshape(N * M, -1) if constrained else None,
        free_tokens=free_tokens,
        mask=None if split else actions.action_mask.reshape(-1),
        chunk=chunk,
    )
    mask = actions.action_mask
    return jnp.where(mask, logp.reshape(N, M), 0.0), jnp.where(mask, entropy.reshape(N, M), 0.0)


def policy_loss(logp, entropy, batch: LossBatch, options: LossOptions, kl_coef, entropy_coef):
    """Weighted sum over the tokens of a micro-batch: clipped surrogate + KL penalty - entropy bonus.

    Returns (loss f32[], LossSums).
    """
    mask, turn = batch.actions.action_mask, batch.actions.turn
    old, behaviour, advantage = batch.logp_old, batch.logp_behaviour, batch.advantage
    if options.ratio == "sequence":
        mean = partial(algos.sequence_logprobs, mask=mask, segment=turn, segments=options.turns)
        used, old, behaviour = mean(logp), mean(old), mean(behaviour)
    else:
        used = logp
    off = jnp.broadcast_to(batch.off_policy[:, None], mask.shape)
    clip = dict(
        eps_low=options.eps_low,
        eps_high=options.eps_high,
        off_clip=options.off_clip,
        off_ratio=options.off_ratio,
        off_ratio_cap=options.off_ratio_cap,
    )
    surrogate = algos.clipped_surrogate(
        used, old, behaviour, advantage, dual_clip=options.dual_clip, off_policy=off, mask=mask, **clip
    )
    kl = jnp.where(mask, algos.kl_penalty(logp, batch.logp_ref, options.kl_kind), 0.0)
    per_token = surrogate + kl_coef * kl + algos.entropy_bonus(entropy, entropy_coef)
    loss = algos.weighted_sum(per_token, batch.weight)
    stop = jax.lax.stop_gradient
    on_weight = jnp.where(off, 0.0, batch.weight)
    gap = jnp.max(jnp.where(mask & ~off, jnp.abs(stop(logp) - batch.actions.logp), 0.0))
    sums = {
        "loss": stop(loss),
        "policy_loss_on": algos.weighted_sum(stop(surrogate), on_weight),
        "policy_loss_off": algos.weighted_sum(stop(surrogate), batch.weight - on_weight),
        "kl": algos.weighted_sum(stop(kl), batch.weight),
        "entropy": algos.weighted_sum(stop(entropy), batch.weight),
    }
    policy = algos.policy_sums(stop(used), old, behaviour, advantage, mask, off, **clip)
    return loss, LossSums(sums, gap, policy)


class LossSums(NamedTuple):
    """What a micro-batch adds to the metrics: weighted sums f32[], the largest sampler gap, and the policy's sums."""

    weighted: dict[str, jax.Array]
    sampler_gap: jax.Array
    policy: PolicySums


def merge_sums(a: LossSums, b: LossSums) -> LossSums:
    """Sums of two disjoint sets of tokens together."""
    weighted = {name: a.weighted[name] + b.weighted[name] for name in a.weighted}
    return LossSums(weighted, jnp.maximum(a.sampler_gap, b.sampler_gap), algos.merge(a.policy, b.policy))


@jax.jit
def loss_metrics(steps: Sequence[LossSums]) -> dict[str, jax.Array]:
    """Metrics f32[] of the optimizer steps on one batch: mean losses, and policy diagnostics over all their tokens.

    The sampler gap is that of the first step: later ones differ from the sampler because they have learned.
    """
    mean = {name: sum(s.weighted[name] for s in steps) / len(steps) for name in steps[0].weighted}
    mean["policy_loss"] = mean["policy_loss_on"] + mean["policy_loss_off"]
    policy = algos.policy_summary(reduce(algos.merge, [s.policy for s in steps]))
    return mean | policy | {"sampler_gap": steps[0].sampler_gap}


def accumulate(function, params, pieces: Sequence, counts: Sequence[int], merge):
    """Sums (gradient, sums) of `function(params, micro) -> (loss, sums)` over pieces of a batch, each in so many
    micro-batches."""
    gradient_of = jax.grad(function, has_aux=True)

    def add(total, micro):
        gradient, sums = gradient_of(params, micro)
        return jax.tree.map(jnp.add, total, gradient), sums

    def join(a, b):
        return jax.tree.map(jnp.add, a[0], b[0]), merge(a[1], b[1])

    def over(batch, count):
        if count == 1:
            return gradient_of(params, batch)
        zero = jax.tree.map(jnp.zeros_like, params)  # one gradient more is held than the micro-batch's, not two
        gradient, sums = jax.lax.scan(add, zero, micro_batches(batch, count))
        return gradient, reduce(merge, [jax.tree.map(lambda x: x[i], sums) for i in range(count)])  # noqa: B023

    return reduce(join, map(over, pieces, counts))


def apply_gradient(optimizer, state: AgentState, gradient) -> AgentState:
    """One optimizer step."""
    updates, opt_state = optimizer.update(gradient, state.opt_state, state.params)
    return AgentState(optax.apply_updates(state.params, updates), opt_state, state.updates + 1)

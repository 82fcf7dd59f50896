"""The value network of PPO: predicts the outcome return from what the agent saw before it acted."""

from functools import partial

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from rspo_jax import algos, sharding
from rspo_jax.learner import pad_rows
from rspo_jax.models import transformer, value
from rspo_jax.packing import ActionBatch, bucket
from rspo_jax.update import AgentState, accumulate, apply_gradient, make_optimizer, micro_batches, with_learning_rate


@flax.struct.dataclass
class ValueBatch:
    """actions with targets; f32[N, M]: returns to predict, values before this update, weight of each token."""

    actions: ActionBatch
    returns: jax.Array
    values_old: jax.Array
    weight: jax.Array


def action_values(params, config, attach, policy_params, base, actions: ActionBatch, remat=False) -> jax.Array:
    """Values f32[N, M] read at the token before each sampled token: what the agent knew when it chose it.

    params: {"head": ...} on the policy's own features (which get no gradient), or {"backbone": ..., "head": ...}.
    """
    backbone = params.get("backbone")
    source = jax.lax.stop_gradient(policy_params) if backbone is None else backbone
    features = transformer.hidden(attach(source, base), config, actions.tokens, None, remat=remat)
    before = jnp.maximum(actions.position - 1, 0)
    picked = jnp.take_along_axis(features, before[:, :, None], axis=1)
    return jnp.where(actions.action_mask, value.value(params["head"], picked), 0.0)


class Critic:
    """Jitted functions of the value network; holds no state. config: the configuration tree."""

    def __init__(self, policy, learner, config):
        self.policy, self.learner, self.config, self.mesh = policy, learner, config, learner.mesh
        self.optimizer = make_optimizer(_critic_optim(config))
        model, remat, clip = policy.config, config.model.remat, config.critic.value_clip or None
        predict = partial(action_values, config=model, attach=policy.attach, remat=remat)

        def values(params, policy_params, base, actions, count):
            out = jax.lax.map(
                lambda micro: predict(params, policy_params=policy_params, base=base, actions=micro),
                micro_batches(actions, count),
            )
            return jnp.swapaxes(out, 0, 1).reshape(-1, out.shape[-1])

        def step(state, policy_params, base, batch, learning_rate, count):
            def objective(params, micro):
                now = predict(params, policy_params=policy_params, base=base, actions=micro.actions)
                errors = algos.value_loss(now, micro.values_old, micro.returns, clip=clip)
                loss = algos.weighted_sum(errors, micro.weight)
                clipped = jnp.abs(now - micro.values_old) > (clip or jnp.inf)
                return loss, {
                    "value_loss": jax.lax.stop_gradient(loss),
                    "value_clip_fraction": algos.weighted_sum(clipped.astype(jnp.float32), micro.weight),
                }

            merge = partial(jax.tree.map, jnp.add)
            gradient, sums = accumulate(objective, state.params, batch, count, merge)
            norm = jnp.sqrt(sum(jnp.sum(jnp.square(g.astype(jnp.float32))) for g in jax.tree.leaves(gradient)))
            state = state.replace(opt_state=with_learning_rate(state.opt_state, learning_rate))
            return apply_gradient(self.optimizer, state, gradient), sums | {"value_grad_norm": norm}

        self._values = jax.jit(values, static_argnames="count")
        self._step = jax.jit(step, static_argnames="count", donate_argnums=0)

    def init(self, policy_params) -> AgentState:
        """A critic that values everything 0, on a copy of the policy's parameters (or on its features)."""
        params = {"head": value.init_value_head(self.policy.config.hidden_size)}
        if not self.config.critic.shared:
            params["backbone"] = jax.tree.map(jnp.copy, policy_params)
        params = sharding.shard_params(params, self.mesh)
        opt_state = sharding.shard_params(jax.jit(self.optimizer.init)(params), self.mesh)
        return AgentState(params, opt_state, sharding.shard_params(jnp.zeros((), jnp.int32), self.mesh))

    def values(self, state: AgentState, policy_params, actions: ActionBatch) -> np.ndarray:
        """f32[N, M], in units of reward."""
        rows = bucket(len(actions.episode), self.learner.row_multiple)
        placed = sharding.shard_batch(pad_rows(actions, rows), self.mesh)
        out = self._values(state.params, policy_params, self.policy.base, placed, count=self.learner.micro_count(rows))
        return np.asarray(out)[: len(actions.episode)]

    def update(self, state: AgentState, policy_params, batch: ValueBatch, key) -> tuple[AgentState, dict]:
        """config.critic.epochs passes over a batch, in minibatches as the policy's."""
        history = []
        for epoch in range(self.config.critic.epochs):
            for part in self.learner.split(batch, jax.random.fold_in(key, epoch)):
                rows = len(part.actions.episode)
                state, metrics = self._step(
                    state,
                    policy_params,
                    self.policy.base,
                    sharding.shard_batch(part, self.mesh),
                    self.config.critic.lr,
                    count=self.learner.micro_count(rows),
                )
                history.append(metrics)
        return state, {name: sum(m[name] for m in history) / len(history) for name in history[0]}


def first_of_turn(actions: ActionBatch) -> np.ndarray:
    """bool[N, M]: the first sampled token of each turn, where a turn-level value is read."""
    mask, turn = np.asarray(actions.action_mask), np.asarray(actions.turn)
    before = np.concatenate([np.full((len(turn), 1), -1), np.where(mask, turn, -1)[:, :-1]], axis=1)
    return mask & (turn != before)


def turn_values(values: np.ndarray, actions: ActionBatch, shape: tuple[int, int]) -> np.ndarray:
    """Values f32[B, T] of turns from those at action tokens, f32[N, M]. A turn in which nothing was sampled was no
    decision: it gets the value of the next turn (0 after the last)."""
    out, known = np.zeros(shape, np.float32), np.zeros(shape, bool)
    n, m = np.nonzero(first_of_turn(actions))
    b, t = np.asarray(actions.episode)[n], np.asarray(actions.turn)[n, m]
    out[b, t], known[b, t] = np.asarray(values)[n, m], True
    for t in range(shape[1] - 2, -1, -1):
        out[:, t] = np.where(known[:, t], out[:, t], out[:, t + 1])
    return out


def _critic_optim(config):
    optim = config.optim.copy_and_resolve_references()
    optim.lr = config.critic.lr
    return optim

"""The value network of PPO: predicts the outcome return from what the agent saw before it acted."""

from functools import partial
from typing import NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax

from rspo_jax import algos
from rspo_jax.algos.advantages import whiten_with_unit
from rspo_jax.learner import Forward, Learner, Rows, init_state
from rspo_jax.models import transformer
from rspo_jax.models.value import init_value_head, value
from rspo_jax.packing import ActionBatch, Shapes
from rspo_jax.trajectory import Trajectory, episode_return
from rspo_jax.update import AgentState, accumulate, apply_gradient, make_optimizer, micro_batches, with_learning_rate


@flax.struct.dataclass
class ValueBatch:
    """actions with targets; f32[N, M]: returns to predict, values before this update, weight of each token."""

    actions: ActionBatch
    returns: jax.Array
    values_old: jax.Array
    weight: jax.Array


class Estimate(NamedTuple):
    """What a critic says of a batch, f32[N, M]: the advantage of each sampled token, the return its value should have
    predicted, and bool[N, M] where a value is read."""

    advantage: np.ndarray
    returns: np.ndarray
    read: np.ndarray


class Critic:
    """Jitted functions of the value network; holds no state. config: the configuration tree."""

    def __init__(self, policy, learner: Learner, config):
        self.policy, self.learner, self.config, self.mesh = policy, learner, config, learner.mesh
        optim = config.optim.copy_and_resolve_references()
        optim.lr = config.critic.lr
        self.optimizer = make_optimizer(optim)

    def init(self, policy_params) -> AgentState:
        """A critic that values everything 0, on a copy of the policy's parameters (or on its features)."""
        params = {"head": init_value_head(self.policy.config.hidden_size)}
        if not self.config.critic.shared:
            params["backbone"] = jax.tree.map(jnp.copy, policy_params)
        return init_state(self.optimizer, params, self.mesh)

    def values(self, state: AgentState, policy_params, actions: ActionBatch, shapes=None) -> np.ndarray:
        """f32[N, M], in units of reward."""
        out = np.zeros(actions.target.shape, np.float32)
        for rows, part, count in self.learner.pieces(Rows(actions), shapes):
            computed = _values(
                state.params, policy_params, self.policy.base, part.actions, forward=self.learner.forward, count=count
            )
            out[rows, : computed.shape[1]] = np.asarray(computed)[: len(rows)]
        return out

    def update(self, state: AgentState, policy_params, batch: ValueBatch, key, shapes=None) -> tuple[AgentState, dict]:
        """config.critic.epochs passes over a batch, in minibatches as the policy's; `state` is donated."""
        shapes = Shapes() if shapes is None else shapes
        history = []
        for epoch in range(self.config.critic.epochs):
            for part in self.learner.split(batch, jax.random.fold_in(key, epoch)):
                _, pieces, counts = zip(*self.learner.pieces(part, shapes), strict=True)
                state, metrics = _step(
                    state,
                    policy_params,
                    self.policy.base,
                    pieces,
                    self.config.critic.lr,
                    forward=self.learner.forward,
                    optimizer=self.optimizer,
                    clip=self.config.critic.value_clip or None,
                    counts=counts,
                )
                history.append(metrics)
        return state, {name: sum(m[name] for m in history) / len(history) for name in history[0]}


def action_values(params, policy_params, base, actions: ActionBatch, forward: Forward, remat=False) -> jax.Array:
    """Values f32[N, M] read at the token before each sampled token: what the agent knew when it chose it.

    params: {"head": ...} on the policy's own features (which get no gradient), or {"backbone": ..., "head": ...}.
    """
    backbone = params.get("backbone")
    source = jax.lax.stop_gradient(policy_params) if backbone is None else backbone
    features = transformer.hidden(forward.attach(source, base), forward.model, actions.tokens, None, remat=remat)
    before = jnp.maximum(actions.position - 1, 0)
    picked = jnp.take_along_axis(features, before[:, :, None], axis=1)
    return jnp.where(actions.action_mask, value(params["head"], picked), 0.0)


@partial(jax.jit, static_argnames=("forward", "count"))
def _values(params, policy_params, base, actions, *, forward, count):
    def one(micro):
        return action_values(params, policy_params, base, micro, forward)

    out = jax.lax.map(one, micro_batches(actions, count))
    return jnp.swapaxes(out, 0, 1).reshape(-1, out.shape[-1])


@partial(jax.jit, static_argnames=("forward", "optimizer", "clip", "counts"), donate_argnames="state")
def _step(
    state: AgentState,
    policy_params,
    base,
    pieces: tuple[ValueBatch, ...],
    learning_rate,
    *,
    forward: Forward,
    optimizer: optax.GradientTransformation,
    clip: float | None,
    counts: tuple[int, ...],
):
    """One optimizer step on the pieces of a minibatch: (state, metrics f32[])."""

    def objective(params, micro):
        now = action_values(params, policy_params, base, micro.actions, forward, forward.remat)
        errors = algos.value_loss(now, micro.values_old, micro.returns, clip=clip)
        loss = algos.weighted_sum(errors, micro.weight)
        clipped = jnp.abs(now - micro.values_old) > (clip or jnp.inf)
        return loss, {
            "value_loss": jax.lax.stop_gradient(loss),
            "value_clip_fraction": algos.weighted_sum(clipped.astype(jnp.float32), micro.weight),
        }

    gradient, sums = accumulate(objective, state.params, pieces, counts, partial(jax.tree.map, jnp.add))
    state = state.replace(opt_state=with_learning_rate(state.opt_state, learning_rate))
    return apply_gradient(optimizer, state, gradient), sums | {"value_grad_norm": optax.tree.norm(gradient)}


def turn_estimate(trajectory: Trajectory, values, actions: ActionBatch, advantage, options) -> Estimate:
    """Turn-level GAE: values f32[N, M] count where a turn begins.

    advantage: the function (trajectory, values f32[B, T]) -> f32[B, T] of the registry.
    """
    at_turns = turn_values(values, actions, trajectory.reward.shape)
    returns = _gae_returns(trajectory.reward, at_turns, trajectory.mask, gamma=options.gamma, lam=options.lam)
    return Estimate(
        np.asarray(algos.turns_to_tokens(advantage(trajectory, at_turns), actions)),
        np.asarray(algos.turns_to_tokens(returns, actions)),
        first_of_turn(actions) & _grouped(trajectory, actions),
    )


@partial(jax.jit, static_argnames=("gamma", "lam"))
def _gae_returns(rewards, values, mask, *, gamma, lam):
    return algos.gae(rewards, values, mask, gamma=gamma, lam=lam)[1]


def token_estimate(trajectory: Trajectory, values, actions: ActionBatch, options) -> Estimate:
    """Token-level GAE (`algos.token_gae`), whitened over the sampled tokens, under the rules of the turn-level one: no
    advantage from a batch of equal returns, a floor under the divisor, penalties after all statistics."""
    read = np.asarray(actions.action_mask) & _grouped(trajectory, actions)
    out = _token_advantage(trajectory.replace(rows=None), values, actions, read, options)
    return Estimate(*jax.device_get(out), read)


@partial(jax.jit, static_argnums=4)
def _token_advantage(trajectory, values, actions, read, options):
    advantage, returns = algos.token_gae(episode_return(trajectory), values, actions)
    whitened, unit = whiten_with_unit(advantage, read, eps=options.eps, floor=options.whiten_floor)
    penalty = algos.turns_to_tokens(trajectory.penalty, actions) / jnp.maximum(unit, options.penalty_floor)
    advantage = jnp.where(algos.returns_vary(trajectory), whitened, 0.0) - penalty
    return jnp.where(read, advantage, 0.0), returns


def _grouped(trajectory: Trajectory, actions: ActionBatch) -> np.ndarray:
    """bool[N, 1]: rows of episodes that belong to a group; others were broken by their environment."""
    episode = np.asarray(actions.episode)
    return ((episode >= 0) & (np.asarray(trajectory.group)[episode] >= 0))[:, None]


def explained_variance(values, returns, read) -> float:
    """1 - var(returns - values) / var(returns) where values are read; 0 where the returns do not vary."""
    values, returns = np.asarray(values)[read], np.asarray(returns)[read]
    total = returns.var() if returns.size else 0.0
    return float(1.0 - (returns - values).var() / total) if total > 1e-12 else 0.0


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

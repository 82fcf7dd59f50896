"""Scalar heads on hidden states: a critic's value, and the per-turn reward of a process reward model.

A head is a small tree of its own, kept beside the backbone's parameters: {"backbone": params, "head": head} where the
network owns its backbone (a copy of the policy's, or a LoRA adapter on the shared base), or the head alone where it
reads the policy's hidden states. Heads are f32 whatever the backbone is.
"""

import jax
import jax.numpy as jnp


def init_value_head(width: int) -> dict:
    """A head that values every state 0: {"kernel": f32[D], "bias": f32[]}. Zero needs no key and lets returns lead."""
    return {"kernel": jnp.zeros(width), "bias": jnp.zeros(())}


def value(head: dict, hidden: jax.Array) -> jax.Array:
    """Values f32[...] of hidden states [..., D]."""
    return jnp.einsum("...d,d->...", hidden, head["kernel"], preferred_element_type=jnp.float32) + head["bias"]


def init_reward_head(key: jax.Array, width: int, inner: int) -> dict:
    """A two-layer perceptron D -> inner -> 1 whose first output is 0."""
    return {
        "up": {"kernel": width**-0.5 * jax.random.normal(key, (width, inner)), "bias": jnp.zeros(inner)},
        "down": {"kernel": jnp.zeros(inner), "bias": jnp.zeros(())},
    }


def turn_reward(head: dict, hidden: jax.Array) -> jax.Array:
    """Process reward tanh(MLP(h)) in (-1, 1), f32[...], of the hidden states [..., D] of turns' last tokens.

    Source: SPA-RL, arXiv 2505.20732. The rewards of an episode's turns sum to its predicted outcome.
    """
    x = jnp.einsum("...d,di->...i", hidden, head["up"]["kernel"], preferred_element_type=jnp.float32)
    x = jax.nn.relu(x + head["up"]["bias"])
    return jnp.tanh(x @ head["down"]["kernel"] + head["down"]["bias"])


def last_of_turn(hidden: jax.Array, turn: jax.Array, mask: jax.Array, turns: int) -> tuple[jax.Array, jax.Array]:
    """Hidden state of the last token of each turn: ([N, turns, D], bool[N, turns]: the turn has a token).

    hidden [N, L, D], turn i32[N, L] in [0, turns), mask bool[N, L] marks the tokens that count (the sampled ones).
    """
    positions = jnp.where(mask, jnp.arange(turn.shape[1]), -1)
    of_turn = jnp.where(turn[:, None, :] == jnp.arange(turns)[:, None], positions[:, None, :], -1)
    last = jnp.max(of_turn, axis=2)
    return jnp.take_along_axis(hidden, jnp.maximum(last, 0)[..., None], axis=1), last >= 0

"""Value and reward heads."""

import jax
import jax.numpy as jnp
import numpy as np

from rspo_jax import models


def test_a_new_value_head_says_zero_and_then_is_affine():
    states = jax.random.normal(jax.random.key(0), (2, 3, 4), jnp.bfloat16)
    assert (models.value(models.init_value_head(4), states) == 0).all()
    head = {"kernel": jnp.array([1.0, 2.0, 0.0, -1.0]), "bias": jnp.float32(0.5)}
    got = models.value(head, jnp.array([[1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 2.0]], jnp.bfloat16))
    np.testing.assert_array_equal(got, [2.5, -1.5])
    assert got.dtype == jnp.float32 and models.value(head, states).shape == (2, 3)


def test_turn_rewards_stay_inside_one_and_can_be_fitted():
    """Sums over three turns fit outcomes in [0, 1] by plain gradient descent, as a process reward model is trained."""
    states = jax.random.normal(jax.random.key(0), (16, 3, 8))
    outcomes = (jnp.arange(16) % 2).astype(jnp.float32)
    head = models.init_reward_head(jax.random.key(1), 8, 32)
    assert (models.turn_reward(head, states) == 0).all()

    @jax.jit
    def step(head):
        def loss(head):
            return jnp.mean((models.turn_reward(head, states).sum(axis=1) - outcomes) ** 2)

        value, grads = jax.value_and_grad(loss)(head)
        return jax.tree.map(lambda p, g: p - 0.05 * g, head, grads), value

    first = step(head)[1]
    for _ in range(300):
        head, last = step(head)
    assert last < 0.2 * first
    assert np.abs(models.turn_reward(head, 100 * states)).max() <= 1


def test_last_of_turn_takes_the_last_counted_token_of_each_turn():
    states = jnp.arange(6.0)[None, :, None]
    turn = jnp.array([[0, 0, 1, 1, 1, 2]])
    mask = jnp.array([[False, True, True, True, False, False]])
    picked, present = models.last_of_turn(states, turn, mask, turns=3)
    np.testing.assert_array_equal(present, [[True, True, False]])
    np.testing.assert_array_equal(picked[0, :2, 0], [1, 3])

"""Theory on a small tabular decision process, where every expectation and gradient is an exact finite sum.

Three states, two actions, three turns, deterministic transitions: 8 trajectories in all. The policy is a table of
logits.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rspo_jax import algos
from rspo_jax.trajectory import Trajectory

STATES, ACTIONS, TURNS = 3, 2, 3
NEXT = np.array([[1, 2], [0, 2], [2, 1]])  # state, action -> state
ACTION = np.array(list(itertools.product(range(ACTIONS), repeat=TURNS)))  # [8, 3]
STATE = np.zeros_like(ACTION)
for _t in range(1, TURNS):
    STATE[:, _t] = NEXT[STATE[:, _t - 1], ACTION[:, _t - 1]]
SUCCESS = np.array([0, 0, 1, 0, 0, 1, 0, 0], np.float32)  # by trajectory
REWARD = np.zeros(ACTION.shape, np.float32)
REWARD[:, -1] = SUCCESS
MASK = np.ones(ACTION.shape, bool)

THETA = jax.random.normal(jax.random.key(1), (STATES, ACTIONS))
OTHER = jax.random.normal(jax.random.key(2), (STATES, ACTIONS))


def logp(theta):
    """log pi(a_t | s_t) of every turn of every trajectory: f32[8, 3]."""
    return jax.nn.log_softmax(theta)[STATE, ACTION]


def probability(theta):
    return jnp.exp(logp(theta).sum(axis=1))


def value(theta):
    """Exact success rate."""
    return probability(theta) @ SUCCESS


TRUE_GRADIENT = jax.grad(value)(THETA)


def expected_gradient(advantage, *, theta=THETA, old=THETA, behaviour=THETA, **options):
    """-E over trajectories of pi_B of the gradient of the summed loss; advantage f32[8, 3] or f32[8, 1]."""
    weight = jax.lax.stop_gradient(probability(behaviour))[:, None]
    advantage = jnp.broadcast_to(jnp.asarray(advantage, jnp.float32), ACTION.shape)

    def loss(theta):
        return jnp.sum(weight * algos.clipped_surrogate(logp(theta), logp(old), logp(behaviour), advantage, **options))

    return -jax.grad(loss)(theta)


def close(a, b, tolerance=2e-5):
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-4, atol=tolerance)


def expected_over_groups(estimator, size):
    """E over groups of `size` independent episodes of sum_i A_i grad log p_i / size."""
    members = np.array(list(itertools.product(range(len(ACTION)), repeat=size)))  # [8^size, size]
    advantage = jax.vmap(lambda r: estimator(r, jnp.zeros(size, jnp.int32)))(SUCCESS[members])
    weight = probability(THETA)[members].prod(axis=1, keepdims=True) * advantage / size
    per_trajectory = jnp.zeros(len(ACTION)).at[members].add(weight)
    return jax.grad(lambda theta: per_trajectory @ logp(theta).sum(axis=1))(THETA)


def test_the_process_is_what_the_docstring_says():
    assert float(probability(THETA).sum()) == pytest.approx(1, abs=1e-6)
    assert 0.02 < float(value(THETA)) < 0.98 and float(jnp.abs(TRUE_GRADIENT).max()) > 0.01


def test_on_policy_successes_alone_give_the_direction_of_the_true_gradient():
    success_only = expected_gradient(SUCCESS[:, None])
    close(success_only, TRUE_GRADIENT)
    conditional = success_only / value(THETA)  # sampling successes only scales it
    cosine = jnp.vdot(conditional, TRUE_GRADIENT) / jnp.linalg.norm(conditional) / jnp.linalg.norm(TRUE_GRADIENT)
    assert float(cosine) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("size", [2, 3])
def test_leave_one_out_is_unbiased(size):
    close(expected_over_groups(algos.rloo_advantage, size), TRUE_GRADIENT)


@pytest.mark.parametrize("size", [2, 3])
def test_group_mean_without_std_is_unbiased_up_to_the_factor_of_its_own_share(size):
    close(expected_over_groups(algos.dr_grpo_advantage, size), (size - 1) / size * TRUE_GRADIENT)


def test_gae_with_lambda_one_is_unbiased_for_any_critic():
    critic = jax.random.normal(jax.random.key(5), (STATES, TURNS))[STATE, np.arange(TURNS)]
    advantages, _ = algos.gae(REWARD, critic, MASK, gamma=1.0, lam=1.0)
    close(expected_gradient(advantages), TRUE_GRADIENT)


@pytest.mark.parametrize("lam", [0.0, 0.7])
def test_gae_is_unbiased_for_any_lambda_with_the_exact_critic(lam):
    def exact(trajectory, turn):  # expected success given the actions before `turn`
        same = (ACTION[:, :turn] == ACTION[trajectory, :turn]).all(axis=1)
        p = np.asarray(probability(THETA)) * same
        return (p * SUCCESS).sum() / p.sum()

    critic = np.array([[exact(i, t) for t in range(TURNS)] for i in range(len(ACTION))], np.float32)
    advantages, _ = algos.gae(REWARD, critic, MASK, gamma=1.0, lam=lam)
    close(expected_gradient(advantages), TRUE_GRADIENT)


def test_a_biased_critic_with_small_lambda_is_biased():
    critic = jax.random.normal(jax.random.key(5), (STATES, TURNS))[STATE, np.arange(TURNS)]
    advantages, _ = algos.gae(REWARD, critic, MASK, gamma=1.0, lam=0.0)
    assert np.abs(expected_gradient(advantages) - TRUE_GRADIENT).max() > 0.01


@pytest.mark.parametrize("off_clip", ["generalized", "standard", "decoupled"])
@pytest.mark.parametrize("scale", [0.0, 0.05, 1.0])
def test_off_policy_equals_on_policy_when_the_behaviour_is_the_old_policy(off_clip, scale):
    theta = THETA + scale * OTHER  # also after some updates, inside and outside the clip interval
    on = expected_gradient(SUCCESS[:, None] - 0.3, theta=theta)
    close(on, expected_gradient(SUCCESS[:, None] - 0.3, theta=theta, off_clip=off_clip), 1e-7)
    old_ratio = expected_gradient(SUCCESS[:, None] - 0.3, theta=theta, off_ratio="old")
    close(on, old_ratio, 1e-7)


def bandit_gradient(**options):
    """One decision, in state 0: (expected gradient at pi = pi_old under another policy's samples, true gradient)."""
    advantage = jnp.array([1.0, -0.5])
    table = jax.nn.log_softmax
    old, behaviour = THETA[0], jnp.array([-2.0, 2.0])  # prefers the bad action
    weight = jnp.exp(table(behaviour))

    def loss(logits):
        per_action = algos.clipped_surrogate(table(logits), table(old), table(behaviour), advantage, **options)
        return jnp.sum(weight * per_action)

    return -jax.grad(loss)(old), jax.grad(lambda logits: jnp.exp(table(logits)) @ advantage)(old)


def test_the_shifted_clip_corrects_another_policys_samples_exactly():
    got, true = bandit_gradient(dual_clip=None)
    close(got, true)


def test_the_standard_clip_ignores_good_actions_that_the_behaviour_policy_made_rare():
    got, true = bandit_gradient(dual_clip=None, off_clip="standard")
    assert float(jnp.abs(true).max()) > 0.05 and not np.asarray(got).any()


def test_a_frozen_buffer_with_another_dense_reward_leaves_the_update_bit_identical():
    def update(dense):
        stored = Trajectory(
            reward=dense, outcome_reward=10 * REWARD, dense_reward=dense, mask=MASK, state=STATE,
            group=np.array([0, 0, 0, 0, 1, 1, 1, 1]), success=SUCCESS > 0, penalty=np.zeros_like(REWARD),
        )  # fmt: skip
        outcome = algos.swap_reward(stored, "outcome")
        advantage = algos.ADVANTAGES["gigpo"](outcome, algos.Options(), None)
        return expected_gradient(advantage, behaviour=OTHER)

    dense = np.random.default_rng(0).normal(size=(2, *REWARD.shape)).astype(np.float32)
    first, second = update(dense[0]), update(dense[1])
    assert np.array_equal(first, second) and np.abs(first).max() > 0


@pytest.mark.parametrize("kind", ["k1", "k3"])
def test_kl_estimators_are_unbiased(kind):
    p, q = jax.nn.log_softmax(THETA[0]), jax.nn.log_softmax(OTHER[0])
    close(jnp.exp(p) @ algos.kl_penalty(p, q, kind), jnp.exp(p) @ (p - q))


def test_gradients_of_the_kl_estimators_as_losses():
    p, q = jax.nn.log_softmax, jax.nn.log_softmax(OTHER[0])
    weight = jnp.exp(p(THETA[0]))
    gradient = {
        kind: jax.grad(lambda x, kind=kind: weight @ algos.kl_penalty(p(x), q, kind))(THETA[0])
        for kind in ("k1", "k2", "k3")
    }
    forward = jax.grad(lambda x: jnp.exp(p(x)) @ (p(x) - q))(THETA[0])
    reverse = jax.grad(lambda x: jnp.exp(q) @ (q - p(x)))(THETA[0])
    close(gradient["k1"], 0 * forward)  # no signal as a loss
    close(gradient["k2"], forward)  # KL(pi || ref)
    close(gradient["k3"], reverse)  # that of KL(ref || pi)


def test_following_the_expected_gradient_of_a_group_estimator_solves_the_process():
    members = np.array(list(itertools.product(range(len(ACTION)), repeat=2)))
    advantage = jax.vmap(lambda r: algos.grpo_advantage(r, jnp.zeros(2, jnp.int32)))(SUCCESS[members])

    def step(_, theta):
        def loss(x):
            per_turn = algos.clipped_surrogate(
                logp(x)[members], logp(theta)[members], logp(theta)[members],
                jnp.broadcast_to(advantage[..., None], (*members.shape, TURNS)),
            )  # fmt: skip
            return jnp.sum(jax.lax.stop_gradient(probability(theta))[members].prod(axis=1) * per_turn.sum((1, 2)))

        return theta - 0.3 * jax.grad(loss)(theta)

    trained = jax.jit(lambda theta: jax.lax.fori_loop(0, 300, step, theta))(THETA)
    assert float(value(trained)) > 0.9 > float(value(THETA))

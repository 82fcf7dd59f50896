"""Advantage estimators: hand-worked numbers and properties."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rspo_jax import algos
from rspo_jax.trajectory import TokenRows

B, T = 8, 5

returns_B = hnp.arrays(np.float32, B, elements=st.sampled_from([0.0, 10.0, 2.5, -1.0, 0.1]))
groups_B = hnp.arrays(np.int32, B, elements=st.sampled_from([-7, 0, 3, 1000]))
rewards_BT = hnp.arrays(np.float32, (B, T), elements=st.sampled_from([0.0, 10.0, 1.0, -0.5, 0.1]))
masks_BT = hnp.arrays(np.int32, B, elements=st.integers(1, T)).map(lambda n: np.arange(T)[None] < n[:, None])
states_BT = hnp.arrays(np.int32, (B, T), elements=st.integers(-1, 2))
few = settings(max_examples=25, deadline=None)


def close(a, b, tolerance=1e-5):
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=tolerance, atol=tolerance)


def test_grpo_divides_by_the_unbiased_std():
    # Group 4: 10, 0, 0, 10 has mean 5 and std sqrt(100 / 3) = 5.7735; group -2: 1, 2, 3 has mean 2 and std 1.
    a = algos.grpo_advantage([10, 1, 0, 2, 0, 10, 3], [4, -2, 4, -2, 4, 4, -2])
    close(a, [0.8660254, -1, -0.8660254, 0, -0.8660254, 0.8660254, 1])
    close(algos.grpo_advantage([10, 0, 0, 10, 1], [4, 4, 4, 4, 9], norm="none"), [5, -5, -5, 5, 0])


def test_rloo_subtracts_the_mean_of_the_others():
    close(algos.rloo_advantage([10, 0, 2, 7], [1, 1, 1, 2]), [10 - 1, 0 - 6, 2 - 5, 0])


def test_dr_grpo_subtracts_the_mean_only():
    close(algos.dr_grpo_advantage([10, 0, 2, 7], [1, 1, 1, 2]), [6, -4, -2, 0])


@pytest.mark.parametrize("estimator", [algos.grpo_advantage, algos.rloo_advantage, algos.dr_grpo_advantage])
def test_group_of_one_equal_returns_and_padding_give_exactly_zero(estimator):
    a = estimator([7.0, 10.0, 10.0, 0.0, 0.0, 3.0, 9.0], [0, 1, 1, 2, 2, -1, -1])
    assert np.array_equal(a, np.zeros(7))


def test_returns_equal_up_to_rounding_give_exactly_zero():
    dense = np.array([[0.1] * 7 + [0.2], [0.2] + [0.1] * 7], np.float32)
    returns = np.add.accumulate(dense, axis=1)[:, -1] * np.float32(10 / 3)
    returns = np.append(returns, returns[0] * (1 + 2e-7)).astype(np.float32)
    assert len(set(returns.tolist())) > 1, "the example must differ in the last bits"
    assert np.array_equal(algos.grpo_advantage(returns, [5, 5, 5]), np.zeros(3))


def test_padding_does_not_change_the_statistics():
    a = algos.grpo_advantage([10, 0, 0], [1, 1, 1])
    padded = algos.grpo_advantage([10, 0, 99, 0, np.nan], [1, 1, -1, 1, -1])
    assert np.array_equal(padded, [a[0], a[1], 0, a[2], 0])


def test_gigpo_compares_within_anchor_states_over_episodes_and_revisits():
    rewards = [[0, 0, 10], [0, 0, 0]]
    mask = [[True, True, True], [True, True, False]]
    state = [[1, 2, 1], [1, 3, 7]]
    # gamma 0.5: returns to go 2.5, 5, 10 and 0, 0. State 1 holds 2.5, 10 (a revisit) and 0: mean 25/6.
    step = np.array([[2.5 - 25 / 6, 0, 10 - 25 / 6], [-25 / 6, 0, 0]])
    episode = np.array([[5, 5, 5], [-5, -5, 0]])
    a = algos.gigpo_advantage(rewards, mask, [3, 3], state, gamma=0.5, omega=2.0, norm="none")
    close(a, episode + 2.0 * step)
    step_std = np.std([2.5, 10, 0], ddof=1)
    a = algos.gigpo_advantage(rewards, mask, [3, 3], state, gamma=0.5, norm="std")
    close(a, episode / np.std([10, 0], ddof=1) + step / step_std)


def test_gigpo_does_not_compare_states_of_different_groups():
    rewards = [[10.0], [0.0], [4.0], [4.0]]
    a = algos.gigpo_advantage(rewards, np.ones((4, 1), bool), [0, 0, 1, 1], np.zeros((4, 1), int), norm="none")
    close(a[:, 0], [10, -10, 0, 0])


def test_gigpo_weighs_a_long_episode_as_a_short_one():
    mask = np.array([[True] * 5, [True] + [False] * 4, [True] + [False] * 4])
    rewards = np.zeros((3, 5))
    rewards[0, 4] = 9.0
    a = algos.gigpo_advantage(rewards, mask, [0, 0, 0], np.arange(15).reshape(3, 5), norm="none")
    close(a[:, 0], [6, -3, -3])


def test_gae_hand_worked():
    # gamma 0.5, lambda 0.5. Turn 1: 4 - 2 = 2. Turn 0: 1 + 0.5 * 2 - 3 + 0.25 * 2 = -0.5.
    advantages, returns = algos.gae([[1, 4, 99]], [[3, 2, 99]], [[True, True, False]], gamma=0.5, lam=0.5)
    close(advantages, [[-0.5, 2, 0]])
    close(returns, [[2.5, 4, 0]])


def test_gae_with_lambda_one_is_return_minus_value():
    key = jax.random.key(0)
    rewards, values = jax.random.normal(key, (2, 4, 6))
    mask = jnp.arange(6)[None] < jnp.array([6, 3, 1, 4])[:, None]
    advantages, returns = algos.gae(rewards, values, mask, gamma=0.9, lam=1.0)
    to_go = algos.discounted_returns(rewards, mask, gamma=0.9)
    close(advantages, jnp.where(mask, to_go - values, 0))
    close(returns, to_go)


def test_token_gae_is_gae_with_gamma_and_lambda_one_inside_a_turn():
    # Episode 1, one row, two turns of two tokens; the return 10 lies on the last token of each turn.
    rows = _rows(action_mask=[[False, True, True, True, True]], turn=[[0, 0, 0, 1, 1]], episode=[1])
    values = np.array([[9.0, 1.0, 2.0, 3.0, 4.0]], np.float32)
    advantages, returns = algos.token_gae([0.0, 10.0], values, rows)
    expected = []
    for first in (1, 3):
        deltas = [values[0, first + 1] - values[0, first], 10.0 - values[0, first + 1]]
        expected += [sum(deltas), deltas[1]]
    close(advantages, [[0, *expected]])
    close(returns, [[0, 10, 10, 10, 10]])


def _rows(action_mask, turn, episode):
    action_mask, turn = np.asarray(action_mask), np.asarray(turn)
    zeros = np.zeros(turn.shape, np.int32)
    allowed = np.zeros((*turn.shape, 0), np.int32)
    return TokenRows(
        zeros, action_mask, action_mask, turn, np.asarray(episode), zeros.astype(np.float32), zeros, allowed
    )


def test_whiten_gives_mean_zero_and_unit_variance_over_the_mask():
    x = np.array([1.0, 2.0, 6.0, np.nan])
    w = algos.whiten(x, [True, True, True, False])
    std = np.std([1, 2, 6], ddof=1)
    close(w, [-2 / std, -1 / std, 3 / std, 0])
    close(algos.whiten(x, [True, True, True, False], floor=10.0), [-0.2, -0.1, 0.3, 0])
    assert np.array_equal(algos.whiten([3.0, 3.0], [True, True]), [0, 0])
    assert np.array_equal(algos.whiten([3.0, 4.0], [False, False]), [0, 0])


def test_reinforce_pp_gives_every_episode_the_same_weight():
    mask = np.array([[True] * 5, [True] + [False] * 4, [True] + [False] * 4])
    rewards = np.zeros((3, 5))
    rewards[0, 4] = 9.0
    a = algos.reinforce_pp_advantage(rewards, mask)
    std = np.std([9, 0, 0], ddof=1)
    close(a, np.where(mask, np.array([[6.0], [-3.0], [-3.0]]) / std, 0))


def test_mixed_groups_are_those_with_variance():
    mixed = algos.mixed_groups([10, 0, 10, 10, 0, 0, 1, 2], [5, 5, 6, 6, 7, 7, 8, -1])
    assert mixed.tolist() == [True, True, False, False, False, False, False, False]


def test_unknown_norm_is_named():
    with pytest.raises(ValueError, match='norm must be "std" or "none", got \'var\''):
        algos.grpo_advantage([1.0], [0], norm="var")


def test_shapes_that_do_not_belong_together_are_refused():
    with pytest.raises(AssertionError):
        algos.grpo_advantage(np.zeros(3), np.zeros(4, int))
    with pytest.raises(AssertionError):
        algos.gigpo_advantage(np.zeros((2, 3)), np.ones((2, 3), bool), [0, 0, 0], np.zeros((2, 3), int))


ESTIMATORS = {
    "grpo": algos.grpo_advantage,
    "grpo_none": functools.partial(algos.grpo_advantage, norm="none"),
    "rloo": algos.rloo_advantage,
}
GIGPO = {
    "std": jax.jit(functools.partial(algos.gigpo_advantage, norm="std")),
    "none": jax.jit(functools.partial(algos.gigpo_advantage, norm="none")),
}


@pytest.mark.parametrize("name", ESTIMATORS)
@few
@given(returns=returns_B, group=groups_B, seed=st.integers(0, 99))
def test_episode_estimators_ignore_order_and_group_names(name, returns, group, seed):
    estimator = ESTIMATORS[name]
    a = estimator(returns, group)
    order = np.random.default_rng(seed).permutation(B)
    close(estimator(returns[order], group[order]), np.asarray(a)[order])
    assert np.array_equal(estimator(returns, -3 * group + 11), a)


@pytest.mark.parametrize("name", ESTIMATORS)
@few
@given(returns=returns_B, group=groups_B)
def test_episode_estimators_sum_to_zero_in_each_group_and_jit_changes_nothing(name, returns, group):
    a = np.asarray(ESTIMATORS[name](returns, group))
    for g in set(group.tolist()):
        assert abs(a[group == g].sum()) < 1e-4
    close(jax.jit(ESTIMATORS[name])(returns, group), a, 1e-6)


@pytest.mark.parametrize("norm", GIGPO)
@few
@given(rewards=rewards_BT, mask=masks_BT, group=groups_B, state=states_BT, seed=st.integers(0, 99))
def test_gigpo_ignores_order_names_and_masked_content(norm, rewards, mask, group, state, seed):
    gigpo = GIGPO[norm]
    a = np.asarray(gigpo(rewards, mask, group, state))
    order = np.random.default_rng(seed).permutation(B)
    close(gigpo(rewards[order], mask[order], group[order], state[order]), a[order])
    close(gigpo(rewards, mask, 11 - 3 * group, 5 * state - 40), a)
    junk = np.where(mask, rewards, np.nan), np.where(mask, state, seed)
    assert np.array_equal(gigpo(junk[0], mask, group, junk[1]), a)
    assert (a[~mask] == 0).all()
    close(algos.gigpo_advantage(rewards, mask, group, state, norm=norm), a)


@few
@given(rewards=rewards_BT, mask=masks_BT, group=groups_B, state=states_BT)
def test_gigpo_is_unchanged_by_padding_rows_and_turns(rewards, mask, group, state):
    a = np.asarray(GIGPO["std"](rewards, mask, group, state))
    wide = [np.pad(x, ((0, 2), (1, 3))) for x in (rewards, mask, state)]
    padded = GIGPO["std"](wide[0], wide[1], np.append(group, [-1, group[0]]), wide[2])
    close(padded[:B, 1 : T + 1], a)
    assert not np.asarray(padded)[B:].any()


@few
@given(rewards=rewards_BT, mask=masks_BT, values=rewards_BT)
def test_gae_skips_masked_turns_wherever_they_are(rewards, mask, values):
    estimate = jax.jit(functools.partial(algos.gae, gamma=0.9, lam=0.8))
    a, r = (np.asarray(x) for x in estimate(rewards, values, mask))
    columns = np.array([0, 2, 3, 5, 6])  # the same turns with gaps between them
    wide = [np.zeros((B, 8), x.dtype) for x in (rewards, values, mask)]
    for target, source in zip(wide, (rewards, values, mask), strict=True):
        target[:, columns] = source
    wide_a, wide_r = estimate(*wide)
    close(np.asarray(wide_a)[:, columns], a)
    close(np.asarray(wide_r)[:, columns], r)


def test_discounted_returns_do_not_discount_over_gaps():
    mask = [[True, False, True, False], [True, True, False, False]]
    returns = algos.discounted_returns([[1, 99, 4, 99], [2, 8, 99, 99]], mask, gamma=0.5)
    close(returns, [[3, 0, 4, 0], [6, 8, 0, 0]])

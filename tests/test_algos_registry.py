"""Reward swap, registry and the penalty for invalid responses."""

import jax
import numpy as np
import pytest

from rspo_jax import algos
from rspo_jax.trajectory import Trajectory

B, T = 8, 4
MASK = np.arange(T)[None] < np.array([4, 2, 3, 4, 1, 4, 2, 3])[:, None]


def make_trajectory(seed=0, outcome=None, penalty=None):
    rng = np.random.default_rng(seed)
    if outcome is None:
        outcome = np.zeros((B, T), np.float32)
        outcome[[0, 3, 6], MASK.sum(1)[[0, 3, 6]] - 1] = 10.0
    return Trajectory(
        reward=outcome.copy(),
        outcome_reward=outcome,
        dense_reward=rng.uniform(size=(B, T)).astype(np.float32),
        penalty=np.zeros((B, T), np.float32) if penalty is None else penalty,
        mask=MASK,
        state=rng.integers(0, 3, (B, T)).astype(np.int32),
        group=np.array([5, 5, 5, 5, 2, 2, 2, 2], np.int32),
        success=outcome.sum(1) > 0,
    )


def advantage_of(name, trajectory, **options):
    values = np.full((B, T), 3.0, np.float32)
    return np.asarray(algos.ADVANTAGES[name](trajectory, algos.Options(**options), values))


def test_swap_outcome_is_exact_and_leaves_the_input_alone():
    trajectory = make_trajectory().replace(reward=np.full((B, T), 7.0, np.float32))
    before = jax.tree.map(np.copy, trajectory)
    swapped = algos.swap_reward(trajectory, "outcome")
    assert np.array_equal(swapped.reward, trajectory.outcome_reward)
    assert swapped is not trajectory and swapped.reward is not trajectory.outcome_reward
    for a, b in zip(jax.tree.leaves(trajectory), jax.tree.leaves(before), strict=True):
        assert np.array_equal(a, b)
    rest = swapped.replace(reward=trajectory.reward)
    assert all(a is b for a, b in zip(jax.tree.leaves(rest), jax.tree.leaves(trajectory), strict=True))


def test_swap_dense_and_mixed():
    t = make_trajectory()
    np.testing.assert_allclose(algos.swap_reward(t, "dense").reward, t.dense_reward)
    np.testing.assert_allclose(algos.swap_reward(t, "dense", dense_scale=10.0).reward, 10 * t.dense_reward)
    mixed = algos.swap_reward(t, "mixed", mix=0.5, dense_scale=10.0).reward
    np.testing.assert_allclose(mixed, t.outcome_reward + 5 * t.dense_reward, rtol=1e-6)


def test_swap_noise_is_seeded_masked_and_never_in_the_outcome():
    t = make_trajectory()
    key = jax.random.key(3)
    noisy = [algos.swap_reward(t, "dense", noise_std=0.3, key=key).reward for _ in range(2)]
    assert np.array_equal(*noisy)
    noise = np.asarray(noisy[0]) - t.dense_reward
    assert not noise[~MASK].any() and (noise[MASK] != 0).all()
    scaled = algos.swap_reward(t, "dense", noise_std=0.3, dense_scale=10.0, key=key).reward
    np.testing.assert_allclose(scaled, 10 * np.asarray(noisy[0]), rtol=1e-5)
    assert np.array_equal(algos.swap_reward(t, "outcome", noise_std=0.3, key=key).reward, t.outcome_reward)
    with pytest.raises(ValueError, match="needs a PRNG key"):
        algos.swap_reward(t, "dense", noise_std=0.3)
    with pytest.raises(ValueError, match="one of outcome, dense, mixed"):
        algos.swap_reward(t, "both")


@pytest.mark.parametrize("name", algos.ADVANTAGES)
def test_every_entry_has_the_shape_masks_and_works_under_jit(name):
    t = make_trajectory(penalty=0.1 * MASK.astype(np.float32))
    a = advantage_of(name, t)
    assert a.shape == (B, T) and not a[~MASK].any() and np.abs(a).max() > 0.3
    jitted = jax.jit(algos.ADVANTAGES[name], static_argnums=1)(t, algos.Options(), np.full((B, T), 3.0, np.float32))
    np.testing.assert_allclose(jitted, a, atol=1e-5)


@pytest.mark.parametrize("name", algos.ADVANTAGES)
@pytest.mark.parametrize("norm", ["std", "none"])
def test_penalty_hits_its_turn_only_and_stays_small_in_an_all_fail_batch(name, norm):
    penalty = np.zeros((B, T), np.float32)
    penalty[0, 1] = penalty[5, 3] = 0.1
    failed = np.zeros((B, T), np.float32)
    a = advantage_of(name, make_trajectory(outcome=failed, penalty=penalty), norm=norm)
    assert not a[penalty == 0].any()
    assert (a[penalty > 0] < 0).all() and (a >= -0.1 - 1e-6).all()
    plain, punished = (advantage_of(name, make_trajectory(penalty=p), norm=norm) for p in (0 * penalty, penalty))
    assert np.array_equal(plain[penalty == 0], punished[penalty == 0])
    assert (punished[penalty > 0] < plain[penalty > 0]).all()


def test_penalty_units():
    penalty = np.where(MASK, 0.1, 0.0).astype(np.float32)
    plain, punished = make_trajectory(), make_trajectory(penalty=penalty)
    # Group 5 has two successes in four: std 5.77, above the floor of 5. Group 2 has one: std 5.0.
    change = advantage_of("grpo", plain) - advantage_of("grpo", punished)
    np.testing.assert_allclose(change[MASK], (penalty / np.array([5.7735] * 4 + [5.0] * 4)[:, None])[MASK], rtol=1e-3)
    change = advantage_of("rloo", plain) - advantage_of("rloo", punished)
    np.testing.assert_allclose(change[MASK], 0.1, rtol=1e-3)


def test_ppo_learns_nothing_from_a_batch_without_variance_in_the_returns():
    noise = np.random.default_rng(0).normal(size=(B, T)).astype(np.float32) * 0.01
    for outcome in (0.0, 10.0):
        reward = np.zeros((B, T), np.float32)
        reward[np.arange(B), MASK.sum(1) - 1] = outcome
        a = algos.ADVANTAGES["ppo"](make_trajectory(outcome=reward), algos.Options(), outcome + noise)
        assert not np.asarray(a).any()


def test_ppo_does_not_amplify_the_noise_of_a_critic_that_predicts_the_outcomes():
    t = make_trajectory()
    exact = t.outcome_reward.sum(1, keepdims=True) * np.ones((1, T), np.float32)
    noise = np.random.default_rng(0).normal(size=(B, T)).astype(np.float32) * 0.01
    a = algos.ADVANTAGES["ppo"](t, algos.Options(gamma=1.0), exact + noise)
    assert np.abs(a).max() < 0.15


def test_ppo_whitens_over_the_turns_that_happened():
    a = advantage_of("ppo", make_trajectory())[MASK]
    assert a.mean() == pytest.approx(0, abs=1e-5) and a.std(ddof=1) == pytest.approx(1, abs=1e-4)


def test_ppo_names_the_missing_values():
    with pytest.raises(ValueError, match='"ppo" needs values'):
        algos.ADVANTAGES["ppo"](make_trajectory(), algos.Options(), None)


@pytest.mark.parametrize("name", algos.ADVANTAGES)
def test_padding_episodes_change_nothing(name):
    t = make_trajectory(penalty=0.1 * MASK.astype(np.float32))
    pad = jax.tree.map(lambda x: np.concatenate([x, x[:2]]), t)  # copies of real rows, as padding to a full batch
    pad = pad.replace(group=np.append(t.group, [-1, -1]).astype(np.int32))
    values = np.full((B + 2, T), 3.0, np.float32)
    a = np.asarray(algos.ADVANTAGES[name](pad, algos.Options(), values))
    np.testing.assert_allclose(a[:B], advantage_of(name, t), atol=1e-6)
    assert not a[B:].any()


@pytest.mark.parametrize("name", algos.ADVANTAGES)
def test_a_dense_reward_never_enters_the_outcome_objective(name):
    """With frozen trajectories, another dense reward leaves the target's advantages bit-identical."""
    t = make_trajectory()
    other = t.replace(dense_reward=np.float32(1e3) * t.dense_reward[::-1], reward=t.dense_reward)
    a, b = (advantage_of(name, algos.swap_reward(x, "outcome")) for x in (t, other))
    assert np.array_equal(a, b)
    assert not np.array_equal(a, advantage_of(name, algos.swap_reward(t, "dense")))

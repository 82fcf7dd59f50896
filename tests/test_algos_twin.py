"""An independent NumPy version of each estimator, in plain loops, on random batches."""

import jax
import numpy as np
import pytest

from rspo_jax import algos

SEEDS = range(6)


def _batch(seed):
    rng = np.random.default_rng(seed)
    episodes, turns = 24, 9
    lengths = rng.integers(1, turns + 1, episodes)
    mask = np.arange(turns)[None] < lengths[:, None]
    rewards = np.where(mask, rng.choice([0.0, 0.0, 1.0, -0.3], mask.shape), rng.normal(size=mask.shape)).astype(
        np.float32
    )
    group = rng.choice([3, -5, 17, 40, 8], episodes).astype(np.int32)
    state = rng.integers(0, 4, mask.shape).astype(np.int32)
    return rng, rewards, mask, group, state


def _score(x, members, norm):
    """Loop statistics of the value x inside the list `members`."""
    if len(members) == 1 or max(members) - min(members) < 1e-6:
        return 0.0
    mean = sum(members) / len(members)
    if norm == "none":
        return x - mean
    variance = sum((m - mean) ** 2 for m in members) / (len(members) - 1)
    return (x - mean) / (variance**0.5 + 1e-6)


def _returns(rewards, mask):
    return [sum(float(r) for r, m in zip(rs, ms, strict=True) if m) for rs, ms in zip(rewards, mask, strict=True)]


def _to_go(rewards, mask, gamma):
    result = np.zeros(mask.shape)
    for b in range(len(mask)):
        future = 0.0
        for t in reversed(range(mask.shape[1])):
            if mask[b, t]:
                future = float(rewards[b, t]) + gamma * future
                result[b, t] = future
    return result


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("norm", ["std", "none"])
def test_grpo_matches_loops(seed, norm):
    _, rewards, mask, group, _ = _batch(seed)
    returns = _returns(rewards, mask)
    expected = [
        _score(r, [q for q, h in zip(returns, group, strict=True) if h == g], norm)
        for r, g in zip(returns, group, strict=True)
    ]
    np.testing.assert_allclose(algos.grpo_advantage(returns, group, norm=norm), expected, atol=2e-5)


@pytest.mark.parametrize("seed", SEEDS)
def test_rloo_matches_loops(seed):
    _, rewards, mask, group, _ = _batch(seed)
    returns = _returns(rewards, mask)
    expected = []
    for i in range(len(group)):
        others = [returns[j] for j in range(len(group)) if j != i and group[j] == group[i]]
        expected.append(returns[i] - sum(others) / len(others) if others else 0.0)
    np.testing.assert_allclose(algos.rloo_advantage(returns, group), expected, atol=2e-5)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("norm", ["std", "none"])
def test_gigpo_matches_loops(seed, norm):
    _, rewards, mask, group, state = _batch(seed)
    returns, to_go = _returns(rewards, mask), _to_go(rewards, mask, 0.95)
    expected = np.zeros(mask.shape)
    turns = [(b, t) for b in range(len(mask)) for t in range(mask.shape[1]) if mask[b, t]]
    for b, t in turns:
        anchor = [to_go[i, j] for i, j in turns if group[i] == group[b] and state[i, j] == state[b, t]]
        episode = [q for q, g in zip(returns, group, strict=True) if g == group[b]]
        expected[b, t] = _score(returns[b], episode, norm) + 0.7 * _score(to_go[b, t], anchor, norm)
    got = algos.gigpo_advantage(rewards, mask, group, state, gamma=0.95, omega=0.7, norm=norm)
    np.testing.assert_allclose(got, expected, atol=5e-5)


@pytest.mark.parametrize("seed", SEEDS)
def test_gae_matches_loops(seed):
    rng, rewards, mask, _, _ = _batch(seed)
    values = rng.normal(size=mask.shape).astype(np.float32)
    expected = np.zeros(mask.shape)
    for b in range(len(mask)):
        length = int(mask[b].sum())
        for t in range(length):  # the definition as a sum, not as a recursion
            for k in range(t, length):
                after = values[b, k + 1] if k + 1 < length else 0.0
                expected[b, t] += (0.9 * 0.8) ** (k - t) * (rewards[b, k] + 0.9 * after - values[b, k])
    advantages, returns = algos.gae(rewards, values, mask, gamma=0.9, lam=0.8)
    np.testing.assert_allclose(advantages, expected, atol=2e-5)
    np.testing.assert_allclose(returns, np.where(mask, expected + values, 0), atol=2e-5)


@pytest.mark.parametrize("seed", SEEDS)
def test_reinforce_pp_matches_loops(seed):
    _, rewards, mask, _, _ = _batch(seed)
    to_go = _to_go(rewards, mask, 0.9)
    mean = sum(to_go[b].sum() / mask[b].sum() for b in range(len(mask))) / len(mask)
    variance = sum(((to_go[b][mask[b]] - mean) ** 2).mean() for b in range(len(mask))) / (len(mask) - 1)
    expected = np.where(mask, (to_go - mean) / (variance**0.5 + 1e-6), 0)
    np.testing.assert_allclose(algos.reinforce_pp_advantage(rewards, mask, gamma=0.9), expected, atol=2e-5)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("off_clip", ["generalized", "standard", "decoupled", "none"])
def test_clipped_surrogate_matches_loops(seed, off_clip):
    rng = np.random.default_rng(seed)
    logp, old, behaviour, advantage = rng.normal(size=(4, 50)).astype(np.float32)
    off_policy = rng.random(50) < 0.5
    behaviour = np.where(off_policy, behaviour, old)
    expected = []
    for p, o, b, a, off in zip(logp, old, behaviour, advantage, off_policy, strict=True):
        r, c = np.exp(p - b), np.exp(o - b)
        low, high = {
            "generalized": (c - 0.2, c + 0.3),
            "standard": (0.8, 1.3),
            "decoupled": (0.8 * c, 1.3 * c),
            "none": (0.0, 1e30) if off else (0.8, 1.3),
        }[off_clip]
        objective = min(r * a, min(max(r, low), high) * a)
        expected.append(-max(objective, 3.0 * a) if a < 0 else -objective)
    got = jax.jit(algos.clipped_surrogate, static_argnames=("off_clip", "eps_low", "eps_high"))(
        logp, old, behaviour, advantage, eps_low=0.2, eps_high=0.3, off_clip=off_clip, off_policy=off_policy
    )
    np.testing.assert_allclose(got, expected, rtol=2e-5, atol=1e-5)

"""What an update reads: advantages of each part in its own groups, token weights, pi_old and the reference."""

import dataclasses

import jax
import numpy as np
import pytest
import tiny

from rspo_jax import algos, batch, phases
from rspo_jax.batch import Part, build_batch
from rspo_jax.experiment import Experiment
from rspo_jax.packing import take_episodes


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    with Experiment(tiny.config(batch__tasks=6), tmp_path_factory.mktemp("run")) as run:
        yield run


@pytest.fixture(scope="module")
def sampled(run):
    """(on-policy trajectory of the target, stored trajectory of a guide that has moved away from it)."""
    run.reset_guide()
    on, _ = phases.sample(run, "target", 6, "outcome")
    shift = jax.tree.map(lambda x: x + 0.1 * jax.random.normal(jax.random.key(1), x.shape), run.guide.params)
    run.guide = run.guide.replace(params=shift)
    stored, _ = phases.sample(run, "guide", 6, "outcome")
    return on, stored


def parts(sampled, advantage=None):
    on, stored = sampled
    some = take_episodes(stored, [1, 4, 5])
    given = np.full(some.reward.shape, 2.5, np.float32) if advantage is None else advantage
    return [Part(on, off_policy=False), Part(some, off_policy=True, advantage=given)]


def test_on_policy_and_stored_tokens_share_the_loss_by_alpha(run, sampled):
    data, _, _ = build_batch(run, "target", parts(sampled), alpha=0.25)
    off = data.off_policy
    assert data.weight[off].sum() == pytest.approx(0.25, rel=1e-5)
    assert data.weight[~off].sum() == pytest.approx(0.75, rel=1e-5)
    alone, _, _ = build_batch(run, "target", parts(sampled)[:1], alpha=0.0)
    assert alone.weight.sum() == pytest.approx(1.0, rel=1e-5) and not alone.off_policy.any()


def test_pi_old_of_stored_tokens_is_the_target_now_and_pi_b_is_what_the_guide_said(run, sampled):
    data, _, _ = build_batch(run, "target", parts(sampled), alpha=0.25)
    mask, off = data.actions.action_mask, data.off_policy
    here, there = mask & off[:, None], mask & ~off[:, None]
    now = run.learner.logprobs(run.target.params, data.actions)
    guide = run.learner.logprobs(run.guide.params, data.actions)
    np.testing.assert_allclose(data.logp_old[here], now[here], atol=1e-5)
    np.testing.assert_allclose(data.logp_behaviour[here], guide[here], atol=1e-4)
    assert np.abs(now - guide)[here].max() > 0.05
    assert np.array_equal(data.logp_old[there], data.actions.logp[there])
    assert np.array_equal(data.logp_behaviour, np.where(off[:, None], data.actions.logp, data.logp_old))


def test_the_trainer_can_compute_pi_old_of_every_token(run, sampled, monkeypatch):
    tree = run.config.copy_and_resolve_references()
    tree.loss.old_logp = "trainer"
    monkeypatch.setattr(run, "config", tree)
    data, _, _ = build_batch(run, "target", parts(sampled), alpha=0.25)
    now = run.learner.logprobs(run.target.params, data.actions)
    assert np.array_equal(data.logp_old, now)
    on = ~data.off_policy
    assert np.array_equal(data.logp_behaviour[on], data.logp_old[on])


def test_the_advantage_of_stored_episodes_is_the_given_one_and_enters_no_statistic(run, sampled):
    data, _, _ = build_batch(run, "target", parts(sampled), alpha=0.25)
    alone, _, _ = build_batch(run, "target", parts(sampled)[:1], alpha=0.0)
    rows = int((alone.actions.episode >= 0).sum())
    width = alone.advantage.shape[1]
    assert np.array_equal(data.advantage[:rows, :width], alone.advantage[:rows])
    mask = data.actions.action_mask & data.off_policy[:, None]
    assert (data.advantage[mask] == 2.5).all() and mask.any()


def test_an_on_policy_advantage_is_that_of_the_algorithm_in_each_group(run, sampled):
    on, _ = sampled
    data, _, metrics = build_batch(run, "target", parts(sampled)[:1], alpha=0.0)
    want = np.asarray(algos.ADVANTAGES["gigpo"](on.replace(rows=None), run.options, None))
    got = data.advantage[data.actions.action_mask]
    episode = np.broadcast_to(data.actions.episode[:, None], data.advantage.shape)[data.actions.action_mask]
    np.testing.assert_allclose(got, want[episode, data.actions.turn[data.actions.action_mask]], atol=1e-6)
    assert metrics["advantage_std"] > 0


def test_recycled_episodes_are_off_policy_with_their_own_groups_and_carry_the_whole_loss(run, sampled):
    on, _ = sampled
    recycled = phases.swap(run, on, "dense")
    data, _, _ = build_batch(run, "guide", [Part(recycled, off_policy=True)], alpha=0.0)
    assert data.weight.sum() == pytest.approx(1.0, rel=1e-5)
    real = data.actions.episode >= 0
    assert data.off_policy[real].all()
    mask = data.actions.action_mask
    np.testing.assert_allclose(data.logp_old, run.learner.logprobs(run.guide.params, data.actions), atol=1e-5)
    np.testing.assert_array_equal(data.logp_behaviour[mask], data.actions.logp[mask])
    want = np.asarray(algos.ADVANTAGES["gigpo"](recycled.replace(rows=None), run.options, None))
    episode = np.broadcast_to(data.actions.episode[:, None], mask.shape)[mask]
    np.testing.assert_allclose(data.advantage[mask], want[episode, data.actions.turn[mask]], atol=1e-6)
    assert recycled.reward.sum() > on.reward.sum()


def test_a_broken_episode_teaches_nothing(run, sampled):
    on, _ = sampled
    group = on.group.copy()
    group[0] = -1
    data, _, _ = build_batch(run, "target", [Part(on.replace(group=group), off_policy=False)], alpha=0.0)
    assert not data.advantage[data.actions.episode == 0].any() and data.advantage.any()


def test_the_kl_penalty_in_the_reward_is_the_kl_of_this_and_later_turns(run, sampled):
    on, _ = sampled
    joined, off_B, _ = batch.join([Part(on, off_policy=False)], run.shapes["target"])
    data, _, _ = build_batch(run, "target", parts(sampled)[:1], alpha=0.0)
    k1 = np.where(data.actions.action_mask, np.random.default_rng(0).normal(size=data.advantage.shape), 0)
    got = batch.penalise_kl(joined, data.actions, k1.astype(np.float32), 0.5, off_B).penalty
    want = joined.penalty.copy()
    for n, m in zip(*np.nonzero(data.actions.action_mask), strict=True):
        b, t = data.actions.episode[n], data.actions.turn[n, m]
        want[b, : t + 1] += 0.5 * k1[n, m]
    np.testing.assert_allclose(np.where(joined.mask, got, 0), np.where(joined.mask, want, 0), atol=1e-5)
    stored = batch.penalise_kl(joined, data.actions, k1.astype(np.float32), 0.5, np.ones_like(off_B))
    assert np.array_equal(stored.penalty, joined.penalty)


def test_parts_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Part(None, False).off_policy = True

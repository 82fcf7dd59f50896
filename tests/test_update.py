"""One optimizer step: the same gradient however the batch is cut, padded or ordered; no step at all with lr = 0."""

import functools

import jax
import numpy as np
import optax
import pytest
import tiny

from rspo_jax import packing
from rspo_jax.learner import Learner, pad_rows
from rspo_jax.packing import Shapes, pad_actions
from rspo_jax.update import LossBatch, make_optimizer, micro_batches

KEY = jax.random.key(0)


@functools.cache
def batch(context: str = "append", off_policy: int = 3) -> LossBatch:
    tree = tiny.config(context__mode=context)
    return tiny.loss_batch(tree, off_policy=off_policy)


def step(changes=None, data=None, kl_coef: float = 0.1, **keys):
    """(state before, state after, metrics) of one update from fresh."""
    learner = tiny.learner(tiny.config(optim__clip_norm=100.0, **(changes or {})))
    before = learner.init(tiny.params())
    after, metrics = learner.update(learner.copy(before), data or batch(), KEY, kl_coef=kl_coef, **keys)
    return before, after, jax.device_get(metrics)


def assert_close(a, b, scale=1e-5):
    largest = max(np.abs(x).max() for x in jax.tree.leaves(a))
    assert largest > 1e-4  # a gradient, not nothing
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=scale * largest), a, b)


@pytest.mark.parametrize("micro_rows", [1, 2, 4])
def test_micro_batches_give_the_gradient_and_the_metrics_of_the_whole(micro_rows):
    _, whole, metrics = step()
    _, cut, cut_metrics = step({"optim__micro_rows": micro_rows})
    assert_close(tiny.gradient_of(whole), tiny.gradient_of(cut))
    assert metrics.keys() == cut_metrics.keys()
    for name in metrics:
        np.testing.assert_allclose(cut_metrics[name], metrics[name], rtol=2e-4, atol=1e-6, err_msg=name)


def test_long_rows_apart_from_short_ones_give_the_gradient_of_all(monkeypatch):
    many = tiny.loss_batch(tiny.config(), tasks=20)
    assert len(many.off_policy) == 40
    learner, shapes = tiny.learner(), Shapes()
    pieces = learner.pieces(many, shapes)
    assert [len(rows) for rows, _, _ in pieces] == [24, 16]
    assert sorted(np.concatenate([rows for rows, _, _ in pieces]).tolist()) == list(range(40))
    lengths = many.actions.position.max(axis=1)
    assert lengths[pieces[0][0]].max() <= lengths[pieces[1][0]].min()
    assert {"L_short", "L_long", "M_short", "M_long"} <= shapes.keys()
    apart = learner.logprobs(tiny.params(), many.actions)
    _, a, metrics = step(data=many)
    monkeypatch.setattr(packing, "_ROWS_TO_GROUP", 1000)
    np.testing.assert_allclose(apart, learner.logprobs(tiny.params(), many.actions), atol=1e-5)
    _, b, whole_metrics = step(data=many)
    assert_close(tiny.gradient_of(a), tiny.gradient_of(b))
    for name in metrics:
        np.testing.assert_allclose(metrics[name], whole_metrics[name], rtol=2e-4, atol=1e-6, err_msg=name)


def test_padding_changes_nothing():
    whole = batch()
    shapes = Shapes(N=16, L=128, M=64, K=24)
    actions = pad_actions(whole.actions, shapes)
    (N, M), (rows, columns) = whole.weight.shape, actions.target.shape
    grow = lambda x: np.pad(x, ((0, rows - N), (0, columns - M)))  # noqa: E731
    numbers = {
        name: grow(getattr(whole, name)) for name in ("advantage", "weight", "logp_old", "logp_behaviour", "logp_ref")
    }
    padded = LossBatch(actions=actions, off_policy=np.pad(whole.off_policy, (0, rows - N)), **numbers)
    _, a, metrics = step()
    _, b, padded_metrics = step(data=padded)
    assert_close(tiny.gradient_of(a), tiny.gradient_of(b))
    for name in metrics:
        np.testing.assert_allclose(padded_metrics[name], metrics[name], rtol=2e-4, atol=1e-6, err_msg=name)


def test_the_order_of_rows_changes_nothing():
    whole = batch()
    order = np.random.default_rng(1).permutation(len(whole.off_policy))
    _, a, _ = step()
    _, b, _ = step(data=jax.tree.map(lambda x: x[order], whole))
    assert_close(tiny.gradient_of(a), tiny.gradient_of(b))


def test_one_row_an_episode_or_one_row_a_turn_is_the_loss_of_the_same_tokens():
    """Window rows of single turns: weights still sum to alpha off-policy and 1 - alpha on-policy."""
    rows = batch("window")
    off = rows.off_policy
    np.testing.assert_allclose([rows.weight[off].sum(), rows.weight[~off].sum()], [0.25, 0.75], rtol=1e-5)
    _, a, _ = step({"context__mode": "window"}, rows)
    _, b, _ = step({"context__mode": "window", "optim__micro_rows": 2}, rows)
    assert_close(tiny.gradient_of(a), tiny.gradient_of(b))


def test_with_learning_rate_zero_no_bit_changes_and_the_ratio_is_one():
    before, after, metrics = step(
        {"optim__lr": 0.0, "optim__weight_decay": 0.1}, tiny.loss_batch(tiny.config(), off_policy=0)
    )
    jax.tree.map(np.testing.assert_array_equal, before.params, after.params)
    assert metrics["grad_norm"] > 0 and int(after.updates) == 1
    assert abs(metrics["ratio_mean"] - 1) < 1e-5 and abs(metrics["ratio_max"] - 1) < 1e-5
    assert metrics["sampler_gap"] < 1e-4
    assert metrics["clip_fraction_on"] == 0 and abs(metrics["approx_kl"]) < 1e-8


def test_the_learning_rate_warms_up_and_scales():
    _, _, metrics = step({"optim__warmup": 4, "optim__lr": 0.1}, lr_scale=2.0)
    assert metrics["learning_rate"] == pytest.approx(2 * 0.1 / 4)


def test_metrics_are_of_the_batch():
    data = batch()
    _, _, metrics = step(data=data, kl_coef=0.0)
    mask, off = data.actions.action_mask, data.off_policy[:, None]
    ratio = np.exp(data.logp_old - data.logp_behaviour)
    assert metrics["clip_centre_mean"] == pytest.approx(ratio[mask & off].mean(), rel=1e-3)
    assert metrics["clip_centre_max"] == pytest.approx(ratio[mask & off].max(), rel=1e-3)
    assert metrics["ratio_mean"] == pytest.approx(ratio[mask].mean(), rel=1e-3)
    ess = ratio[mask & off].sum() ** 2 / ((mask & off).sum() * (ratio[mask & off] ** 2).sum())
    assert metrics["effective_sample_size"] == pytest.approx(ess, rel=1e-3)
    # at the first step r = c, so nothing is clipped and the loss is -sum(weight * r * A)
    assert metrics["loss"] == pytest.approx(-(data.weight * ratio * data.advantage)[mask].sum(), rel=1e-3)
    assert metrics["policy_loss"] == pytest.approx(metrics["loss"], rel=1e-5)


def test_minibatches_cover_the_batch_once_at_its_own_scale():
    learner = tiny.learner(tiny.config(optim__minibatch_rows=3))
    data = batch()
    parts = learner.split(data, KEY)
    assert len(parts) == 3 and all(len(p.off_policy) == 3 for p in parts)
    np.testing.assert_allclose(sum(p.weight.sum() for p in parts), 3 * data.weight.sum(), rtol=1e-5)
    seen = np.concatenate([p.actions.tokens[p.actions.action_mask.any(axis=1)] for p in parts])
    assert sorted(map(tuple, seen)) == sorted(map(tuple, data.actions.tokens[data.actions.action_mask.any(axis=1)]))
    state, metrics = learner.update(learner.init(tiny.params()), data, KEY, kl_coef=0.0)
    assert int(state.updates) == 3
    assert abs(metrics["sampler_gap"]) < 1e-4  # of the first step: the later ones have moved


def test_epochs_repeat_the_batch():
    _, state, _ = step({"optim__epochs": 2})
    assert int(state.updates) == 2


def test_micro_batches_deal_rows_out_in_turn():
    assert micro_batches(np.arange(6), 2).tolist() == [[0, 2, 4], [1, 3, 5]]


def test_an_agent_in_bfloat16_keeps_small_updates():
    tree = tiny.config(model__dtype="bfloat16", optim__lr=1e-5, loss__old_logp="trainer")
    own = tiny.policy(tree)
    learner = tiny.learner(tree)
    state = learner.init(own[1])
    assert {x.dtype.name for x in jax.tree.leaves(state.params)} == {"float32"}
    assert {x.dtype.name for x in jax.tree.leaves(own[0].merged(state.params))} == {"bfloat16"}
    data = tiny.loss_batch(tree, own, off_policy=0)
    start = jax.device_get(state.params)
    for _ in range(2):
        state, metrics = learner.update(state, data, KEY, kl_coef=0.0)
    moved = np.abs(start["embed_tokens"] - state.params["embed_tokens"])
    assert 0 < moved.max() < 1e-4  # less than bfloat16 could hold beside weights of that size
    rounded = jax.tree.map(lambda x: x.astype("bfloat16").astype("float32"), jax.device_get(state.params))
    assert any((a == b).mean() > 0.9 for a, b in zip(jax.tree.leaves(rounded), jax.tree.leaves(start), strict=True))


def test_adapters_train_alone():
    tree = tiny.config(model__lora__rank=2)
    policy, adapter = tiny.policy(tree)
    learner = Learner(policy, tree, tiny.learner(tree).options, policy.mesh)
    state = learner.init(adapter)
    before = jax.device_get(policy.base)
    state, metrics = learner.update(state, batch(), KEY, kl_coef=0.0)
    jax.tree.map(np.testing.assert_array_equal, before, jax.device_get(policy.base))
    assert metrics["grad_norm"] > 0
    np.testing.assert_allclose(
        learner.logprobs(None, batch().actions), tiny.learner().logprobs(tiny.params(), batch().actions), atol=1e-5
    )


def test_equal_optimizer_settings_share_one_optimizer():
    a, b = tiny.config().optim, tiny.config().optim
    assert make_optimizer(a) is make_optimizer(b)
    assert isinstance(make_optimizer(a), optax.GradientTransformation)


def test_padding_rows_hold_nothing():
    padded = pad_rows(batch(), 12)
    assert padded.weight.shape[0] == 12 and not padded.weight[8:].any()
    assert not padded.actions.action_mask[8:].any()

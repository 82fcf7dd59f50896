"""Process reward model: what it reads, what it learns from sums alone, and what is on disk."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from credit import TURNS, config, episodes, mesh, tiny_model, token_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from rspo_jax import collected, models, reward_fit, reward_model, rollout
from rspo_jax.packing import Row, pack_rows

EQUAL = np.testing.assert_array_equal
HIDDEN, HEAD = jax.jit(models.hidden, static_argnums=1), jax.jit(models.turn_reward)


def with_random_head(model, seed=3):
    head = jax.tree.map(lambda p: p + jax.random.normal(jax.random.key(seed), p.shape), model.params["head"])
    return dataclasses.replace(model, params=model.params | {"head": head})


@functools.cache
def random_model():
    return with_random_head(tiny_model())


def score(model, rows, shape, size=64):
    return reward_model.episode_rewards(model, model.params, rows, shape, size=size, mesh=mesh())


def fit(data, model=None, on_epoch=lambda *_: None, **overrides):
    return reward_fit.fit(model or tiny_model(), data, config(**overrides), mesh(), on_epoch)


# What is read.


@settings(max_examples=8, deadline=None)
@given(
    st.lists(
        st.lists(st.lists(st.integers(0, 49), min_size=1, max_size=3), min_size=1, max_size=3), min_size=1, max_size=4
    ),
    st.booleans(),
)
def test_a_turns_reward_is_the_head_on_the_last_sampled_token_of_the_text_so_far(said, window):
    model = random_model()
    got = score(model, token_rows(said, window), (len(said), 3))
    for b, responses in enumerate(said):
        text = []
        for t, response in enumerate(responses):
            text = ([] if window else text) + [50 + t, 60, 61, *response]
            padded = jnp.asarray(text + [0] * (32 - len(text)))[None]
            h = HIDDEN(model.params["backbone"], model.config, padded)[0, len(text) - 1]
            np.testing.assert_allclose(got[b, t], HEAD(model.params["head"], h), atol=2e-5)
        EQUAL(got[b, len(responses) :], 0)


def test_a_turn_without_a_sampled_token_gets_nothing_and_later_turns_keep_their_place():
    rows = [Row(episode=0)]
    for turn, sampled in enumerate((False, True, False, True)):
        rows[0].add_prompt([50, 51], turn)
        rows[0].add_response([41, 42], [0.0, 0.0], [sampled, False], [0, 0], [(), ()], turn)
    packed = pack_rows(rows, row_multiple=4)  # three padding rows
    got = score(random_model(), packed, (1, 5))
    EQUAL(got[0] != 0, [False, True, False, True, False])
    read = reward_model.turn_rows(packed)
    assert len(read.episode) == 1 and read.first[0] == 1


def test_rows_on_the_device_at_once_and_padding_do_not_matter():
    data, _ = episodes(9, window=True)
    model = random_model()
    whole = score(model, data.rows, (9, TURNS))
    np.testing.assert_allclose(score(model, data.rows, (9, TURNS), size=5), whole, atol=1e-6)
    wider = jax.tree.map(
        lambda x: np.pad(x, [(0, 0), (0, 70)] + [(0, 0)] * (x.ndim - 2)) if x.ndim > 1 else x, data.rows
    )
    EQUAL(score(model, wider, (9, TURNS)), whole)


# What is learnt.


@pytest.mark.parametrize("window", [False, True])
@pytest.mark.parametrize("backbone", ["frozen", "trained"])
def test_sums_alone_teach_which_turn_earned_the_outcome(window, backbone):
    data, where = episodes(160, window)
    before = tiny_model()
    copy = jax.tree.map(np.array, before.params["backbone"])
    history = []
    model = fit(
        data,
        before,
        lambda epoch, m: history.append(m["reward_model_error"]),
        reward_model__backbone=backbone,
        reward_model__epochs=80 if backbone == "frozen" else 25,
    )
    held = model.info["held_out"]
    assert held["error"] == min(history) < 0.25 * held["constant_error"]
    assert held["auc"] > 0.95 and held["correlation"] > 0.85

    new, where = episodes(40, window, seed=9)
    rewards = score(model, new.rows, (40, TURNS))
    won = where >= 0
    assert np.mean(rewards[won].argmax(axis=1) == where[won]) >= 0.9
    assert rewards[won, where[won]].mean() > 0.6
    assert np.abs(rewards[~won]).mean() < 0.2

    after = model.params["backbone"]
    same = jax.tree.leaves(jax.tree.map(lambda a, b: bool((np.asarray(a) == b).all()), after, copy))
    assert all(same) if backbone == "frozen" else not any(same)
    jax.tree.map(EQUAL, before.params["backbone"], copy)


def test_the_fit_stops_when_held_out_episodes_get_no_better_and_keeps_the_best_epoch():
    data, _ = episodes(60)
    noise = np.random.default_rng(1).permutation(data.success)  # nothing that the episodes tell
    data = dataclasses.replace(data, success=noise, outcome=noise.astype(np.float32))
    history = {}
    model = fit(data, None, history.__setitem__, reward_model__epochs=60, reward_model__patience=3)
    errors = [history[e]["reward_model_error"] for e in sorted(history)]
    best = int(np.argmin(errors))
    assert len(errors) == best + 3 + 1 < 61
    assert model.info["held_out"]["epoch"] == best and model.info["held_out"]["error"] == errors[best]
    _, held = reward_fit.split_by_task(data.task, config().reward_model.held_out, config().seed)
    sums = score(model, data.rows, (60, TURNS))[held].sum(axis=1)
    np.testing.assert_allclose(np.mean((sums - data.outcome[held]) ** 2), errors[best], atol=1e-6)


@pytest.mark.parametrize("window", [False, True])
def test_the_gradient_is_the_same_in_micro_batches_of_rows(window):
    data, _ = episodes(10, window)
    model = random_model()
    rows = reward_model.turn_rows(data.rows)
    gradients = []
    for size in (3, 64):
        problem = reward_fit.whole_problem(model, rows, data.outcome, size=size, mesh=mesh(), remat=False)
        (inputs, targets, count), *rest = problem.batches(np.arange(10), 16)
        assert count == 10 and not rest

        def loss(params, problem=problem, inputs=inputs, targets=targets):
            error = problem.predict(params, inputs, len(targets.outcome)) - targets.outcome
            return jnp.sum(targets.weight * error**2)

        value, gradient = jax.jit(jax.value_and_grad(loss))(model.params)
        gradients.append(gradient)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), *gradients)
    sums = score(model, data.rows, (10, TURNS)).sum(axis=1)
    np.testing.assert_allclose(value, np.mean((sums - data.outcome) ** 2), rtol=1e-5)


def test_whole_tasks_are_held_out():
    task = np.repeat(np.arange(10), 3)
    train, held = reward_fit.split_by_task(task, 0.3, seed=0)
    assert len(held) == 9 and set(task[train]).isdisjoint(task[held])
    EQUAL(np.sort(np.concatenate([train, held])), np.arange(30))
    with pytest.raises(ValueError, match="held_out"):
        reward_fit.split_by_task(np.zeros(5), 0.3, seed=0)


def test_episodes_that_all_fail_are_refused():
    data, _ = episodes(20)
    failed = dataclasses.replace(data, outcome=np.zeros(20, np.float32))
    with pytest.raises(ValueError, match="collect.episodes"):
        fit(failed)


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=1, max_size=12))
def test_auc_is_the_share_of_ordered_pairs(pairs):
    scores, labels = np.array([p[0] for p in pairs]), np.array([p[1] for p in pairs])
    good, bad = scores[labels], scores[~labels]
    got = reward_fit.auc(scores, labels)
    if not len(good) or not len(bad):
        assert np.isnan(got)
    else:
        difference = good[:, None] - bad
        np.testing.assert_allclose(got, np.mean((difference > 0) + 0.5 * (difference == 0)), atol=1e-12)


# What is on disk.


def test_a_saved_model_gives_the_same_bits(tmp_path):
    model = random_model()
    reward_model.save_reward_model(tmp_path, model)
    loaded = reward_model.load_reward_model(tmp_path, mesh=mesh())
    assert loaded.info == model.info
    assert dataclasses.replace(loaded.config, mesh=None) == model.config
    assert loaded.tokenizer.get_vocab() == model.tokenizer.get_vocab()
    jax.tree.map(EQUAL, loaded.params, model.params)
    data, _ = episodes(4)
    EQUAL(score(loaded, data.rows, (4, TURNS)), score(model, data.rows, (4, TURNS)))
    models.load_hf(tmp_path)  # the backbone alone is an ordinary model directory


def test_a_directory_that_is_no_reward_model_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="--mode=reward_model"):
        reward_model.load_reward_model(tmp_path / "absent", mesh=mesh())
    reward_model.save_reward_model(tmp_path, tiny_model())
    head = safetensors.numpy.load_file(tmp_path / "head.safetensors")
    wrong = head | {"up.kernel": np.zeros((24, 16), np.float32)}
    safetensors.numpy.save_file(wrong, tmp_path / "head.safetensors")
    with pytest.raises(ValueError, match="width 16"):
        reward_model.load_reward_model(tmp_path, mesh=mesh())
    del wrong["up.kernel"]
    safetensors.numpy.save_file(wrong, tmp_path / "head.safetensors")
    with pytest.raises(ValueError, match="must hold up.kernel"):
        reward_model.load_reward_model(tmp_path, mesh=mesh())
    (tmp_path / "head.safetensors").write_bytes(b"no tensors")
    with pytest.raises(ValueError, match="damaged"):
        reward_model.load_reward_model(tmp_path, mesh=mesh())
    (tmp_path / "reward_model.json").unlink()
    with pytest.raises(FileNotFoundError, match="reward_model.json"):
        reward_model.load_reward_model(tmp_path, mesh=mesh())


@pytest.mark.parametrize("window", [False, True])
def test_collected_episodes_come_back_exactly(tmp_path, window):
    data, _ = episodes(6, window)
    collected.save(tmp_path, data)
    loaded = collected.load(tmp_path)
    jax.tree.map(EQUAL, loaded.rows, data.rows)
    for name in ("outcome", "success", "turns", "task"):
        EQUAL(getattr(loaded, name), getattr(data, name))
    assert loaded.info == data.info | {"episodes": 6, "rows": len(data.rows.episode), "successes": 3}
    json.loads((tmp_path / "episodes.json").read_text())


def test_episodes_that_their_environment_broke_are_not_collected():
    info = {"outcome": "success"}
    played = [rollout.Episode(task={"seed": s}, group=s, error="cut" if s % 2 else "") for s in range(4)]
    for episode in played:
        episode.turns.append(rollout.Turn("page", "page", "open", "open", True))
        row = Row(0)
        row.add_response([5], [0.0], [True], [0], [[]], 0)
        episode.rows.append(row)
    data = collected.from_episodes(played, info)
    assert len(data.outcome) == len(data.rows.episode) == 2 and data.task.tolist() == [0, 1]
    with pytest.raises(ValueError, match="every episode was broken"):
        collected.from_episodes(played[1::2], info)


def test_absent_and_damaged_collections_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="--mode=collect"):
        collected.load(tmp_path)
    collected.save(tmp_path, episodes(4)[0])
    (tmp_path / "episodes.npz").write_bytes(b"cut short")
    with pytest.raises(ValueError, match="damaged"):
        collected.load(tmp_path)

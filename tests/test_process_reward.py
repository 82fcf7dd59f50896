"""Dense rewards: the simulator's, the learned one's, its refit, and the noise of the ablation."""

import dataclasses
import pathlib
import types

import jax
import numpy as np
import pytest
import tiny
from credit import TURNS, config, episodes, mesh, tiny_model

from rspo_jax import main, phases, process_reward, reward_model, rollout
from rspo_jax.experiment import Experiment
from rspo_jax.metrics import read_rows
from rspo_jax.models.tokenizer import train_tokenizer
from rspo_jax.rollout import Episode, Turn
from rspo_jax.trajectory import Trajectory

EQUAL = np.testing.assert_array_equal


def trajectory(data) -> Trajectory:
    """Collected episodes as the scorer gets them."""
    B = len(data.outcome)
    zeros = np.zeros((B, TURNS), np.float32)
    return Trajectory(
        reward=zeros,
        outcome_reward=zeros,
        dense_reward=zeros,
        mask=np.ones((B, TURNS), bool),
        state=zeros.astype(np.int32),
        group=np.arange(B, dtype=np.int32),
        success=data.success,
        penalty=zeros,
        rows=data.rows,
    )


def scorer(**changes):
    return process_reward.ModelScorer(tiny_model(), config(process_reward__refit=5, **changes), mesh())


def turn(progress, changed):
    return Turn("page", "page", "go", "go", True, progress=progress, changed=changed)


def test_simulator_rewards_are_the_increase_of_progress_and_the_changed_pages():
    played = [
        Episode(task={}, group=0, turns=[turn(0.25, True), turn(0.0, True), turn(0.75, False)]),
        Episode(task={}, group=0, turns=[turn(0.5, False)]),
    ]
    EQUAL(process_reward.env_progress(played, (2, 3), 10.0), [[2.5, 0, 7.5], [5, 0, 0]])
    EQUAL(process_reward.page_changes(played, (2, 3), 10.0), [[1, 1, 0], [0, 0, 0]])
    score = process_reward.make_scorer(config(process_reward__source="env", process_reward__scale=2.0), None)
    EQUAL(score(played, rollout.assemble(played, None)), [[0.5, 0, 1.5], [1, 0, 0]])
    assert score.state == {} and score.refit(None, None) == {}


@pytest.mark.parametrize("window", [False, True])
def test_the_learned_reward_is_the_models_own_times_the_scale(window):
    data, _ = episodes(6, window)
    score = scorer(process_reward__scale=7.0)
    score.refit(trajectory(data), data.outcome)  # a head that does not give 0
    head = jax.tree.map(np.asarray, score._fit.params)
    model = tiny_model()
    expected = reward_model.episode_rewards(
        model, model.params | {"head": head}, data.rows, (6, TURNS), size=64, mesh=mesh()
    )
    got = score([], trajectory(data))
    assert got.dtype == np.float32 and np.abs(got).max() > 0
    np.testing.assert_allclose(got, 7 * expected, rtol=1e-6)


@pytest.mark.parametrize("window", [False, True])
def test_refitting_learns_from_new_episodes_and_its_state_continues_exactly(window):
    data, where = episodes(64, window)
    score, flat = scorer(), trajectory(data)
    losses = [score.refit(flat, data.outcome)["reward_model_loss"] for _ in range(4)]
    assert losses[-1] < 0.3 * losses[0]
    state = {name: array.copy() for name, array in score.state.items()}

    again = scorer()
    assert np.abs(again([], flat)).max() == 0
    again.state = state
    EQUAL(again([], flat), score([], flat))
    assert again.refit(flat, data.outcome) == score.refit(flat, data.outcome)
    EQUAL(again([], flat), score([], flat))
    won = where >= 0
    assert np.mean(score([], flat)[won].argmax(axis=1) == where[won]) > 0.9


def test_what_was_scored_before_a_refit_is_scored_again_by_the_head_of_today():
    data, _ = episodes(16)
    score = scorer()
    flat = trajectory(data)
    flat = flat.replace(dense_reward=score([], flat))
    score.refit(flat, data.outcome)
    assert np.abs(score.again(flat) - flat.dense_reward).max() > 0
    EQUAL(score.again(flat), score([], flat))
    frozen = process_reward.TurnScorer(process_reward.env_progress, 10.0)
    assert frozen.again(flat) is flat.dense_reward


def test_a_refit_leaves_out_episodes_that_their_environment_broke(tmp_path, monkeypatch):
    seen = []
    with Experiment(tiny.config(env__id="tiny:Broken-v0", rspo__k=1, rspo__collect_tasks=12), tmp_path) as run:
        run.config.unlock()
        run.config.process_reward.refit = 1
        monkeypatch.setattr(run.scorer, "refit", lambda t, outcome: seen.append((t.group, outcome)) or {})
        tiny.ticks(run, 2)
    assert len(seen) == 1 and 0 < len(seen[0][0]) == len(seen[0][1]) < 24 and (seen[0][0] >= 0).all()


def test_without_passes_nothing_is_refitted_or_kept():
    data, _ = episodes(4)
    score = process_reward.ModelScorer(tiny_model(), config(), mesh())
    before = score([], trajectory(data))
    assert score.refit(trajectory(data), data.outcome) == {} and score.state == {}
    score.state = {}
    EQUAL(score([], trajectory(data)), before)


def test_the_state_of_another_head_is_refused():
    with pytest.raises(ValueError, match="process_reward.path"):
        scorer().state = {"params.up.kernel": np.zeros((3, 3))}


def test_models_that_cannot_score_this_policy_are_refused(tmp_path):
    policy, _ = tiny.policy()
    model = tiny_model()
    reward_model.save_reward_model(tmp_path, model)

    def make(**changes):
        tree = config(process_reward__source="model", process_reward__path=str(tmp_path), **changes)
        return process_reward.make_scorer(tree, policy)

    make()
    for changes, words in [
        ({"context__mode": "window"}, "context.mode = 'append'"),
        ({"context__max_tokens": 4096}, "512 positions"),
        ({"process_reward__path": ""}, "process_reward.path = ''"),
        ({"process_reward__source": "env", "process_reward__refit": 1}, "process_reward.refit"),
    ]:
        with pytest.raises(ValueError, match=words):
            tree = config(**{"process_reward__source": "model", "process_reward__path": str(tmp_path)} | changes)
            process_reward.make_scorer(tree, policy)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        process_reward.make_scorer(config(process_reward__source="model", process_reward__path="nowhere"), policy)

    smaller = dataclasses.replace(policy, config=dataclasses.replace(policy.config, vocab_size=99))
    with pytest.raises(ValueError, match=f"vocabulary of {model.config.vocab_size} and the policy one of 99"):
        reward_model.check_fits(model, tmp_path, policy=smaller, context="append", format="plain", longest=64)
    other = dataclasses.replace(policy, tokenizer=train_tokenizer(["other words here"], ["words"], 300))
    with pytest.raises(ValueError, match="another tokenizer"):
        reward_model.check_fits(model, tmp_path, policy=other, context="append", format="plain", longest=64)

    graded = dataclasses.replace(model, info=model.info | {"outcome": "score"})
    reward_model.save_reward_model(tmp_path, graded)
    make()
    with pytest.raises(ValueError, match="process_reward.refit"):
        make(process_reward__refit=1)


@pytest.mark.parametrize(("std", "scale"), [(0.1, 10.0), (0.3, 2.0)])
def test_noise_has_the_configured_size_on_the_turns_of_dense_rewards_only(std, scale):
    rng = np.random.default_rng(0)
    shape = (400, 12)
    mask = np.arange(shape[1]) < rng.integers(1, shape[1] + 1, shape[0])[:, None]
    zeros = np.zeros(shape, np.float32)
    flat = Trajectory(
        reward=zeros,
        outcome_reward=np.where(mask, 10.0, 0).astype(np.float32),
        dense_reward=np.where(mask, rng.uniform(-1, 1, shape), 0).astype(np.float32),
        mask=mask,
        state=zeros.astype(np.int32),
        group=np.arange(shape[0], dtype=np.int32),
        success=np.ones(shape[0], bool),
        penalty=zeros,
    )
    run = types.SimpleNamespace(
        config=config(process_reward__noise_std=std, process_reward__scale=scale),
        key=lambda purpose: jax.random.fold_in(jax.random.key(1), purpose),
        on_host=Experiment.on_host,
    )
    noise = phases.swap(run, flat, "dense").reward - flat.dense_reward
    EQUAL(noise[~mask], 0)
    n = mask.sum()
    assert abs(noise[mask].std() / (std * scale) - 1) < 4 / np.sqrt(2 * n)
    assert abs(noise[mask].mean()) < 4 * std * scale / np.sqrt(n)
    EQUAL(phases.swap(run, flat, "dense").reward - flat.dense_reward, noise)  # the same tick, the same noise
    EQUAL(phases.swap(run, flat, "outcome").reward, flat.outcome_reward)
    run.config.process_reward.noise_std = 0.0
    EQUAL(phases.swap(run, flat, "dense").reward, flat.dense_reward)


@pytest.mark.parametrize("mode", ["append", "window"])
def test_collected_fitted_and_used_by_a_run_that_resumes_its_refitted_head(tmp_path, mode):
    made = tmp_path / "made"
    settings = {"context__mode": mode, "collect__episodes": 256, "reward_model__epochs": 15, "rspo__alpha": 0.5}
    tree = config(**settings)
    main.collect_mode(tree, made)
    main.reward_model_mode(tree, made)
    rows = [row for row in read_rows(made) if row["phase"] == "reward_model"]
    best = min(rows, key=lambda row: row["reward_model_error"])
    assert best["reward_model_auc"] > 0.9 and best["reward_model_error"] < 0.6 * rows[0]["reward_model_error"]
    assert [row["step"] for row in rows] == list(range(len(rows)))

    path = str(pathlib.Path(made) / "reward_model")
    used = config(**settings, process_reward__source="model", process_reward__path=path, process_reward__refit=2)
    with Experiment(used, tmp_path / "run") as run:
        tiny.ticks(run, 1)  # the guide learns from the model's rewards
        assert run.scorer.state
        start = run.scorer.state
        while run.progress.phase != "target":
            tiny.ticks(run, 1)
        kept = run.scorer.state
        assert any((kept[name] != start[name]).any() for name in kept)
        run.checkpoint()
    with Experiment(used, tmp_path / "run") as resumed:
        for name, array in resumed.scorer.state.items():
            EQUAL(array, kept[name])

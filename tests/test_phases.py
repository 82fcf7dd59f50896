"""The phases of the loop: who is trained on what, what enters the buffer, and what every option changes."""

import jax
import numpy as np
import pytest
import tiny

from rspo_jax import phases
from rspo_jax.experiment import Experiment
from rspo_jax.metrics import describe
from rspo_jax.packing import concatenate
from rspo_jax.train import tick

MANY = dict(batch__tasks=8, batch__group_size=4)  # enough episodes for both outcomes


def experiment(path, **changes) -> Experiment:
    return Experiment(tiny.config(**changes), path)


def phase_rows(path, phase: str) -> list[dict]:
    return [row for row in tiny.rows_of(path) if row["phase"] == phase]


@pytest.fixture(scope="module")
def loops(tmp_path_factory):
    """Two loops of RSPO: (rows, states of A before and after each tick)."""
    path = tmp_path_factory.mktemp("loops")
    states = []
    with experiment(path) as run:
        for _ in range(10):
            before, progress = tiny.state_of(run), run.progress.phase
            tick(run)
            states.append((progress, before, tiny.state_of(run), run.buffer, run.progress.step))
    return tiny.rows_of(path), states


def test_training_the_guide_leaves_the_target_bit_for_bit(loops):
    for phase, before, after, _, _ in loops[1]:
        assert tiny.same(before, after) == (phase != "target")


def test_only_updates_of_the_target_are_steps_and_the_buffer_is_empty_after_each_loop(loops):
    phases_seen = [phase for phase, *_ in loops[1]]
    assert phases_seen == ["guide", "guide", "collect", "target", "target"] * 2
    assert [step for *_, step in loops[1]] == [0, 0, 0, 1, 2, 2, 2, 2, 3, 4]
    filled = [buffer is not None for *_, buffer, _ in loops[1]]
    assert filled == [False, False, True, True, False] * 2


def test_every_run_reports_the_gap_between_sampler_and_trainer(loops):
    gaps = [row["sampler_gap"] for row in loops[0] if row["phase"] in ("guide", "target")]
    assert len(gaps) == 8 and 0 <= max(gaps) < 1e-4


def test_every_metric_has_a_description(loops):
    names = {name for row in loops[0] for name in row}
    assert [name for name in names if describe(name) is None] == []
    wanted = {"success", "dense_return", "kl_guide", "clip_centre_mean", "clip_centre_max", "effective_sample_size"}
    wanted |= {"clip_fraction_on", "clip_fraction_off", "buffer_successes", "buffer_drawn", "buffer_used_successes"}
    wanted |= {"groups_all_fail", "groups_all_success", "groups_mixed", "repeated_states", "valid_actions"}
    assert wanted | {"episodes", "tokens", "env_errors", "truncated"} <= names


def test_without_a_reference_no_kl_is_claimed(loops):
    assert not any("kl" in row or "kl_coef" in row for row in loops[0])


def test_episodes_and_tokens_are_counted(loops):
    rows = loops[0]
    assert [r["episodes"] for r in rows] == sorted(r["episodes"] for r in rows)
    assert rows[0]["episodes"] == 4  # (1 - alpha) * 4 tasks of 2
    assert rows[2]["episodes"] == 4 + 4 + 8  # k rollouts of the guide, then 4 tasks collected


@pytest.mark.parametrize("algo", ["gigpo", "ppo"])
def test_alpha_zero_is_the_base_algorithm_bit_for_bit(tmp_path, algo):
    common = dict(algo__name=algo, train__steps=3, rspo__k=1, loss__kl_coef=0.1)
    with experiment(tmp_path / "rspo", rspo__alpha=0.0, **common) as rspo:
        tiny.ticks(rspo, 9)
        assert rspo.progress.step == 3
    with experiment(tmp_path / "base", rspo__enabled=False, **common) as base:
        tiny.ticks(base, 3)
    assert tiny.same(tiny.state_of(rspo), tiny.state_of(base))
    assert tiny.same(jax.device_get(rspo.critics.get("target", 0)), jax.device_get(base.critics.get("target", 0)))
    position = ("tick", "episodes", "tokens", "loop")
    own, plain = (
        [{k: v for k, v in row.items() if k not in position} for row in phase_rows(tmp_path / name, "target")]
        for name in ("rspo", "base")
    )
    assert len(plain) == 3 and len(phase_rows(tmp_path / "rspo", "guide")) == 3
    for mine, theirs in zip(own, plain, strict=True):
        assert {k: mine[k] for k in theirs} == theirs


def test_with_a_frozen_buffer_the_dense_reward_does_not_touch_the_target(tmp_path):
    """The same tick twice; in the second the dense reward is another one and the stored one is scaled."""
    results = []
    for name, source in (("a", "env"), ("b", "click")):
        with experiment(tmp_path / name, rspo__guide_reward="outcome", process_reward__source=source) as run:
            tiny.ticks(run, 3)
            assert run.buffer.draws.max() >= 0
            if name == "b":
                stored = run.buffer.trajectory
                run.buffer = type(run.buffer)(
                    stored.replace(dense_reward=7 * stored.dense_reward + 1), run.buffer.advantage, run.buffer.draws
                )
            tiny.ticks(run, 2)
            results.append(tiny.state_of(run))
    assert tiny.same(*results)
    dense = [[row["dense_return"] for row in phase_rows(tmp_path / name, "target")] for name in ("a", "b")]
    assert dense[0] != dense[1]


def test_draws_are_successes_without_replacement_and_missing_ones_become_tasks(tmp_path):
    with experiment(tmp_path, rspo__collect_tasks=8) as run:
        tiny.ticks(run, 3)
        buffer, row = run.buffer, phase_rows(tmp_path, "guide")
        drawn = buffer.draws[buffer.draws >= 0]
        assert buffer.draws.shape == (2, 4) and len(set(drawn.tolist())) == len(drawn) > 0
        assert buffer.trajectory.success.all() and len(buffer.trajectory.success) == len(drawn)
        assert buffer.advantage.shape == buffer.trajectory.reward.shape
        before = run.progress.episodes
        tiny.ticks(run, 2)
    rows = phase_rows(tmp_path, "target")
    for row, previous in zip(rows, (before, rows[0]["episodes"]), strict=True):
        assert row["buffer_drawn"] + row["buffer_missing"] == 4
        assert row["buffer_used_successes"] == row["buffer_drawn"]
        assert row["alpha"] == row["buffer_drawn"] / 8
        extra = -(-row["buffer_missing"] // 2)
        assert row["episodes"] - previous == 2 * (2 + extra)


def test_without_backfill_missing_draws_stay_missing(tmp_path):
    with experiment(tmp_path, rspo__backfill="none", rspo__collect_tasks=1, rspo__k=1) as run:
        tiny.ticks(run, 2)
        before = run.progress.episodes
        tick(run)
        assert run.progress.episodes - before == 4


def test_reused_rollouts_fill_the_buffer_without_sampling(tmp_path):
    with experiment(tmp_path, rspo__collect="reuse", rspo__collect_tasks=3) as run:
        tiny.ticks(run, 2)
        sampled, rollouts = run.progress.episodes, run.guide_rollouts
        assert len(rollouts) == 2
        tick(run)
        assert run.progress.episodes == sampled
    (row,) = phase_rows(tmp_path, "collect")
    assert row["buffer_episodes"] == 8  # the last two rollouts of 2 tasks hold at least 3 tasks
    assert row["buffer_successes"] == concatenate(rollouts).success.sum()


def test_history_fills_the_buffer_from_the_targets_own_past(tmp_path):
    with experiment(tmp_path, rspo__source="history") as run:
        assert run.progress.phase == "collect"
        tiny.ticks(run, 3)
        assert run.guide is None and len(run.recent) == 2
        past = concatenate(run.recent)
        tick(run)
    first, second = phase_rows(tmp_path, "collect")
    assert first["buffer_episodes"] == 0 and "kl_guide" not in first
    assert second["buffer_episodes"] == len(past.success) and second["buffer_successes"] == past.success.sum()
    assert not phase_rows(tmp_path, "guide")


def test_self_imitation_replays_what_still_looks_good(tmp_path):
    with experiment(tmp_path, rspo__source="self_imitation", rspo__history=3, train__steps=9, algo__norm="none") as run:
        tiny.ticks(run, 7)
        assert len(run.recent) == 3
        buffer = run.buffer
        past = concatenate(run.recent)
        assert buffer.trajectory.success.all() and len(buffer.trajectory.success) <= past.success.sum()
        gain = buffer.advantage[buffer.trajectory.mask]
        assert len(gain) and (gain > 0).all() and gain.max() <= 10


def test_recycled_data_costs_no_samples_of_the_guide(tmp_path):
    with experiment(tmp_path, rspo__guide_data="recycled", rspo__guide_lr_scale=5.0) as run:
        tiny.ticks(run, 2)
        assert run.progress.episodes == 0 and tiny.same(tiny.state_of(run), tiny.state_of(run, "guide"))
        tick(run)
        assert run.progress.episodes == 8  # k * alpha * batch tasks of 2
        tiny.ticks(run, 2)
        loop_cost = run.progress.episodes
        assert 16 <= loop_cost <= 1.5 * 16  # two updates of the base algorithm cost 16; alpha is 1/2 here
        tiny.ticks(run, 2)
        assert run.progress.episodes == loop_cost
        assert not tiny.same(tiny.state_of(run).params, tiny.state_of(run, "guide").params)
    rows = phase_rows(tmp_path, "guide")
    assert "loss" not in rows[0] and rows[2]["policy_loss_on"] == 0 and rows[2]["effective_sample_size"] > 0


def test_recycled_data_without_alpha_collects_nothing(tmp_path):
    with experiment(tmp_path, rspo__guide_data="recycled", rspo__alpha=0.0, rspo__k=1) as run:
        tiny.ticks(run, 3)
        assert run.progress.step == 1 and run.progress.episodes == 8


@pytest.mark.parametrize("reset, kept", [("always", [0, 0, 0]), ("until_success", [0, 1, 2]), ("never", [0, 1, 2])])
def test_the_guide_restarts_by_rule(tmp_path, reset, kept):
    changes = dict(rspo__guide_reset=reset, rspo__k=1, rspo__min_successes=100, rspo__guide_max_loops=2)
    with experiment(tmp_path, **changes) as run:
        seen, updates = [], []
        for _ in range(4):
            tick(run)
            seen.append(run.progress.loops_kept)
            updates.append(int(run.guide.updates) - int(run.target.updates))
            tiny.ticks(run, 2)
            assert (run.guide is None) == (reset == "always")
    assert seen[:3] == kept
    assert seen[3] == {"always": 0, "until_success": 0, "never": 3}[reset]
    assert updates[0] == 1 and updates[-1] == 1  # k updates of the guide for k of the target


def test_dynamic_sampling_replaces_groups_without_variance(tmp_path):
    with experiment(tmp_path, rspo__enabled=False, algo__dynamic_sampling=3, algo__name="grpo") as run:
        batch, metrics = phases.sample(run, "target", 4, "outcome")
        played = run.progress.episodes
    assert metrics["resampled_groups"] > 0 and played == 2 * (4 + metrics["resampled_groups"])
    assert len(batch.success) == 8 and len(np.unique(batch.group)) == 4
    assert run.progress.tasks["target"] == 4 + metrics["resampled_groups"]
    returns = batch.reward.sum(axis=1)
    mixed = sum(len(set(returns[batch.group == g])) > 1 for g in range(4))
    with experiment(tmp_path / "off", rspo__enabled=False, algo__name="grpo") as plain:
        batch, metrics = phases.sample(plain, "target", 4, "outcome")
    assert "resampled_groups" not in metrics and plain.progress.episodes == 8
    assert mixed > metrics["groups_mixed"] * 4


def test_replaced_groups_come_whole():
    rng = np.random.default_rng(0)
    from test_packing import make_trajectory

    conversation = [([1], [2, 3])]
    old, new = (make_trajectory([conversation] * 6, [0, 0, 1, 1, 2, 2]) for _ in range(2))
    reward = np.zeros_like(old.reward)
    reward[0, 0] = 1
    fresh = np.zeros_like(new.reward)
    fresh[[2, 4], 0] = 5
    out = phases.replace_groups(old.replace(reward=reward), np.arange(6) < 2, new.replace(reward=fresh))
    assert out.reward.sum(axis=1).tolist() == [1, 0, 5, 0, 5, 0]
    assert out.group.tolist() == [0, 0, 1, 1, 2, 2]
    del rng


def test_kl_in_the_reward_moves_the_policy_back_and_the_loss_has_none(tmp_path):
    states = []
    for name, where, beta in (("none", "loss", 1e-9), ("loss", "loss", 0.5), ("reward", "reward", 0.5)):
        with experiment(tmp_path / name, rspo__enabled=False, loss__kl_in=where, loss__kl_coef=beta, **MANY) as run:
            tiny.ticks(run, 2)
            states.append(tiny.state_of(run).params["embed_tokens"])
    rows = [phase_rows(tmp_path / name, "target") for name in ("none", "loss", "reward")]
    assert all("kl" in row for group in rows for row in group)
    assert rows[2][1]["loss"] == pytest.approx(rows[2][1]["policy_loss"], rel=1e-5)
    assert rows[1][1]["loss"] != pytest.approx(rows[1][1]["policy_loss"], rel=1e-3)
    assert not np.array_equal(states[0], states[2]) and not np.array_equal(states[1], states[2])


def test_the_kl_coefficient_adapts(tmp_path):
    changes = dict(loss__kl_coef=0.1, loss__kl_target=1e-9, loss__kl_horizon=64, train__steps=3, **MANY)
    with experiment(tmp_path, rspo__enabled=False, **changes) as run:
        tiny.ticks(run, 3)
        final = run.progress.kl_coef
    coefficients = [row["kl_coef"] for row in phase_rows(tmp_path, "target")]
    assert coefficients[0] == 0.1
    assert coefficients[1] == pytest.approx(0.1 * (1 - 0.2 * 32 / 64))  # there was no KL before the first update
    assert coefficients[2] == pytest.approx(coefficients[1] * 1.1)
    assert final == pytest.approx(coefficients[2] * 1.1)


def test_invalid_responses_are_penalised_where_they_happen(tmp_path):
    with experiment(tmp_path, rspo__enabled=False, algo__invalid_penalty=1.0, decoding__constrain=False) as run:
        trajectory, metrics = phases.sample(run, "target", 4, "outcome")
        assert metrics["valid_actions"] == pytest.approx(1 - trajectory.penalty[trajectory.mask].mean())


def test_environment_errors_are_counted_and_do_not_stop_the_run(tmp_path):
    with experiment(tmp_path, env__id="tiny:Broken-v0", rspo__k=1, train__steps=1) as run:
        tiny.ticks(run, 3)
    errors = [row["env_errors"] for row in tiny.rows_of(tmp_path)]
    assert len(errors) == 3 and sum(errors) > 0


def test_noise_is_on_dense_rewards_only(tmp_path):
    with experiment(tmp_path, process_reward__noise_std=0.3) as run:
        trajectory, _ = phases.sample(run, "target", 4, "outcome")
        assert np.array_equal(phases.swap(run, trajectory, "outcome").reward, trajectory.outcome_reward)
        noisy = phases.swap(run, trajectory, "dense").reward - trajectory.dense_reward
    assert noisy[trajectory.mask].std() == pytest.approx(3.0, rel=0.5) and not noisy[~trajectory.mask].any()


def test_schedules_end_without_stored_trajectories():
    config = tiny.config(rspo__alpha_schedule="linear", train__steps=10)
    assert [phases.scheduled_slots(config, step) for step in (0, 5, 10)] == [4, 2, 0]


def test_the_paper_numbers():
    config = tiny.config(batch__tasks=16, batch__group_size=8, rspo__alpha=0.125, rspo__k=3, rspo__collect_tasks=28)
    assert phases.on_policy_tasks(config) == 14 and phases.stored_slots(config) == 16
    assert phases.target_tasks(config, 16, 16) == 14 and phases.target_tasks(config, 16, 5) == 16
    assert phases.collect_tasks(config) == 28
    config.rspo.guide_data = "recycled"
    assert phases.collect_tasks(config) == 6


@pytest.mark.parametrize("source", ["env", "click"])
def test_dense_training_is_not_outcome_training(tmp_path, source):
    """The click reward pays for looking around; the progress reward pays for the first right button."""
    states = {}
    for reward in ("outcome", "dense"):
        changes = dict(rspo__enabled=False, reward=reward, process_reward__source=source, **MANY)
        with experiment(tmp_path / reward, **changes) as run:
            trajectory, _ = phases.sample(run, "target", 4, reward)
            want = trajectory.dense_reward if reward == "dense" else trajectory.outcome_reward
            assert np.array_equal(trajectory.reward, want)
            tiny.ticks(run, 1)
            states[reward] = tiny.state_of(run)
    assert not tiny.same(states["outcome"].params, states["dense"].params)


def test_a_rollout_in_which_no_environment_starts_changes_nothing_and_stops_nothing(tmp_path):
    with experiment(tmp_path, rspo__enabled=False, train__steps=2) as run:
        tick(run)
        before = tiny.state_of(run).params
        run.pool.close()
        run.pool = tiny.pool(8, env_id="tiny:Dead-v0")
        run.pool._ever_started = True  # as after a good start
        tick(run)
        assert tiny.same(before, tiny.state_of(run).params) and run.progress.step == 2
    assert [row["env_errors"] for row in tiny.rows_of(tmp_path)] == [0, 8]

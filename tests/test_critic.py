"""The value network: what it learns from, what it may not do to the policy, and both kinds of GAE."""

import jax
import numpy as np
import pytest
import tiny

from rspo_jax import algos, critic, packing, phases
from rspo_jax.batch import Part, build_batch
from rspo_jax.experiment import Experiment
from rspo_jax.train import tick

PPO = dict(algo__name="ppo", algo__gamma=1.0, rspo__k=1, rspo__alpha=0.25, batch__tasks=32, batch__group_size=1)


@pytest.fixture(scope="module", params=["turn", "token"])
def run(request, tmp_path_factory):
    tree = tiny.config(**PPO, algo__gae_level=request.param, critic__epochs=2, critic__value_clip=0.0)
    with Experiment(tree, tmp_path_factory.mktemp("ppo")) as run:
        yield run


@pytest.fixture(scope="module")
def trajectory(run):
    return phases.sample(run, "target", 32, "outcome")[0]


def test_the_value_loss_falls_and_values_explain_returns(run, trajectory):
    data, values, first = build_batch(run, "target", [Part(trajectory, off_policy=False)], alpha=0.0)
    assert first["explained_variance"] == 0 and first["value_mean"] == 0  # a new critic values everything 0
    assert trajectory.success.any() and not trajectory.success.all()
    state, losses = run.critic.init(run.target.params), []
    for i in range(40):
        state, metrics = run.critic.update(state, run.target.params, values, jax.random.key(i))
        losses.append(float(metrics["value_loss"]))
    read = values.weight > 0
    best_constant = 0.5 * np.average(
        (values.returns - np.average(values.returns, weights=values.weight)) ** 2, weights=values.weight
    )
    assert losses[-1] < best_constant < losses[0] and metrics["value_grad_norm"] > 0
    now = run.critic.values(state, run.target.params, data.actions)
    assert critic.explained_variance(now, values.returns, read) > 0.1  # most of an episode is chance


def test_targets_are_outcome_returns_where_a_value_is_read(run, trajectory):
    data, values, _ = build_batch(run, "target", [Part(trajectory, off_policy=False)], alpha=0.0)
    read = values.weight > 0
    returns = trajectory.outcome_reward.sum(axis=1)
    episode = np.broadcast_to(data.actions.episode[:, None], read.shape)
    np.testing.assert_allclose(values.returns[read], returns[episode[read]], atol=1e-5)  # gamma = lambda = 1
    assert values.weight.sum() == pytest.approx(1.0, rel=1e-5)
    if run.config.algo.gae_level == "turn":
        assert np.array_equal(read, critic.first_of_turn(data.actions))
    else:
        assert np.array_equal(read, data.actions.action_mask)


def test_only_on_policy_rows_teach_the_critic(run, trajectory):
    stored = Part(trajectory, off_policy=True, advantage=np.ones(trajectory.reward.shape, np.float32))
    data, values, _ = build_batch(run, "target", [Part(trajectory, off_policy=False), stored], alpha=0.25)
    assert values.weight[data.off_policy].sum() == 0 < values.weight.sum()
    assert (data.advantage[data.off_policy][data.actions.action_mask[data.off_policy]] == 1).all()
    alone, values, _ = build_batch(run, "target", [Part(trajectory, off_policy=True)], alpha=0.0)
    assert values.weight.sum() == pytest.approx(1.0)  # recycled episodes are all there is


def test_advantages_are_whitened_over_what_was_decided(run, trajectory):
    data, values, metrics = build_batch(run, "target", [Part(trajectory, off_policy=False)], alpha=0.0)
    chosen = data.advantage[values.weight > 0]
    assert chosen.mean() == pytest.approx(0, abs=1e-4) and chosen.std(ddof=1) == pytest.approx(1, rel=1e-2)


def test_equal_returns_do_not_move_the_policy_but_the_critic_learns(run, trajectory):
    """What GAE leaves there is the critic's own error."""
    failed = trajectory.replace(
        reward=np.zeros_like(trajectory.reward), outcome_reward=np.zeros_like(trajectory.outcome_reward)
    )
    wrong = jax.tree.map(lambda x: x + 0.3, run.critics["target"].params["head"])
    run.critics["target"] = run.critics["target"].replace(params=run.critics["target"].params | {"head": wrong})
    before, value_before = tiny.state_of(run).params, jax.device_get(run.critics["target"].params)
    metrics = phases.learn(run, "target", [Part(failed, off_policy=False)])
    assert tiny.same(before, tiny.state_of(run).params) and metrics["grad_norm"] == 0
    assert metrics["value_loss"] > 0 and not tiny.same(value_before, jax.device_get(run.critics["target"].params))


def test_a_broken_episode_teaches_the_critic_nothing(run, trajectory):
    group = trajectory.group.copy()
    group[0] = -1
    part = Part(trajectory.replace(group=group), off_policy=False)
    data, values, _ = build_batch(run, "target", [part], alpha=0.0)
    assert not values.weight[data.actions.episode == 0].any() and values.weight.any()


def test_the_guide_has_a_critic_of_its_own_that_is_dropped_with_it(tmp_path):
    with Experiment(tiny.config(**PPO), tmp_path) as run:
        before = jax.device_get(run.critics["target"])
        tick(run)
        assert not tiny.same(before.params, jax.device_get(run.critics["guide"].params))
        tick(run)
        assert tiny.same(before, jax.device_get(run.critics["target"]))
        tick(run)
        assert not tiny.same(before.params, jax.device_get(run.critics["target"].params))
        assert list(run.critics) == ["target"] and run.guide is None


def test_during_warm_up_only_critics_learn(tmp_path):
    with Experiment(tiny.config(**PPO, critic__warmup=1, train__steps=3), tmp_path) as run:
        before, critic_before = tiny.state_of(run), jax.device_get(run.critics["target"].params)
        tick(run)
        assert tiny.same(before, tiny.state_of(run, "guide"))
        tiny.ticks(run, 2)
        assert tiny.same(before, tiny.state_of(run)) and run.progress.step == 1
        assert not tiny.same(critic_before, jax.device_get(run.critics["target"].params))
        tiny.ticks(run, 3)
        assert not tiny.same(before.params, tiny.state_of(run).params)
    rows = [row for row in tiny.rows_of(tmp_path) if row["phase"] == "target"]
    assert "value_loss" in rows[0] and "loss" not in rows[0] and "loss" in rows[1]


def test_a_shared_critic_reads_the_policys_features_and_leaves_them_alone(tmp_path):
    with Experiment(tiny.config(**PPO, critic__shared=True, optim__lr=0.0, rspo__enabled=False), tmp_path) as run:
        assert list(run.critics["target"].params) == ["head"]
        before = tiny.state_of(run).params
        tick(run)
        assert tiny.same(before, tiny.state_of(run).params)
        assert np.abs(run.critics["target"].params["head"]["kernel"]).max() > 0


def actions_of(rows):
    return packing.gather_actions(packing.pack_rows(rows), multiple=2)


def two_turns() -> list[packing.Row]:
    row = packing.Row(0)
    for turn in (0, 2):  # nothing was sampled in turn 1
        row.add_prompt([1, 2], turn)
        row.add_response([3, 4], [-1.0, -1.0], [True, True], [0, 0], [(), ()], turn)
    return [row]


def test_values_are_read_where_a_turn_begins():
    actions = actions_of(two_turns())
    assert critic.first_of_turn(actions).tolist() == [[True, False, True, False]]
    values = critic.turn_values(np.array([[1.0, 9.0, 3.0, 9.0]]), actions, (1, 4))
    assert values.tolist() == [[1.0, 3.0, 3.0, 0.0]]  # a turn without a decision has the value of the next one


def test_explained_variance_by_hand():
    read = np.ones(3, bool)
    assert critic.explained_variance([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], read) == 1.0
    assert critic.explained_variance([5.0, 5.0, 5.0], [1.0, 2.0, 3.0], read) == 0.0
    assert critic.explained_variance([1.0, 2.0, 3.0], [2.0, 2.0, 2.0], read) == 0.0


def test_token_advantages_by_hand():
    """A = R - V at each token, whitened over both episodes' tokens; the penalty comes after."""
    rows = two_turns() + two_turns()
    rows[1].episode = 1
    actions = actions_of(rows)
    reward = np.array([[0, 0, 10.0], [0, 0, 0]], np.float32)
    from rspo_jax.trajectory import Trajectory

    trajectory = Trajectory(
        reward=reward,
        outcome_reward=reward,
        dense_reward=reward,
        penalty=np.array([[5.0, 0, 0], [0, 0, 0]], np.float32),
        mask=np.ones((2, 3), bool),
        state=np.zeros((2, 3), np.int32),
        group=np.arange(2, dtype=np.int32),
        success=reward.sum(axis=1) > 0,
    )
    values = np.array([[1.0, 2, 3, 4], [0, 0, 0, 0]], np.float32)
    estimate = critic.token_estimate(trajectory, values, actions, algos.Options())
    raw = np.array([[9.0, 8, 7, 6], [0, 0, 0, 0]])
    want = (raw - raw.mean()) / raw.std(ddof=1)
    want[0, :2] -= 5.0 / 5.0
    np.testing.assert_allclose(estimate.advantage, want, atol=1e-4)
    assert estimate.returns.tolist() == [[10.0] * 4, [0.0] * 4]

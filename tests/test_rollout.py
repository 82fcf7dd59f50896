"""Episodes: the sampler's numbers are the trainer's, and nothing but the key decides what is sampled."""

import functools

import jax
import numpy as np
import pytest
import tiny

from rspo_jax import build, learner, packing, rollout
from rspo_jax.trajectory import check

LAYOUTS = [("append", True), ("append", False), ("window", True), ("window", False)]
TASKS = [{"seed": s} for s in range(4)]


@functools.cache
def parts(context: str, constrain: bool):
    tree = tiny.config(context__mode=context, decoding__constrain=constrain)
    policy, params = tiny.policy(tree)
    return tree, policy, params


@functools.cache
def episodes(context: str, constrain: bool, rows: int = 8, workers: int = 0, env_id: str = "tiny:Buttons-v0"):
    tree, *own = parts(context, constrain)
    tree = tree.copy_and_resolve_references()
    tree.decoding.rows, tree.env.id = rows, env_id
    return tiny.play(tree, own, rows=rows, workers=workers)


def texts(played):
    return [[(t.observation, t.response, t.action) for t in e.turns] for e in played]


@pytest.mark.parametrize("context, constrain", LAYOUTS)
def test_the_trainer_gives_every_sampled_token_the_log_prob_of_the_sampler(context, constrain):
    tree, policy, params = parts(context, constrain)
    trajectory = rollout.assemble(episodes(context, constrain), None)
    check(trajectory)
    actions = packing.gather_actions(trajectory.rows)
    own = learner.Learner(policy, tree, build.loss_options(tree), policy.mesh)
    again = own.logprobs(params, actions)
    assert actions.action_mask.sum() > 10 and trajectory.mask.sum(axis=1).max() >= 2
    assert np.abs(again - actions.logp)[actions.action_mask].max() < 1e-4
    assert (actions.logp[actions.action_mask] < 0).any()


@pytest.mark.parametrize("context, constrain", [("append", True), ("window", False)])
def test_episodes_do_not_depend_on_how_many_are_played_together(context, constrain):
    a, b = episodes(context, constrain), episodes(context, constrain, rows=3)
    assert texts(a) == texts(b)
    rows = [packing.pack_rows([row for e in played for row in e.rows]) for played in (a, b)]
    assert np.array_equal(rows[0].tokens, rows[1].tokens)
    np.testing.assert_allclose(rows[0].logp, rows[1].logp, atol=1e-4)


def test_episodes_do_not_depend_on_workers():
    assert texts(episodes("append", True)) == texts(episodes("append", True, workers=2))


def test_an_environment_that_lists_no_actions_takes_free_text_under_a_constraint():
    tree, policy, params = parts("append", True)
    played = episodes("append", True, env_id="tiny:Unlisted-v0")
    said = [turn.action for episode in played for turn in episode.turns]
    assert len(set(said)) > 1 and all(said)
    assert not set("".join(said)) & set("[]<>\n")
    trajectory = rollout.assemble(played, None)
    actions = packing.gather_actions(trajectory.rows)
    own = learner.Learner(policy, tree, build.loss_options(tree), policy.mesh)
    again = own.logprobs(params, actions)
    assert np.abs(again - actions.logp)[actions.action_mask].max() < 1e-4


def test_a_row_is_the_episode_as_it_was_read_and_said():
    """In append context: prompts, responses and nothing else, in order; only choices of the policy are in the loss."""
    _, policy, _ = parts("append", True)
    for episode in episodes("append", True):
        (row,) = episode.rows
        text = policy.tokenizer.decode(row.tokens)
        place = -1
        for turn in episode.turns:
            place = text.index(turn.action, place + 1)
        assert text.startswith("<|user|>press ")
        packed = packing.pack_rows([row])
        said = packed.tokens[0][packed.action_mask[0]].tolist()
        assert policy.chat.end_token not in said  # the end of an action is never a choice here
        assert len(said) <= sum(len(policy.first(t.response)) for t in episode.turns)
        assert packed.turn[0, : len(row)].tolist() == sorted(packed.turn[0, : len(row)].tolist())


def test_in_window_context_every_turn_is_a_row_with_its_own_prompt():
    trajectory = rollout.assemble(episodes("window", True), None)
    real = trajectory.rows.episode >= 0
    assert real.sum() == trajectory.mask.sum()
    turn = trajectory.rows.turn[real].max(axis=1)
    assert np.array_equal(np.bincount(trajectory.rows.episode[real]), trajectory.mask.sum(axis=1))
    assert turn.max() == trajectory.mask.sum(axis=1).max() - 1


def test_constrained_actions_are_admissible_and_earn_what_the_environment_says():
    for episode in episodes("append", True):
        assert all(t.action in (*tiny.COLOURS, "look", "open") and t.valid for t in episode.turns)
        assert episode.reward == 10.0 * episode.won
        assert sum(t.progress for t in episode.turns) in (0, 0.5, 1.0)
        assert len(episode.turns) <= 3


def test_an_environment_that_fails_ends_its_own_episode_only():
    played = episodes("append", True, env_id="tiny:Broken-v0")
    broken = [e.task["seed"] % 2 == 0 for e in played]
    assert [bool(e.error) for e in played] == broken
    assert all("the wire is cut" in e.error and e.truncated for e, b in zip(played, broken, strict=True) if b)
    trajectory = rollout.assemble(played, None)
    assert np.array_equal(trajectory.group == -1, broken)
    fine = [e for e, b in zip(played, broken, strict=True) if not b]
    same = [e for e, b in zip(episodes("append", True), broken, strict=True) if not b]
    assert texts(fine) == texts(same)


def test_an_episode_that_does_not_fit_is_cut_before_its_turn():
    tree, *own = parts("append", True)
    tree = tree.copy_and_resolve_references()
    tree.context.max_tokens = 16  # the first prompt and response fit, no second one does
    played = tiny.play(tree, own)
    assert all(len(e.turns) == 1 and len(e.rows[0]) <= 16 for e in played)
    assert any(e.truncated for e in played)


def test_greedy_play_does_not_depend_on_the_key():
    tree, policy, params = parts("append", True)
    tree = tree.copy_and_resolve_references()
    tree.decoding.eval_temperature = 0.0
    settings = build.rollout_settings(tree, evaluation=True)
    assert settings.greedy
    with tiny.pool() as pool:
        a, b = (rollout.play(policy, params, pool, TASKS, jax.random.key(k), 2, settings) for k in (1, 2))
    assert texts(a) == texts(b) and texts(a[:1]) == texts(a[1:2])


def test_assembly_has_one_group_a_task_and_the_penalty_of_invalid_responses():
    played = episodes("append", False)
    for episode in played:
        episode.turns[0].valid = episode.group > 0
    trajectory = rollout.assemble(played, None, turns=5, invalid_penalty=0.25)
    assert trajectory.group.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert trajectory.reward.shape == (8, 5)
    assert trajectory.penalty[:2, 0].tolist() == [0.25, 0.25]
    assert not trajectory.penalty[2:, 0].any()
    assert (trajectory.state[~trajectory.mask] == -1).all()


def test_similar_observations_can_share_a_state():
    played = episodes("append", True)
    exact, alike = (rollout.assemble(played, None, similarity=s) for s in (None, 0.5))
    count = lambda t: len({(g, s) for g, row in zip(t.group, t.state, strict=True) for s in row if s >= 0})  # noqa: E731
    assert count(alike) < count(exact)


def test_a_transcript_shows_what_happened():
    episode = episodes("append", True)[0]
    shown = rollout.transcript(episode, "train")
    assert shown["success"] == episode.won and len(shown["turns"]) == len(episode.turns)
    assert set(shown["turns"][0]) == {"observation", "response", "action", "valid", "reward"}

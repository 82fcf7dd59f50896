"""Rows of token ids to arrays and back, without a lost or invented token."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rspo_jax.packing import (
    Row,
    Shapes,
    concatenate,
    from_arrays,
    gather_actions,
    pack_rows,
    pad_actions,
    pad_episodes,
    take_episodes,
    to_arrays,
)
from rspo_jax.trajectory import FREE_TEXT, LISTED, Trajectory, check

ids = st.lists(st.integers(1, 60), min_size=1, max_size=9)
turns = st.lists(st.tuples(ids, ids), min_size=1, max_size=4)


def make_row(episode: int, conversation, *, choices: int = 3, first_turn: int = 0) -> Row:
    """Prompts and responses; the last token of a response is forced, the others are sampled from `choices` ids."""
    row = Row(episode)
    for turn, (prompt, response) in enumerate(conversation, first_turn):
        row.add_prompt(prompt, turn)
        n = len(response)
        sampled = [True] * (n - 1) + [False]
        allowed = [[i, *range(100, 99 + choices)] for i in response]
        row.add_response(response, [-0.5] * n, sampled, [LISTED] * n, allowed, turn)
    return row


def make_trajectory(conversations, group, choices: int = 3) -> Trajectory:
    B, T = len(conversations), 5
    rng = np.random.default_rng(B)
    level = {name: rng.normal(size=(B, T)).astype(np.float32) for name in ("reward", "outcome_reward", "dense_reward")}
    return Trajectory(
        **level,
        penalty=np.zeros((B, T), np.float32),
        mask=np.arange(T) < np.asarray([[len(c)] for c in conversations]),
        state=rng.integers(0, 3, (B, T)).astype(np.int32),
        group=np.asarray(group, np.int32),
        success=rng.random(B) < 0.5,
        rows=pack_rows([make_row(b, c, choices=choices) for b, c in enumerate(conversations)]),
    )


@settings(max_examples=30, deadline=None)
@given(st.lists(turns, min_size=1, max_size=4))
def test_packing_keeps_every_token_in_its_place(conversations):
    rows = [make_row(b, c) for b, c in enumerate(conversations)]
    packed = pack_rows(rows, length_multiple=16, row_multiple=4)
    assert packed.tokens.shape[0] % 4 == 0 and packed.tokens.shape[1] % 16 == 0
    for b, conversation in enumerate(conversations):
        n = sum(len(ids) for turn in conversation for ids in turn)
        assert packed.mask[b].sum() == n == len(rows[b])
        assert packed.tokens[b, :n].tolist() == [i for turn in conversation for ids in turn for i in ids]
        assert packed.turn[b, :n].tolist() == [t for t, turn in enumerate(conversation) for ids in turn for _ in ids]
        chosen = [[False] * len(prompt) + [True] * (len(said) - 1) + [False] for prompt, said in conversation]
        assert packed.action_mask[b, :n].tolist() == sum(chosen, [])
        assert not packed.action_mask[b, n:].any() and not packed.tokens[b, n:].any()
        assert np.array_equal(packed.logp[b] != 0, packed.action_mask[b])
    assert (packed.episode[len(rows) :] == -1).all() and not packed.mask[len(rows) :].any()


@settings(max_examples=30, deadline=None)
@given(st.lists(turns, min_size=1, max_size=4))
def test_gathering_takes_the_sampled_tokens_in_order(conversations):
    packed = pack_rows([make_row(b, c) for b, c in enumerate(conversations)])
    actions = gather_actions(packed, multiple=4)
    for n in range(len(conversations)):
        m = int(packed.action_mask[n].sum())
        where = np.flatnonzero(packed.action_mask[n])
        assert np.array_equal(actions.position[n, :m], where)
        assert np.array_equal(actions.target[n, :m], packed.tokens[n, where])
        assert np.array_equal(actions.turn[n, :m], packed.turn[n, where])
        assert np.array_equal(actions.allowed[n, :m], packed.allowed[n, where])
        assert actions.action_mask[n, :m].all() and not actions.action_mask[n, m:].any()
        assert (actions.allowed[n, m:] == -1).all() and not actions.logp[n, m:].any()


def test_a_token_without_a_constraint_lists_nothing():
    row = Row(0)
    row.add_prompt([1, 2], 0)
    row.add_response([5, 6], [-1.0, -2.0], [True, True], [FREE_TEXT, 0], np.array([[7, -1], [8, 9]], np.int32), 0)
    actions = gather_actions(pack_rows([row]), multiple=2)
    assert actions.allowed[0, 0, 0] == 7 and (actions.allowed[0, 1] == -1).all()


def test_a_row_reads_as_its_tokens():
    row = make_row(0, [([1, 2], [3, 4]), ([5], [6])])
    assert row.tokens == [1, 2, 3, 4, 5, 6] and len(row) == 6
    assert row.action == [False, False, True, False, False, False]


def test_sizes_never_shrink_and_padding_is_not_seen():
    shapes = Shapes()
    small = gather_actions(pack_rows([make_row(0, [([1], [2, 3])])]))
    large = gather_actions(pack_rows([make_row(b, [([1] * 90, [2] * 40)]) for b in range(9)]))
    first, second, third = (pad_actions(a, shapes) for a in (small, large, small))
    assert first.tokens.shape == (8, 64) and second.tokens.shape == (16, 192) == third.tokens.shape
    assert third.target.shape == second.target.shape == (16, 64)
    assert np.array_equal(third.target[0, :1], [2]) and third.action_mask.sum() == 1
    assert (third.episode[1:] == -1).all()
    assert Shapes(dict(shapes)) == shapes  # as a checkpoint stores them


def test_taking_and_joining_episodes_are_inverse():
    conversations = [[([1, 2], [3, 4, 5])], [([6], [7, 8]), ([9], [10, 11])], [([12], [13, 14])]]
    whole = make_trajectory(conversations, [4, 4, 9])
    parts = [take_episodes(whole, [b]) for b in range(3)]
    back = concatenate([concatenate(parts[:2]), parts[2]])
    check(back)
    for name in ("reward", "outcome_reward", "dense_reward", "mask", "state", "success"):
        assert np.array_equal(getattr(back, name), getattr(whole, name))
    assert np.array_equal(back.rows.tokens, whole.rows.tokens[:3])
    assert np.array_equal(back.rows.episode, [0, 1, 2])
    swapped = take_episodes(whole, [2, 0, -1])
    assert len(swapped.success) == 2 and np.array_equal(swapped.rows.tokens[0], whole.rows.tokens[2])


def test_groups_of_different_trajectories_never_meet_and_no_group_stays_none():
    conversation = [([1], [2, 3])]
    a = make_trajectory([conversation] * 3, [7, 7, -1])
    b = make_trajectory([conversation] * 2, [7, 0], choices=12)
    joined = concatenate([a, b])
    assert joined.group.tolist() == [0, 0, -1, 2, 1]
    assert joined.rows.tokens.shape[0] == 5 and joined.rows.allowed.shape[2] == 16


def test_padding_episodes_belong_to_no_group():
    padded = pad_episodes(make_trajectory([[([1], [2, 3])]], [0]), 4)
    check(padded)
    assert padded.group.tolist() == [0, -1, -1, -1] and not padded.mask[1:].any()


def test_a_trajectory_survives_being_stored():
    whole = make_trajectory([[([1, 2], [3, 4, 5])]], [0])
    back = from_arrays(to_arrays(whole))
    assert np.array_equal(back.rows.allowed, whole.rows.allowed) and np.array_equal(back.reward, whole.reward)


def test_episodes_that_never_began_leave_an_empty_batch():
    empty = make_trajectory([[([1], [2, 3])]], [-1]).replace(rows=pack_rows([]))
    actions = pad_actions(gather_actions(concatenate([empty]).rows), Shapes())
    assert actions.tokens.shape == (8, 64) and not actions.action_mask.any() and (actions.episode == -1).all()

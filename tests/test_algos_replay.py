"""Replay selection, schedules, the rule of the guide, similarity grouping and diagnostics."""

import difflib

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rspo_jax import algos

KEY = jax.random.key(0)


def make_stored():
    # Groups: 0 all succeed, 1 one of three succeeds, 2 all fail, and an empty slot.
    outcome = np.array([10, 10, 10, 10, 0, 0, 0, 0, 0, 10], np.float32)
    group = np.array([0, 0, 0, 1, 1, 1, 2, 2, 2, -1])
    return algos.Stored(outcome, outcome > 0, np.asarray(algos.grpo_advantage(outcome, group)), group)


def test_reward_sampling_takes_successes_those_with_advantage_first():
    drawn = np.asarray(algos.select(KEY, make_stored(), steps=2, per_step=2))
    assert drawn[0, 0] == 3, "the lone success of a mixed group has the largest advantage"
    assert set(drawn.ravel().tolist()) == {0, 1, 2, 3}


def test_missing_slots_are_marked_and_failures_left_out():
    drawn = np.asarray(algos.select(KEY, make_stored(), steps=2, per_step=4))
    assert drawn.shape == (2, 4) and sorted(drawn[0].tolist()) == [0, 1, 2, 3] and (drawn[1] == -1).all()
    everyone = np.asarray(algos.select(KEY, make_stored(), steps=3, per_step=5, only_successes=False)).ravel()
    assert sorted(everyone[everyone >= 0].tolist()) == list(range(9)) and (everyone[9:] == -1).all()
    none = make_stored()._replace(success=np.zeros(10, bool))
    assert (np.asarray(algos.select(KEY, none, steps=1, per_step=3)) == -1).all()


def test_variance_sampling_prefers_mixed_groups():
    drawn = np.asarray(algos.select(KEY, make_stored(), steps=1, per_step=3, sampling="variance", only_successes=False))
    assert drawn[0, 0] == 3 and set(drawn[0].tolist()) == {3, 4, 5}


def test_random_sampling_ignores_the_advantage_and_ties_are_seeded():
    select = jax.jit(algos.select, static_argnames=("steps", "per_step", "sampling"))
    draws = [
        [int(select(jax.random.key(i), make_stored(), steps=1, per_step=4, sampling=s)[0, 0]) for i in range(60)]
        for s in ("random", "reward")
    ]
    assert set(draws[0]) == {0, 1, 2, 3} and set(draws[1]) == {3}
    orders = {tuple(select(jax.random.key(i), make_stored(), steps=1, per_step=4)[0].tolist()) for i in range(60)}
    assert len(orders) == 6  # all orders of the three tied successes
    assert np.array_equal(*(select(KEY, make_stored(), steps=1, per_step=4) for _ in range(2)))


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 999), sampling=st.sampled_from(["reward", "variance", "random"]))
def test_draws_are_without_replacement_and_sorted_by_outcome(seed, sampling):
    rng = np.random.default_rng(seed)
    outcome = rng.choice([0.0, 4.0, 10.0], 12).astype(np.float32)
    group = rng.integers(-1, 3, 12)
    stored = algos.Stored(outcome, outcome == 10, np.asarray(algos.grpo_advantage(outcome, group)), group)
    drawn = np.asarray(
        algos.select(jax.random.key(seed), stored, steps=3, per_step=3, sampling=sampling, only_successes=False)
    ).ravel()
    real = drawn[drawn >= 0]
    assert len(set(real.tolist())) == len(real) == min(9, (group >= 0).sum())
    assert (drawn[len(real) :] == -1).all() and (group[real] >= 0).all()
    if sampling == "reward":
        assert (np.diff(outcome[real]) <= 0).all()


def test_advantages_come_from_before_the_selection():
    stored = make_stored()
    drawn = np.asarray(algos.select(KEY, stored, steps=1, per_step=4))[0]
    assert stored.advantage[drawn].max() > 1
    after = algos.grpo_advantage(stored.outcome[drawn], stored.group[drawn])
    assert not np.asarray(after).any(), "recomputed on the selection, the off-policy term would vanish"


def test_unknown_sampling_is_named():
    with pytest.raises(ValueError, match="rspo.sampling must be one of reward, variance, random"):
        algos.select(KEY, make_stored(), steps=1, per_step=1, sampling="best")


def test_self_imitation_recalibrates_against_recent_baselines():
    stored = make_stored()._replace(outcome=np.array([10, 10, 10, 10, 0, 0, 4, 0, 0, 10], np.float32))
    stored = stored._replace(advantage=np.asarray(algos.grpo_advantage(stored.outcome, stored.group)))
    baselines = np.array([np.nan, 1.0, 5.0, 6.0])  # median 5
    drawn, advantage = algos.select_self_imitation(KEY, stored, baselines, steps=1, per_step=3)
    assert sorted(np.asarray(drawn)[0].tolist()) == [-1, -1, 3]  # 0-2 had no advantage, 6 fell behind
    np.testing.assert_allclose(advantage, [0, 0, 0, 5, 0, 0, 0, 0, 0, 0])
    drawn, _ = algos.select_self_imitation(KEY, stored, np.full(4, np.nan), steps=1, per_step=3)
    assert sorted(np.asarray(drawn)[0].tolist()) == [-1, 3, 6]


def test_baseline_window_drops_the_oldest():
    window = np.full(3, np.nan)
    window = algos.push_baselines(window, [1.0, 3.0, 99.0], [7, 7, -1])
    np.testing.assert_array_equal(window, [np.nan, np.nan, 2.0])
    window = algos.push_baselines(window, [4.0, 5.0, 6.0], [1, 2, 2])
    np.testing.assert_array_equal(window, [2.0, 4.0, 5.5])
    window = algos.push_baselines(window, [8.0, 8.0, 8.0], [1, 1, 1])
    np.testing.assert_array_equal(window, [4.0, 5.5, 8.0])


def test_alpha_schedules():
    get = lambda kind: [float(algos.decay(kind, 0.2, s, 100)) for s in (0, 50, 75, 100)]  # noqa: E731
    np.testing.assert_allclose(get("constant"), [0.2] * 4)
    np.testing.assert_allclose(get("linear"), [0.2, 0.1, 0.05, 0], atol=1e-7)
    np.testing.assert_allclose(get("cosine"), [0.2, 0.1, 0.1 * (1 - 0.5**0.5), 0], atol=1e-7)
    with pytest.raises(ValueError, match="one of constant, linear, cosine"):
        algos.decay("step", 0.2, 0, 1)


def test_adaptive_kl_moves_towards_the_target_within_its_bounds():
    step = lambda kl: float(algos.adaptive_kl(0.1, kl, target=1.0, horizon=100, samples=50))  # noqa: E731
    np.testing.assert_allclose([step(1.0), step(1.1), step(9.0), step(0.0)], [0.1, 0.105, 0.11, 0.09], rtol=1e-6)


@pytest.mark.parametrize(
    ("mode", "in_D", "of_A", "kept", "expected"),
    [
        ("always", 0, 0, 0, False),
        ("never", 99, 99, 99, True),
        ("until_success", 2, 2, 4, True),
        ("until_success", 3, 0, 0, False),  # enough successes stored
        ("until_success", 0, 3, 0, False),  # the target succeeds by itself: the guide is not needed
        ("until_success", 0, 0, 5, False),  # kept long enough
    ],
)
def test_guide_is_kept_only_while_nothing_works(mode, in_D, of_A, kept, expected):
    assert algos.should_keep_guide(mode, in_D, of_A, 3, kept, 5) is expected


def test_unknown_guide_reset_is_named():
    with pytest.raises(ValueError, match="guide_reset must be one of always, until_success, never"):
        algos.should_keep_guide("sometimes", 0, 0, 1, 0, 1)


def test_exact_states_are_counted_per_group():
    observations = [["a", "b", "a"], ["b"], ["a"]]
    ids = algos.state_ids(observations, [4, 4, 9], 4)
    assert ids.tolist() == [[0, 1, 0, -1], [1, -1, -1, -1], [0, -1, -1, -1]]


def test_similar_states_join_the_first_member_that_is_close_enough():
    texts = ["you see a red apple", "you see a red apple.", "go home", "you see a red apples and"]
    assert difflib.SequenceMatcher(None, texts[3], texts[0]).ratio() < 0.9
    assert algos.state_ids([texts], [0], 4, threshold=0.9).tolist() == [[0, 0, 1, 2]]
    assert algos.state_ids([texts], [0], 4, threshold=0.8).tolist() == [[0, 0, 1, 0]]
    with pytest.raises(ValueError, match="must lie in"):
        algos.state_ids([texts], [0], 4, threshold=95)


def test_similarity_matches_the_plain_greedy_definition():
    rng = np.random.default_rng(0)
    words = ["desk", "lamp", "shelf", "drawer", "mug"]
    texts = [" ".join(rng.choice(words, 6)) for _ in range(40)]
    members, expected = [], []
    for text in texts:
        ratios = [difflib.SequenceMatcher(None, text, m).ratio() for m in members]
        match = next((i for i, r in enumerate(ratios) if r >= 0.7), len(members))
        if match == len(members):
            members.append(text)
        expected.append(match)
    assert algos.state_ids([texts], [0], 40, threshold=0.7)[0].tolist() == expected
    assert 1 < len(members) < 40


def make_sums(index=slice(None)):
    ratio = np.array([1.0, 1.5, 0.5, 2.0, 4.0, 7.0])
    centre = np.array([1.0, 1.0, 1.0, 2.0, 3.0, 9.0])
    advantage = np.array([1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    mask = np.array([True, True, True, True, True, False])
    off = np.array([False, False, False, True, True, True])
    arrays = (np.log(ratio), np.log(centre), np.zeros(6), advantage, mask, off)
    return algos.policy_sums(*(x[index] for x in arrays))


def test_policy_diagnostics_hand_worked():
    summary = {k: float(v) for k, v in algos.policy_summary(make_sums()).items()}
    k3 = lambda r: r - 1 - np.log(r)  # noqa: E731
    expected = {
        "ratio_mean": 9 / 5,
        "ratio_max": 4.0,
        "clip_fraction_on": 1 / 3,  # 1.5; 0.5 is outside, but a positive advantage still pulls it back
        "clip_fraction_off": 1 / 2,  # 4 against 3 +- 0.2; 2 sits at its centre
        "clip_centre_mean": 2.5,
        "clip_centre_max": 3.0,
        "effective_sample_size": 36 / (2 * 20),
        "approx_kl": (k3(1.0) + k3(1.5) + k3(0.5)) / 3,
    }
    assert summary == pytest.approx(expected, rel=1e-5)


def test_policy_diagnostics_merge_exactly_and_survive_empty_parts():
    merged = algos.merge(make_sums(slice(0, 2)), make_sums(slice(2, 6)))
    for name, value in algos.policy_summary(make_sums()).items():
        assert float(algos.policy_summary(merged)[name]) == pytest.approx(float(value), rel=1e-5)
    only_on = algos.policy_summary(make_sums(slice(0, 3)))
    assert all(np.isfinite(v) for v in only_on.values()) and only_on["effective_sample_size"] == 0


def test_group_fractions_count_each_group_once():
    fractions = algos.group_fractions([0, 0, 0, 1, 1, 0, 1, 1], [4, 4, 4, 8, 8, 1, 1, -1])
    assert {k: round(float(v), 5) for k, v in fractions.items()} == {
        "groups_all_fail": 0.33333,
        "groups_all_success": 0.33333,
        "groups_mixed": 0.33333,
    }


def test_repeated_states_in_a_group_and_in_an_episode():
    state = np.array([[1, 2, 1], [1, 1, 9], [1, 5, 5]])
    mask = np.array([[True] * 3, [True, True, False], [True] * 3])
    assert int(algos.repeated_states(state, mask, [0, 0, 3])) == 3 + 1
    assert int(algos.repeated_states(state, mask, np.arange(3))) == 1 + 1 + 1
    assert int(algos.repeated_states(state, mask, [0, 0, -1])) == 3

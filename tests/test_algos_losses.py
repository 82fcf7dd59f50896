"""Losses, KL estimators, token weights: hand-worked numbers, what the clip zeroes, micro-batch invariance."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rspo_jax import algos
from rspo_jax.trajectory import TokenRows

few = settings(max_examples=25, deadline=None)


def close(a, b, tolerance=1e-5):
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=tolerance, atol=tolerance)


def gradient(ratio, centre, advantage, **options):
    """d loss / d log pi of one token at pi / pi_B = ratio, pi_old / pi_B = centre."""
    behaviour = -1.0
    loss = lambda logp: algos.clipped_surrogate(logp, behaviour + jnp.log(centre), behaviour, advantage, **options)  # noqa: E731
    return float(jax.grad(loss)(behaviour + jnp.log(ratio)))


def test_surrogate_hand_worked():
    log = np.log(np.array([1.1, 1.5, 1.5, 0.5, 0.5, 5.0]))
    zero = np.zeros(6)
    loss = algos.clipped_surrogate(log, zero, zero, [2.0, 2.0, -2.0, 2.0, -2.0, -2.0])
    # Inside; clipped at 1.2; not clipped; not clipped; clipped at 0.8; dual clip 3.
    close(loss, [-2.2, -2.4, 3.0, -1.0, 1.6, 6.0])
    close(algos.clipped_surrogate(log, zero, zero, [-2.0] * 6, dual_clip=None)[-1], 10.0)
    close(algos.clipped_surrogate(log, zero, zero, [2.0] * 6, eps_high=0.28)[1], -2.56)


def test_surrogate_clips_around_old_policy_not_around_behaviour():
    # c = 3 and r = 3.1: outside [0.8, 1.2], inside [2.8, 3.2].
    log_old, log_new = np.log([3.0]), np.log([3.1])
    close(algos.clipped_surrogate(log_new, log_old, [0.0], [1.0]), [-3.1])
    close(algos.clipped_surrogate(log_new, log_old, [0.0], [1.0], off_clip="standard"), [-1.2])
    close(algos.clipped_surrogate(np.log([3.9]), log_old, [0.0], [1.0], off_clip="decoupled"), [-3.6])
    close(algos.clipped_surrogate(np.log([3.9]), log_old, [0.0], [1.0], off_clip="none"), [-3.9])


@pytest.mark.parametrize("centre", [0.1, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("offset", [-0.5, -0.21, -0.19, 0.0, 0.19, 0.21, 0.5])
@pytest.mark.parametrize("advantage", [1.5, -1.5])
def test_clip_zeroes_the_gradient_exactly_outside_the_interval_on_the_side_of_the_advantage(centre, offset, advantage):
    ratio = centre + offset
    if ratio <= 0:
        return
    zeroed = offset > 0.2 if advantage > 0 else offset < -0.2
    got = gradient(ratio, centre, advantage, dual_clip=None)
    assert got == 0.0 if zeroed else got == pytest.approx(-ratio * advantage, rel=1e-4)


def test_dual_clip_zeroes_the_gradient_of_bad_tokens_that_became_likely():
    assert gradient(2.9, 1.0, -1.0) == pytest.approx(2.9, rel=1e-4)
    assert gradient(3.1, 1.0, -1.0) == 0.0
    assert gradient(3.1, 1.0, 1.0, off_clip="none") == pytest.approx(-3.1, rel=1e-4)


def test_off_ratio_old_drops_the_centre_and_the_cap_bounds_it():
    assert gradient(0.02, 0.02, 1.0) == pytest.approx(-0.02, rel=1e-4)
    assert gradient(0.02, 0.02, 1.0, off_ratio="old") == pytest.approx(-1.0, rel=1e-4)
    assert gradient(100.0, 100.0, 1.0, off_ratio_cap=2.0) == pytest.approx(-2.0, rel=1e-4)
    assert gradient(1.5, 1.5, 1.0, off_ratio_cap=2.0) == gradient(1.5, 1.5, 1.0)


def test_off_clip_none_frees_only_off_policy_tokens():
    log = np.log([1.5, 1.5])
    loss = algos.clipped_surrogate(log, [0, 0], [0, 0], [1, 1], off_clip="none", off_policy=np.array([False, True]))
    close(loss, [-1.2, -1.5])


def test_only_the_trained_policy_gets_a_gradient():
    args = [jnp.array([0.1]), jnp.array([0.0]), jnp.array([-0.2]), jnp.array([1.0])]
    grads = jax.grad(lambda *a: algos.clipped_surrogate(*a).sum(), argnums=(0, 1, 2, 3))(*args)
    assert grads[0][0] != 0 and not any(g[0] for g in grads[1:])


def test_masked_placeholders_give_zero_loss_and_gradient():
    mask = np.array([True, False, False, False])
    logp = jnp.array([-1.0, -jnp.inf, jnp.nan, 500.0])
    loss = lambda x: algos.clipped_surrogate(x, jnp.array([-1.0, 0, 0, 0]), -x, jnp.ones(4), mask=mask)  # noqa: E731
    assert np.isfinite(loss(logp)).all() and not np.asarray(loss(logp))[1:].any()
    grad = jax.grad(lambda x: loss(x).sum())(logp)
    assert np.isfinite(grad).all() and grad[0] != 0 and not np.asarray(grad)[1:].any()


def test_log_ratios_are_limited_before_the_exponential():
    loss = algos.clipped_surrogate([900.0], [0.0], [0.0], [-1.0], dual_clip=None)
    close(loss, [np.exp(20.0)])
    assert np.isfinite(algos.kl_penalty([0.0], [900.0], "k3")).all()


@few
@given(
    logp=hnp.arrays(np.float32, 6, elements=st.floats(-8, 0, width=32, allow_subnormal=False)),
    advantage=hnp.arrays(np.float32, 6, elements=st.floats(-3, 3, width=32, allow_subnormal=False)),
    off_clip=st.sampled_from(["generalized", "standard", "decoupled", "none"]),
)
def test_before_the_first_update_the_ratio_is_exactly_one(logp, advantage, off_clip):
    assert np.array_equal(algos.clipped_surrogate(logp, logp, logp, advantage, off_clip=off_clip), -advantage)


@few
@given(arrays=hnp.arrays(np.float32, (4, 12), elements=st.floats(-3, 3, width=32, allow_subnormal=False)))
def test_surrogate_is_bounded_below_and_pessimistic(arrays):
    logp, old, behaviour, advantage = arrays
    objective = -np.asarray(algos.clipped_surrogate(logp, old, behaviour, advantage), np.float64)
    ratio = np.exp(np.clip(logp.astype(np.float64) - behaviour, -20, 20))
    tolerance = 1e-4 * (1 + np.abs(ratio * advantage))
    assert (objective >= np.where(advantage < 0, 3 * advantage, -np.inf) - tolerance).all()
    positive = advantage >= 0
    assert (objective <= ratio * advantage + tolerance)[positive].all()


def test_unknown_options_are_named():
    with pytest.raises(ValueError, match="off_clip must be one of generalized"):
        algos.clipped_surrogate([0.0], [0.0], [0.0], [1.0], off_clip="soft")
    with pytest.raises(ValueError, match="off_ratio must be one of behaviour, old"):
        algos.clipped_surrogate([0.0], [0.0], [0.0], [1.0], off_ratio="new")
    with pytest.raises(ValueError, match="k1, k2 or k3"):
        algos.kl_penalty([0.0], [0.0], "k4")


def test_sequence_logprobs_average_over_the_tokens_of_one_response():
    logp = np.array([[-1.0, -3.0, 9.0, -5.0, 7.0]])
    mask = np.array([[True, True, False, True, False]])
    segment = np.array([[0, 0, 0, 2, 2]])
    close(algos.sequence_logprobs(logp, mask, segment, segments=3), [[-2, -2, 0, -5, 0]])


def test_gspo_gradient_is_that_of_the_sequence_ratio():
    key = jax.random.key(1)
    logp, old = -jax.random.uniform(key, (2, 1, 4))
    mask, segment = jnp.ones((1, 4), bool), jnp.zeros((1, 4), int)
    mean = lambda x: algos.sequence_logprobs(x, mask, segment, segments=1)  # noqa: E731
    per_token = lambda x: algos.clipped_surrogate(mean(x), mean(old), mean(old), jnp.ones((1, 4)), eps_high=9.0).mean()  # noqa: E731
    sequence = lambda x: -jnp.exp(jnp.mean(x - old))  # noqa: E731
    close(jax.grad(per_token)(logp), jax.grad(sequence)(logp))


def test_kl_estimators_hand_worked():
    log_ratio = np.log(2.0)  # pi / pi_ref = 2
    close(algos.kl_penalty([log_ratio], [0.0], "k1"), [0.693147])
    close(algos.kl_penalty([log_ratio], [0.0], "k2"), [0.240227])
    close(algos.kl_penalty([log_ratio], [0.0], "k3"), [0.5 - 1 + 0.693147])


def test_value_loss_takes_the_worse_of_clipped_and_unclipped():
    # Moved from 0 to 2 towards 3: the clipped prediction 0.5 is the worse. Moved away: the unclipped is.
    close(algos.value_loss([2.0, -2.0], [0.0, 0.0], [3.0, 3.0]), [0.5 * 2.5**2, 0.5 * 5**2])
    close(algos.value_loss([2.0], [0.0], [3.0], clip=None), [0.5])
    grad = jax.grad(lambda v: algos.value_loss(v, 0.0, 3.0))
    assert grad(2.0) == 0.0 and grad(0.4) == pytest.approx(-2.6) and grad(-2.0) == pytest.approx(-5.0)


def test_entropy_bonus_lowers_the_loss():
    close(algos.entropy_bonus([0.5, 2.0], 0.1), [-0.05, -0.2])


# --- token weights -----------------------------------------------------------------------------------------------

N, L, T, B = 6, 7, 3, 4


def make_rows(seed, n=N):
    """Random rows of window context: several rows per episode, one of them padding."""
    rng = np.random.default_rng(seed)
    mask = rng.random((n, L)) < 0.6
    episode = rng.integers(0, B, n).astype(np.int32)
    episode[-1], mask[-1] = -1, False
    turn = np.sort(rng.integers(0, T, (n, L)), axis=1).astype(np.int32)
    zeros = np.zeros((n, L), np.float32)
    return TokenRows(turn, mask, mask, turn, episode, zeros, turn, np.zeros((n, L, 0), np.int32))


def weights_of(rows, off_policy, mode="token_mean", alpha=0.25):
    return np.asarray(algos.token_weights(rows, off_policy, alpha=alpha, mode=mode, turns=T, length=100))


MODES = ["token_mean", "turn_mean", "sequence_mean", "constant"]


def test_token_weights_hand_worked():
    mask = np.array([[1, 1, 1, 0], [0, 1, 0, 0], [1, 1, 0, 0]], bool)
    turn = np.array([[0, 0, 1, 1], [0, 0, 0, 0], [0, 1, 1, 1]])
    rows = make_rows(0, n=3).replace(mask=mask, action_mask=mask, turn=turn, episode=np.array([0, 1, 2]))
    off = np.array([False, False, True])
    get = lambda mode: algos.token_weights(rows, off, alpha=0.2, mode=mode, turns=2, length=10)  # noqa: E731
    off_row = [0.1, 0.1, 0, 0]
    close(get("token_mean"), [[0.2, 0.2, 0.2, 0], [0, 0.2, 0, 0], off_row])
    close(get("sequence_mean"), [[0.4 / 3] * 3 + [0], [0, 0.4, 0, 0], off_row])
    third = 0.8 / 3  # three responses: two tokens, one, one
    close(get("turn_mean"), [[third / 2, third / 2, third, 0], [0, third, 0, 0], off_row])
    close(get("constant"), [[0.04] * 3 + [0], [0, 0.04, 0, 0], [0.02, 0.02, 0, 0]])


@pytest.mark.parametrize("mode", MODES[:3])
@few
@given(seed=st.integers(0, 10_000))
def test_on_policy_tokens_share_one_minus_alpha_and_off_policy_tokens_alpha(mode, seed):
    rows, off = make_rows(seed), np.array([False, True, False, True])
    weights = weights_of(rows, off, mode)
    assert not weights[~rows.action_mask].any()
    off_row = off[rows.episode]
    has_on, has_off = rows.action_mask[~off_row].any(), rows.action_mask[off_row].any()
    alpha = 0.25 if has_on and has_off else float(has_off)
    assert weights[off_row].sum() == pytest.approx(alpha, abs=1e-5)
    assert weights[~off_row].sum() == pytest.approx((1 - alpha) * (has_on or has_off), abs=1e-5)


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10_000), cut=st.sampled_from([1, 3]))
def test_any_split_into_micro_batches_gives_the_same_gradient(mode, seed, cut):
    rows, off = make_rows(seed), np.array([False, True, False, True])
    weights = weights_of(rows, off, mode)
    rng = np.random.default_rng(seed)
    order = rng.permutation(N)
    logp, old, behaviour, advantage = rng.normal(size=(4, N, L)).astype(np.float32)

    @jax.grad
    def grad(shift, index):
        loss = algos.clipped_surrogate(
            logp[index] * shift, old[index], behaviour[index], advantage[index], mask=rows.action_mask[index]
        )
        return algos.weighted_sum(loss, weights[index])

    close(grad(1.0, order[:cut]) + grad(1.0, order[cut:]), grad(1.0, np.arange(N)), 2e-4)


@pytest.mark.parametrize("mode", MODES)
@few
@given(seed=st.integers(0, 10_000))
def test_weights_ignore_row_order_and_padding_rows(mode, seed):
    rows, off = make_rows(seed), np.array([False, True, False, True])
    weights = weights_of(rows, off, mode)
    order = np.random.default_rng(seed).permutation(N)
    close(weights_of(jax.tree.map(lambda x: x[order], rows), off, mode), weights[order], 1e-6)
    wide = jax.tree.map(lambda x: np.concatenate([x, np.zeros_like(x[:2])]), rows)
    wide = wide.replace(episode=np.append(rows.episode, [-1, -1]))
    close(weights_of(wide, np.append(off, True), mode), np.pad(weights, ((0, 2), (0, 0))), 1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_one_row_per_episode_and_one_row_per_turn_weigh_alike(mode):
    """`append` and `window` context of the same two episodes, of 1 + 2 and 3 action tokens."""
    template = make_rows(0)
    append_mask = np.array([[0, 1, 0, 1, 1], [0, 1, 1, 1, 0]], bool)
    append = template.replace(
        action_mask=append_mask, turn=np.array([[0, 0, 1, 1, 1], [0, 0, 0, 0, 0]]), episode=np.array([0, 1])
    )
    window_mask = np.array([[0, 1, 0, 0], [0, 1, 1, 0], [0, 1, 1, 1]], bool)
    window = template.replace(
        action_mask=window_mask, turn=np.array([[0] * 4, [1] * 4, [0] * 4]), episode=np.array([0, 0, 1])
    )
    off = np.array([False, False])
    close(weights_of(append, off, mode)[append_mask], weights_of(window, off, mode)[window_mask], 1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_alpha_zero_is_the_base_algorithm_bit_for_bit(mode):
    rows = make_rows(3)
    base = rows.replace(action_mask=rows.action_mask & (rows.episode != 1)[:, None])
    none = np.zeros(B, bool)
    with_buffer = weights_of(rows, np.array([False, True, False, False]), mode, alpha=0.0)
    assert np.array_equal(with_buffer, weights_of(base, none, mode, alpha=0.0))
    assert np.array_equal(weights_of(base, none, mode, alpha=0.25), weights_of(base, none, mode, alpha=0.0))


def test_weights_name_what_they_miss():
    with pytest.raises(ValueError, match='"turn_mean" needs turns'):
        algos.token_weights(make_rows(0), np.zeros(B, bool), alpha=0.0, mode="turn_mean")
    with pytest.raises(ValueError, match="must be one of token_mean"):
        algos.token_weights(make_rows(0), np.zeros(B, bool), alpha=0.0, mode="mean")


def test_turns_to_tokens_and_back():
    rows = make_rows(5)
    values = np.arange(1.0, B * T + 1).reshape(B, T)
    tokens = algos.turns_to_tokens(values, rows)
    sums, counts = algos.tokens_to_turns(tokens, rows, (B, T)), np.zeros((B, T))
    for n, i in zip(*np.nonzero(rows.action_mask), strict=True):
        assert tokens[n, i] == values[rows.episode[n], rows.turn[n, i]]
        counts[rows.episode[n], rows.turn[n, i]] += 1
    assert not np.asarray(tokens)[~rows.action_mask].any()
    close(sums, counts * values)


def test_weighted_sum_never_reads_entries_of_weight_zero():
    assert algos.weighted_sum(jnp.array([2.0, jnp.nan]), jnp.array([0.5, 0.0])) == 1.0

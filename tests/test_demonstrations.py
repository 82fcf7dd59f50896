"""Demonstrations as token rows: what imitation trains on is what the constrained sampler could have produced."""

import jax
import numpy as np
import pytest

from rspo_jax import build
from rspo_jax.configuration import load_config
from rspo_jax.demonstrations import action_tokens, collect, to_row, trace
from rspo_jax.envs import alfworld, prompts, webshop
from rspo_jax.sft import batches, fresh_agent
from rspo_jax.trajectory import FREE_TEXT, LISTED

_CASES = {"webshop": webshop.demonstrator, "alfworld": alfworld.demonstrator}


@pytest.fixture(scope="module", params=sorted(_CASES))
def made(request):
    """(policy, demonstrations) of one environment with a small untrained agent."""
    overrides = {"sft.width": 16, "sft.ffn": 16, "sft.layers": 1, "sft.vocab_size": 2000}
    config = load_config(f"configs/{request.param}_gigpo.py", overrides)
    suite = build.make_suite(config)
    form = prompts.get("plain", request.param)
    demos = collect(suite, _CASES[request.param], form, split="train", episodes=12, skill=0.7, max_turns=10, seed=3)
    policy, _ = fresh_agent(config, suite, demos)
    return policy, demos


def test_decoding_the_tokens_of_an_action_gives_the_action(made):
    policy, demos = made
    for demo in demos:
        for action, admissible in zip(demo.actions, demo.admissible, strict=True):
            tokens = action_tokens(policy.tokenizer, action, admissible, policy.chat.end_token)
            assert policy.decode(tokens) == action


def test_every_demonstrated_token_is_in_the_support_it_is_trained_under(made):
    policy, demos = made
    free = policy.grammar.free_tokens
    seen = set()
    for demo in demos:
        for action, admissible in zip(demo.actions, demo.admissible, strict=True):
            tokens = action_tokens(policy.tokenizer, action, admissible, policy.chat.end_token)
            sampled, constraint, allowed = trace(policy.grammar, tokens, admissible)
            for token, choice, kind, ids in zip(tokens, sampled, constraint, allowed, strict=True):
                assert token in ids or (kind == FREE_TEXT and free[token])
                assert choice == (kind == FREE_TEXT or len(ids) > 1)
                seen.add(kind)
    assert LISTED in seen


def test_an_inadmissible_action_is_refused(made):
    policy, demos = made
    admissible = demos[0].admissible[0]
    tokens = action_tokens(policy.tokenizer, "fly to the moon", admissible, policy.chat.end_token)
    with pytest.raises(ValueError, match="admissible"):
        trace(policy.grammar, tokens, admissible)


def test_a_row_is_the_conversation_and_only_choices_are_trained_on(made):
    policy, demos = made
    row = to_row(demos[0], policy, 10_000)
    text = policy.tokenizer.decode([t for t, a in zip(row.tokens, row.action, strict=True)])
    for action in demos[0].actions:
        assert action in text
    assert any(row.action) and not all(row.action)
    short = to_row(demos[0], policy, len(row) - 1)
    assert short.tokens == row.tokens[: len(short)] and len(short) < len(row)


def test_collection_depends_on_the_seed_only(made):
    policy, demos = made
    kind = "webshop" if "search" in demos[0].prompts[0] else "alfworld"
    config = load_config(f"configs/{kind}_gigpo.py")
    again = collect(
        build.make_suite(config),
        _CASES[kind],
        prompts.get("plain", kind),
        split="train",
        episodes=12,
        skill=0.7,
        max_turns=10,
        seed=3,
    )
    assert again == demos


def test_batches_hold_rows_of_similar_length_and_repeat_with_the_seed(made):
    policy, demos = made
    rows = [to_row(d, policy, 10_000) for d in demos]
    first, second = (batches(rows, 4, np.random.default_rng(0)) for _ in range(2))
    for _ in range(5):
        jax.tree.map(np.testing.assert_array_equal, next(first), next(second))

"""The decoder: a row's answers depend on its own prompts and key, not on the batch it is decoded in."""

import functools
import types

import jax
import numpy as np
import pytest
import tiny

from rspo_jax.decoder import Decoder, attach, for_decoding
from rspo_jax.rollout import episode_keys

ACTIONS = [*tiny.COLOURS, "look", "open"]


@functools.cache
def parts(constrain: bool = True):
    return tiny.policy(tiny.config(decoding__constrain=constrain))


def decoder(rows: int, first: int = 0, context: str = "append", constrain: bool = True, max_response: int = 6):
    policy, params = parts(constrain)
    settings = types.SimpleNamespace(context=context, max_response=max_response, temperature=1.0, greedy=False)
    return Decoder(policy, for_decoding(policy, params), settings, episode_keys(jax.random.key(3), first, rows))


def said(responses):
    return [r.tokens.tolist() for r in responses]


@pytest.mark.parametrize("context", ["append", "window"])
def test_shared_prompts_and_dropped_rows_change_no_answer(context):
    policy, _ = parts()
    pages = [policy.first(f"press {colour}\nbuttons") for colour in tiny.COLOURS]
    many = decoder(20, context=context)
    first = many.respond(range(20), [pages[row % 3] for row in range(20)], [ACTIONS] * 20, 0)
    assert len(many._owners) == 32
    assert len({tuple(tokens) for tokens in said(first)}) > 3  # same prompt, other key, other answer
    few = [17, 4]
    following = policy.next("door again")
    chunks = [[*first[row].unfed, *following] if context == "append" else pages[0] for row in few]
    second = many.respond(few, chunks, [ACTIONS[:2], ACTIONS], 1)
    assert len(many._owners) == 8
    for place, row in enumerate(few):
        alone = decoder(1, first=row, context=context)
        (answer,) = alone.respond([0], [pages[row % 3]], [ACTIONS], 0)
        assert said([answer]) == said([first[row]]) and answer.unfed == first[row].unfed
        np.testing.assert_allclose(answer.logp, first[row].logp, atol=1e-5)
        (answer,) = alone.respond([0], [chunks[place]], [[ACTIONS[:2], ACTIONS][place]], 1)
        assert said([answer]) == said([second[place]])
        np.testing.assert_allclose(answer.logp, second[place].logp, atol=1e-5)


def test_a_response_ends_its_turn_and_forced_tokens_are_not_the_policys():
    policy, _ = parts(False)
    (response,) = decoder(1, constrain=False, max_response=3).respond([0], [policy.first("door")], None, 0)
    assert response.tokens[-1] == policy.chat.end_token and len(response.tokens) <= 4
    if len(response.tokens) == 4:
        assert not response.sampled[-1] and response.logp[-1] == 0
    assert response.unfed == response.tokens[len(response.tokens) - len(response.unfed) :].tolist()


def test_the_cache_grows_over_many_turns():
    policy, _ = parts()
    long = decoder(1)
    chunk = policy.first("press red\nbuttons")
    for turn in range(4):
        (response,) = long.respond([0], [chunk * (3 if turn else 8)], [ACTIONS], turn)
        chunk = [*response.unfed, *policy.next("buttons again " * 20)]
    assert long._cache.valid.shape[1] > 256
    assert int(long._cache.length[0]) > 256


def test_decoding_a_response_drops_its_end_token_only():
    policy, _ = parts()
    ids = policy.first("look")
    assert policy.decode([*ids, policy.chat.end_token]) == policy.decode(ids)


def test_parameters_are_cast_or_adapted_for_the_forward_pass():
    params = {"a": np.ones(2, np.float32)}
    assert attach(jax.tree.map(jax.numpy.asarray, params), None, 0.0, "bfloat16")["a"].dtype == "bfloat16"
    base = tiny.params()
    assert attach(None, base, 16.0, "float32") is base

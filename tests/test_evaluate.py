"""Evaluation: the same tasks and keys every time, whatever else goes on."""

import dataclasses
import functools

import pytest
import tiny

from rspo_jax import build, envs, evaluate
from rspo_jax.tasks import panel


@functools.cache
def result(rows: int = 8, temperature: float = 1.0):
    tree = tiny.config(decoding__rows=rows, decoding__eval_temperature=temperature)
    policy, params = tiny.policy(tree)
    suite = envs.gym_suite(tree.env.id, num_train=8, num_valid=16)
    settings = build.rollout_settings(tree, evaluation=True)
    with tiny.pool(rows) as pool:
        return evaluate.evaluate(policy, params, pool, suite, ["valid", "train"], 8, settings)


def test_a_panel_is_played_the_same_way_every_time_and_in_any_chunks():
    metrics, played = result()
    again, _ = result.__wrapped__()
    chunked, in_chunks = result(rows=3)
    assert metrics == again == chunked
    assert [e.task for e in played["valid"]] == [e.task for e in in_chunks["valid"]]


def test_metrics_are_means_over_the_panel():
    metrics, played = result()
    episodes = played["valid"]
    assert metrics["eval/valid/episodes"] == 8 == len(episodes)
    assert metrics["eval/valid/success"] == sum(e.won for e in episodes) / 8
    assert metrics["eval/valid/return"] == 10 * metrics["eval/valid/success"]
    kinds = {e.task_type for e in episodes}
    assert sum(metrics[f"eval/valid/episodes/{kind}"] for kind in kinds) == 8
    total = sum(metrics[f"eval/valid/success/{k}"] * metrics[f"eval/valid/episodes/{k}"] for k in kinds)
    assert total == pytest.approx(sum(e.won for e in episodes))


def test_a_split_that_is_not_there_or_empty_is_named():
    suite = envs.gym_suite("tiny:Buttons-v0", num_train=8, num_valid=4)
    with pytest.raises(ValueError, match="'nowhere'; this environment has"):
        evaluate.check_splits(suite, ["nowhere"])
    with pytest.raises(ValueError, match="'valid', which has no tasks"):
        evaluate.check_splits(dataclasses.replace(suite, splits={"valid": ()}), ["valid"])


def test_a_panel_is_at_most_its_split():
    suite = envs.gym_suite("tiny:Buttons-v0", num_train=8, num_valid=4)
    assert sorted(t["seed"] for t in panel(suite.splits["valid"], 100)) == [t["seed"] for t in suite.splits["valid"]]


def test_rows_too_short_for_any_first_prompt_are_refused():
    tree = tiny.config(context__max_tokens=16, decoding__max_response=12)
    policy, params = tiny.policy(tree)
    suite = envs.gym_suite(tree.env.id, num_train=8, num_valid=4)
    settings = build.rollout_settings(tree, evaluation=True)
    with tiny.pool() as pool, pytest.raises(ValueError, match="context.max_tokens = 16: .* decoding.max_response = 12"):
        evaluate.evaluate(policy, params, pool, suite, ["valid"], 4, settings)

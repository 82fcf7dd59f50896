"""Window context and the `verl` format, from end to end, in both environments: one token row for each turn."""

import functools
import tempfile

import jax
import numpy as np
import pytest
import tiny

from rspo_jax import build, configuration, models, packing, rollout
from rspo_jax.envs import prompts
from rspo_jax.experiment import Experiment
from rspo_jax.models.tokenizer import train_tokenizer

KINDS = ("webshop", "alfworld")
TURNS, RESPONSE = 4, 6


def config(kind: str, **changes):
    """The paper's preset of an environment, scaled down to generated tasks and a random agent of a few thousand
    parameters."""
    small = {
        "env.data": "",
        "env.max_turns": TURNS,
        "model.path": agent_directory(kind),
        "model.dtype": "float32",
        "decoding.max_response": RESPONSE,
        "batch.tasks": 2,
        "batch.group_size": 2,
        "optim.lr": 1e-2,
        "optim.minibatch_rows": 8,
        "optim.micro_rows": 4,
        "mesh.fsdp": 1,
        "rspo.alpha": 0.5,
        "rspo.k": 1,
        "rspo.collect_tasks": 2,
        "rspo.successes_only": False,
        "eval.episodes": 2,
        "train.progress": False,
    }
    if kind == "alfworld":
        small |= {"env.num_train": 4, "env.num_valid": 4}
    overrides = small | {key.replace("__", "."): value for key, value in changes.items()}
    return configuration.load_config(f"configs/{kind}_gigpo.py:paper-1.5b", overrides)


@functools.cache
def suite(kind: str):
    return build.make_suite(config(kind))


@functools.cache
def agent_directory(kind: str) -> str:
    """A random agent whose tokenizer has read the format's own words and two pages."""
    generated = {"webshop": build.webshop, "alfworld": build.alfworld}[kind].generated_suite(0)
    obs, info = generated.make_env().reset(**generated.splits["train"][0])
    text = prompts.get("verl", kind)
    read = [text.window(obs, info, info["task"], [], 0), text.window(obs, info, info["task"], [(obs, "look")] * 2, 2)]
    tokenizer = train_tokenizer(read, ["<think>", "</think>", "<action>", "</action>", "search", "click", "look"], 800)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "head_dim": 8}
    model = models.ModelConfig(
        vocab_size=len(tokenizer), num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=8192, **sizes
    )
    directory = tempfile.mkdtemp()
    models.save_hf(directory, model, models.init(jax.random.key(0), model), tokenizer)
    return directory


@functools.cache
def played(kind: str, max_prompt: int):
    """(policy, settings, episodes, trajectory) of two tasks, twice each."""
    tree = config(kind, context__max_prompt=max_prompt)
    policy, params = build.make_policy(tree, build.make_mesh(tree))
    settings = build.rollout_settings(tree)
    tasks = [suite(kind).splits["train"][i] for i in range(2)]
    with build.make_pool(tree, suite(kind), 4) as pool:
        episodes = rollout.play(policy, params, pool, tasks, jax.random.key(1), 2, settings)
    return policy, settings, episodes, rollout.assemble(episodes, None)


def replayed_prompts(kind: str, policy, episode) -> list[list[int]]:
    """The whole prompts of an episode, by playing its actions again: nothing of the rollout's own loop."""
    text, env = prompts.get("verl", kind), suite(kind).make_env()
    obs, info = env.reset(**episode.task)
    task, seen, out = info["task"], [], []
    for step, turn in enumerate(episode.turns):
        out.append(policy.chat.first(text.window(obs, info, task, seen[-2:], step)))
        seen.append((obs, turn.action))
        obs, *_, info = env.step(turn.action)
    return out


def response_start(rows, n: int) -> int:
    """Where the sampled tokens of row n begin."""
    return int(np.argmax(rows.action_mask[n]))


@pytest.mark.parametrize("kind", KINDS)
def test_every_turn_is_one_row_of_its_own(kind):
    _, _, episodes, trajectory = played(kind, 4096)
    rows = trajectory.rows
    real = np.flatnonzero(rows.episode >= 0)
    want = [(b, t) for b, episode in enumerate(episodes) for t in range(len(episode.turns))]
    assert max(t for _, t in want) >= 2, "some episode must be long enough to have a history"
    assert [(rows.episode[n], rows.turn[n, 0]) for n in real] == want
    for n in real:
        assert set(rows.turn[n][rows.mask[n]]) == {rows.turn[n, 0]}
        assert rows.mask[n][: rows.mask[n].sum()].all()
    np.testing.assert_array_equal(trajectory.mask.sum(axis=1), [len(e.turns) for e in episodes])


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_is_the_formats_prompt_and_then_what_was_sampled(kind):
    policy, _, episodes, trajectory = played(kind, 4096)
    rows, n = trajectory.rows, 0
    for episode in episodes:
        for prompt, turn in zip(replayed_prompts(kind, policy, episode), episode.turns, strict=True):
            start, length = response_start(rows, n), int(rows.mask[n].sum())
            assert rows.tokens[n, :start].tolist() == prompt
            assert length - start <= RESPONSE + 1
            assert policy.decode(rows.tokens[n, start:length]) == turn.response
            assert rows.tokens[n, length - 1] == policy.chat.end_token
            sampled = rows.action_mask[n, start:length]
            assert sampled[:-1].all() and (sampled[-1] or length - start == RESPONSE + 1)
            n += 1
    assert n == np.sum(rows.episode >= 0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_that_is_too_long_loses_its_beginning(kind):
    policy, _, episodes, trajectory = played(kind, 128)
    rows, n, cut = trajectory.rows, 0, 0
    for episode in episodes:
        for prompt in replayed_prompts(kind, policy, episode):
            start = response_start(rows, n)
            assert rows.tokens[n, :start].tolist() == prompt[-128:]
            cut += len(prompt) > 128
            n += 1
    assert cut
    assert rows.mask.sum(axis=1).max() <= 128 + RESPONSE + 1


@pytest.mark.parametrize("kind", KINDS)
def test_responses_break_the_format_and_pay_the_penalty_on_their_turn(kind):
    """A random agent never writes both tags; every turn is penalised, none is lost."""
    _, _, episodes, _ = played(kind, 4096)
    trajectory = rollout.assemble(episodes, None, invalid_penalty=0.1)
    valid = np.array(
        [[t.valid for t in e.turns] + [True] * (trajectory.mask.shape[1] - len(e.turns)) for e in episodes]
    )
    assert not valid.all()
    np.testing.assert_allclose(trajectory.penalty, np.where(valid, 0, 0.1).astype(np.float32))


def test_an_episode_does_not_depend_on_the_others():
    """Padding and shared prompts change no token: each row is sampled with its own key."""
    kind = "alfworld"
    policy, settings, episodes, _ = played(kind, 4096)
    tree = config(kind)
    params = build.make_policy(tree, build.make_mesh(tree))[1]
    with build.make_pool(tree, suite(kind), 4) as pool:
        first = rollout.play(policy, params, pool, [episodes[0].task], jax.random.key(1), 2, settings)
    for alone, together in zip(first, episodes[:2], strict=True):
        assert [t.response for t in alone.turns] == [t.response for t in together.turns]


@pytest.mark.parametrize(("kind", "dtype", "gap"), [("webshop", "float32", 1e-4), ("alfworld", "bfloat16", 0.1)])
def test_one_loop_of_the_scaled_down_paper_preset(kind, dtype, gap, tmp_path):
    """Guide, collection and target: every phase plays, and both agents learn from rows of single turns."""
    with Experiment(config(kind, model__dtype=dtype, context__max_prompt=256), tmp_path) as run:
        before = tiny.state_of(run)
        tiny.ticks(run, 3)
        after = tiny.state_of(run)
        assert run.progress.step == 1 and run.progress.loop == 1
    phases = {row["phase"]: row for row in tiny.rows_of(tmp_path)}
    assert set(phases) == {"guide", "collect", "target"}
    for name in ("guide", "target"):
        assert np.isfinite(phases[name]["loss"]) and phases[name]["grad_norm"] > 0
        assert phases[name]["sampler_gap"] < gap
        assert phases[name]["response_tokens"] <= RESPONSE + 1
    assert not tiny.same(before.params, after.params)
    assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(after.params))


def test_actions_are_gathered_from_the_end_of_each_row():
    """What the update reads of a window row is its response alone, as wide as the longest one."""
    _, _, _, trajectory = played("webshop", 4096)
    actions = packing.gather_actions(trajectory.rows)
    assert actions.target.shape[1] == 32
    rows = np.flatnonzero(actions.episode >= 0)
    for n in rows:
        start = response_start(trajectory.rows, n)
        np.testing.assert_array_equal(actions.position[n][actions.action_mask[n]][0], start)

"""A run that trains LoRA adapters: one frozen base, and two small agents on it that never touch each other."""

import jax
import numpy as np
import pytest
import tiny

from rspo_jax import models
from rspo_jax.decoder import attach
from rspo_jax.experiment import Experiment
from rspo_jax.learner import Learner
from rspo_jax.models import lora
from rspo_jax.packing import gather_actions
from rspo_jax.update import action_logprobs

RANK, ALPHA = 4, 16.0


def config(**changes):
    """Enough episodes for some progress, and a target that is paid for it: every update then has a gradient."""
    small = {"batch__tasks": 8, "batch__group_size": 4, "reward": "dense", "loss__kl_coef": 0.05, "rspo__k": 1}
    return tiny.config(model__lora__rank=RANK, model__lora__alpha=ALPHA, **small | changes)


def host(tree):
    return jax.device_get(tree)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run after one whole loop and the guide's phase of the next, with what it was like at each tick."""
    with Experiment(config(), tmp_path_factory.mktemp("lora")) as run:
        base = host(run.policy.base)
        ticks = [(host(run.target), None)]
        for _ in range(4):
            tiny.ticks(run, 1)
            ticks.append((host(run.target), host(run.guide)))
        yield run, base, ticks


def test_the_base_never_changes(trained):
    run, base, _ = trained
    assert tiny.same(host(run.policy.base), base)


def test_agents_are_adapters_only_and_in_float32(trained):
    """Nothing in an agent, its moments included, has the size of a base kernel."""
    run, base, _ = trained
    params = run.target.params
    names = {path[-1].key for path, _ in jax.tree.leaves_with_path(params)}
    assert names == {"lora_a", "lora_b"}
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {np.dtype("float32")}
    kernels = {leaf.shape for path, leaf in jax.tree.leaves_with_path(base) if path[-1].key == "kernel"}
    assert not kernels & {leaf.shape for leaf in jax.tree.leaves(run.target)}
    per_kernel = sum(
        RANK * (leaf.shape[1] + leaf.shape[2])
        for p, leaf in jax.tree.leaves_with_path(base["layers"])
        if p[-1].key == "kernel"
    )
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == per_kernel * run.policy.config.num_hidden_layers


def test_the_base_is_stored_once(trained):
    """The learner, the reference and the policy share it: the run holds no other array of a kernel's shape."""
    run, _, _ = trained
    assert run.reference is None
    assert run.learner.policy.base is run.policy.base
    shape = run.policy.base["embed_tokens"].shape
    parts = (run.target, run.guide, run.critics, run.reference)
    assert shape not in {leaf.shape for leaf in jax.tree.leaves(parts)}


def test_target_and_guide_are_apart(trained):
    """Each phase changes its own adapter only: guide, collect, target, guide."""
    run, _, ticks = trained
    (start, _), (target_1, guide_1), (target_2, guide_2), (target_3, _), (target_4, guide_4) = ticks
    assert tiny.same(target_1.params, start.params) and not tiny.same(guide_1.params, start.params)
    assert tiny.same((target_2, guide_2), (target_1, guide_1)), "collecting changes nobody"
    assert not tiny.same(target_3.params, target_2.params)
    assert tiny.same(target_4, target_3) and not tiny.same(guide_4.params, target_4.params)
    pairs = zip(jax.tree.leaves(run.target), jax.tree.leaves(run.guide), strict=True)
    assert all(a.unsafe_buffer_pointer() != b.unsafe_buffer_pointer() for a, b in pairs)


def test_an_untrained_adapter_is_the_base_and_the_reference():
    """lora_b starts at zero: the first policy is the base, so its divergence from the reference is exactly none."""
    tree = config()
    policy, params = tiny.policy(tree)
    merged = policy.merged(Learner.init(tiny.learner(tree), params).params)
    assert tiny.same(host(merged), host(policy.base))


def test_the_reference_is_the_bare_base(trained):
    """Log-probs of `None` are those of the base as a model of its own, whatever the adapter has become."""
    run, base, _ = trained
    episodes = tiny.play(run.config, (run.policy, run.policy.merged(run.target.params)))
    rows = tiny.rollout.assemble(episodes, None).rows
    actions = gather_actions(rows)
    reference = run.learner.logprobs(None, actions)
    free = run.learner.free_tokens
    alone, _ = action_logprobs(base, run.policy.config, actions, free, run.config.decoding.temperature)
    np.testing.assert_allclose(reference, alone, atol=1e-5)
    assert np.abs(reference - run.learner.logprobs(run.target.params, actions)).max() > 1e-3


def test_the_exported_agent_is_the_merged_model(trained):
    """It loads as an ordinary model with the very logits of the run's merged parameters."""
    run, base, _ = trained
    model, exported = models.load_hf(run.save_agent())
    tokens = np.arange(24).reshape(2, 12) % model.vocab_size
    merged = models.logits(run.policy.merged(run.target.params), run.policy.config, tokens)
    np.testing.assert_array_equal(models.logits(exported, model, tokens), merged)
    attached = lora.attach(run.policy.base, run.target.params, alpha=ALPHA)
    np.testing.assert_allclose(models.logits(attached, model, tokens), merged, atol=1e-4)
    assert np.abs(models.logits(base, model, tokens) - merged).max() > 1e-3


@pytest.mark.parametrize("before", [1, 2])
def test_a_resumed_run_goes_on_bit_for_bit(before, tmp_path):
    """Stopped in the guide's phase or before the target's: base, both adapters and their moments are as they were."""
    with Experiment(config(), tmp_path / "whole") as run:
        tiny.ticks(run, 3)
        whole = tiny.state_of(run)
    with Experiment(config(), tmp_path / "parts") as run:
        tiny.ticks(run, before)
        run.checkpoint()
    with Experiment(config(), tmp_path / "parts") as run:
        assert run.progress.tick == before
        tiny.ticks(run, 3 - before)
        assert tiny.same(tiny.state_of(run), whole)


def test_in_bfloat16_only_the_base_is_rounded(tmp_path):
    """Adapters and their moments stay float32, so that small updates are not lost."""
    with Experiment(config(model__dtype="bfloat16"), tmp_path) as run:
        tiny.ticks(run, 1)
        assert {leaf.dtype.name for leaf in jax.tree.leaves(run.policy.base)} == {"bfloat16"}
        assert {leaf.dtype.name for leaf in jax.tree.leaves(run.guide.params)} == {"float32"}
        forward = attach(run.guide.params, run.policy.base, ALPHA, "bfloat16")
        assert {leaf.dtype.name for leaf in jax.tree.leaves(forward)} == {"bfloat16"}


def test_a_critic_under_adapters_is_an_adapter_and_a_head(tmp_path):
    tree = config(algo__name="ppo", batch__tasks=32, batch__group_size=1)
    with Experiment(tree, tmp_path) as run:
        critic = run.critics["target"].params
        assert set(critic) == {"head", "backbone"}
        assert {path[-1].key for path, _ in jax.tree.leaves_with_path(critic["backbone"])} == {"lora_a", "lora_b"}
        before = host((critic, run.policy.base))
        tiny.ticks(run, 1)
        after = host((run.critics["guide"].params, run.policy.base))
        assert not tiny.same(after[0], before[0]) and tiny.same(after[1], before[1])

"""A learner's agents: independent copies, and the same results on any mesh."""

import os
import subprocess
import sys

import jax
import numpy as np
import pytest
import sharded
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from rspo_jax.learner import minibatches


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 50), st.integers(0, 60))
def test_minibatches_are_a_partition_of_nearly_equal_parts(rows, size):
    parts = minibatches(rows, size, jax.random.key(rows))
    assert sorted(np.concatenate(parts).tolist()) == list(range(rows))
    lengths = [len(p) for p in parts]
    assert max(lengths) - min(lengths) <= 1 and max(lengths) <= (size or rows)


def test_training_a_copy_leaves_the_original_bit_for_bit():
    learner = tiny.learner()
    original = learner.init(tiny.params())
    before = jax.device_get(original)
    copy, _ = learner.update(learner.copy(original), tiny.loss_batch(tiny.config()), jax.random.key(0), kl_coef=0.0)
    jax.tree.map(np.testing.assert_array_equal, before, jax.device_get(original))
    assert not np.array_equal(copy.params["embed_tokens"], original.params["embed_tokens"])


def test_an_agent_does_not_share_the_parameters_it_was_made_of():
    learner = tiny.learner()
    params = tiny.params()
    state = learner.init(params)
    learner.update(state, tiny.loss_batch(tiny.config()), jax.random.key(0), kl_coef=0.0)  # donates the state
    assert np.isfinite(np.asarray(params["embed_tokens"])).all()


def test_log_probs_of_any_number_of_rows():
    learner = tiny.learner(tiny.config(optim__micro_rows=3))
    actions = tiny.loss_batch(tiny.config()).actions
    whole = learner.logprobs(tiny.params(), actions)
    some = learner.logprobs(tiny.params(), jax.tree.map(lambda x: x[:5], actions))
    np.testing.assert_allclose(some, whole[:5], atol=1e-5)


@pytest.mark.parametrize("context, data, fsdp, tensor", [("append", 2, 2, 1), ("window", 1, 4, 1), ("append", 1, 2, 2)])
def test_episodes_and_updates_on_a_mesh_equal_those_on_one_device(tmp_path, context, data, fsdp, tensor):
    path = tmp_path / "sharded.npz"
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": str(data * fsdp * tensor),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    command = [sys.executable, sharded.__file__, str(path), context, str(data), str(fsdp), str(tensor)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1200)
    assert run.returncode == 0, run.stderr
    there, here = np.load(path), sharded.compute(context=context)
    assert np.array_equal(there["tokens"], here["tokens"])
    for name in ("logp", "loss", "grad_norm", "embed", "q"):
        np.testing.assert_allclose(there[name], here[name], rtol=1e-3, atol=2e-5, err_msg=name)

"""A checkpoint gives back every bit, survives crashes, and says clearly what does not fit."""

import pathlib
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from rspo_jax import checkpoint

ROOT = pathlib.Path(__file__).resolve().parents[1]


def make_state(seed=0, width=3):
    key = jax.random.key(seed)
    params = {
        "embed_tokens": jax.random.normal(key, (5, width), jnp.bfloat16),
        "layers": [{"scale": jnp.ones(width)}, (jnp.arange(4, dtype=jnp.int8), jnp.array([True, False]))],
        "head": jax.random.normal(key, (width,)) * 1e-30,
    }
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(optax.linear_schedule(0.0, 1.0, 9)))
    float_params = {"embed_tokens": params["embed_tokens"], "head": params["head"]}
    adapters = {"empty": jnp.zeros((2, 0)), "nothing": None}
    return {"params": params, "optimizer": optimizer.init(float_params), "key": key, "lora": adapters}


def bits(leaf):
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    array = np.asarray(leaf)
    return array.shape, array.dtype, array.tobytes()


def assert_same_bits(left, right):
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        assert bits(a) == bits(b)


def save(directory, *checkpoints):
    with checkpoint.Checkpointer(directory) as checkpointer:
        for step, metric in checkpoints:
            checkpointer.save(step, make_state(step), {"step": step}, metric)


def steps(directory):
    return sorted(int(path.name) for path in directory.iterdir() if path.name.isdigit())


def test_an_empty_directory_has_no_checkpoint(tmp_path):
    with checkpoint.Checkpointer(tmp_path / "new") as checkpointer:
        assert checkpointer.restore_latest(make_state()) is None
        assert checkpointer.restore_best(make_state()) is None


def test_state_and_host_come_back_bit_for_bit(tmp_path):
    state = make_state(7)
    generator = np.random.default_rng(3)
    host = {
        "phase": "guide",
        "order": generator.bit_generator.state,  # holds 128-bit integers
        "buffer": [
            {"tokens": np.arange(12, dtype=np.int32).reshape(3, 4), "allowed": np.zeros((3, 4, 0), np.int32)},
            {"tokens": np.arange(5, dtype=np.int32).reshape(1, 5), "logp": np.float32([[-0.0, np.nan, 1e-42]])},
        ],
        "half": np.asarray(jnp.ones((2,), jnp.bfloat16)),
        "mask": np.array(True),
    }
    with checkpoint.Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(4, state, host)
    with checkpoint.Checkpointer(tmp_path) as checkpointer:
        restored = checkpointer.restore_latest(checkpoint.abstract(make_state(0)))
    assert restored.step == 4
    assert_same_bits(restored.state, state)
    assert restored.state["key"].dtype == state["key"].dtype
    assert jax.random.bits(restored.state["key"]) == jax.random.bits(state["key"])
    assert restored.host["order"] == host["order"] and restored.host["phase"] == "guide"
    assert_same_bits(restored.host["buffer"], host["buffer"])
    assert bits(restored.host["half"]) == bits(host["half"])
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(restored.host["buffer"]))


arrays = st_numpy.arrays(
    st.sampled_from([np.int32, np.float32, np.int8, np.bool_, np.int64]),
    st_numpy.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)
host_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5), arrays),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=8,
)


@settings(max_examples=15, deadline=None)
@given(host=st.dictionaries(st.text(max_size=5), host_values, max_size=4))
def test_host_data_of_any_shape_survives(tmp_path_factory, host):
    directory = tmp_path_factory.mktemp("checkpoints")
    with checkpoint.Checkpointer(directory) as checkpointer:
        checkpointer.save(1, {"x": jnp.ones(2)}, host)
        checkpointer.wait()
        restored = checkpointer.restore_latest({"x": jnp.zeros(2)}).host

    def same(left, right):
        if isinstance(left, dict):
            return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
        if isinstance(left, list):
            return len(left) == len(right) and all(map(same, left, right))
        return bits(left) == bits(right) if isinstance(left, np.ndarray) else left == right

    assert same(host, restored)


def test_last_and_best_are_kept_and_nothing_else(tmp_path):
    save(tmp_path, (1, 0.2), (2, 0.9), (3, None), (4, 0.5), (5, float("nan")))
    assert steps(tmp_path) == [2, 5]
    save(tmp_path, (6, 0.1))  # the best is remembered over a restart
    assert steps(tmp_path) == [2, 6]
    with checkpoint.Checkpointer(tmp_path) as checkpointer:
        best, latest = checkpointer.restore_best(make_state()), checkpointer.restore_latest(make_state())
    assert (best.step, best.host, latest.step) == (2, {"step": 2}, 6)
    assert_same_bits(best.state, make_state(2))


def test_a_step_that_does_not_advance_is_refused(tmp_path):
    save(tmp_path, (5, None))
    with checkpoint.Checkpointer(tmp_path) as checkpointer, pytest.raises(ValueError, match="step 5 must be after 5"):
        checkpointer.save(5, make_state(), {})


def test_later_donation_and_changes_do_not_reach_the_checkpoint(tmp_path):
    state = {"x": jnp.arange(100_000, dtype=jnp.float32)}
    buffer = np.arange(100_000)
    with checkpoint.Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, state, {"buffer": buffer})
        buffer[:] = -1
        for _ in range(3):
            state = jax.jit(lambda s: jax.tree.map(lambda x: x * 0 - 1, s), donate_argnums=0)(state)
        jax.block_until_ready(state)
        checkpointer.wait()
        restored = checkpointer.restore_latest(state)
    np.testing.assert_array_equal(restored.state["x"], np.arange(100_000, dtype=np.float32))
    np.testing.assert_array_equal(restored.host["buffer"], np.arange(100_000))


def truncate_largest(directory):
    largest = max((path for path in (directory / "state").rglob("*") if path.is_file()), key=lambda p: p.stat().st_size)
    largest.write_bytes(largest.read_bytes()[: largest.stat().st_size // 2])


DAMAGES = {
    "no state": lambda directory: shutil.rmtree(directory / "state"),
    "no host": lambda directory: shutil.rmtree(directory / "host"),
    "no tree": lambda directory: (directory / "state" / "_METADATA").unlink(),
    "no arrays": lambda directory: shutil.rmtree(directory / "state" / "d"),
    "cut file": truncate_largest,
    "empty": lambda directory: [shutil.rmtree(path) for path in directory.iterdir() if path.is_dir()],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_skipped_and_its_step_can_be_saved_again(tmp_path, damage):
    save(tmp_path, (1, 0.9), (2, 0.1))
    DAMAGES[damage](tmp_path / "2")
    with checkpoint.Checkpointer(tmp_path) as checkpointer:
        restored = checkpointer.restore_latest(make_state())
        assert restored.step == 1
        assert_same_bits(restored.state, make_state(1))
        checkpointer.save(2, make_state(2), {}, 0.1)
    with checkpoint.Checkpointer(tmp_path) as checkpointer:
        assert checkpointer.restore_latest(make_state()).step == 2


def test_when_all_are_damaged_the_run_does_not_silently_start_again(tmp_path):
    save(tmp_path, (1, None))
    shutil.rmtree(tmp_path / "1" / "state")
    with checkpoint.Checkpointer(tmp_path) as checkpointer, pytest.raises(ValueError, match="is damaged"):
        checkpointer.restore_latest(make_state())


def test_a_process_killed_in_a_save_leaves_the_previous_checkpoint(tmp_path):
    program = """
import os, sys, jax.numpy as jnp, numpy as np
from rspo_jax import checkpoint
checkpointer = checkpoint.Checkpointer(sys.argv[1])
checkpointer.save(1, {"x": jnp.ones(1000)}, {"step": 1})
checkpointer.wait()
checkpointer.save(2, {"x": np.random.default_rng(0).random(8_000_000)}, {"step": 2})
os._exit(9)  # as a kill: nothing is waited for
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, check=False)
    assert done.returncode == 9
    assert any("tmp" in path.name for path in tmp_path.iterdir()), "the save was complete before the kill"
    with checkpoint.Checkpointer(tmp_path) as checkpointer:
        restored = checkpointer.restore_latest({"x": jnp.zeros(1000)})
        assert (restored.step, restored.host) == (1, {"step": 1})
        checkpointer.save(2, {"x": jnp.zeros(1000)}, {})
        checkpointer.wait()
        assert checkpointer.restore_latest({"x": jnp.zeros(1000)}).step == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s["params"].update(head=jnp.zeros(4)), "params.head is float32[3] there and float32[4] here"),
        (lambda s: s["params"].pop("head"), "params.head is float32[3] there and absent here"),
        (lambda s: s["params"].update(extra=jnp.zeros(1)), "params.extra is absent there and float32[1] here"),
        (lambda s: s["params"].update(head=jnp.zeros(3, jnp.bfloat16)), "float32[3] there and bfloat16[3] here"),
    ],
)
def test_another_tree_is_refused_in_one_sentence(tmp_path, change, words):
    save(tmp_path, (1, None))
    state = make_state()
    change(state)
    with checkpoint.Checkpointer(tmp_path) as checkpointer, pytest.raises(ValueError) as caught:
        checkpointer.restore_latest(state)
    assert words in str(caught.value) and "another --workdir" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_arrays_go_to_the_sharding_that_is_asked_for(tmp_path):
    save(tmp_path, (1, None))
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    target = checkpoint.abstract(make_state())
    target["params"]["head"] = jax.ShapeDtypeStruct((3,), jnp.float32, sharding=sharding)
    target["key"] = jax.ShapeDtypeStruct(
        (), target["key"].dtype, sharding=jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    )
    with checkpoint.Checkpointer(tmp_path) as checkpointer:
        restored = checkpointer.restore_latest(target)
    assert restored.state["params"]["head"].sharding == sharding
    assert restored.state["key"].sharding == target["key"].sharding
    assert_same_bits(restored.state, make_state(1))

"""Sharded and unsharded computations agree. Run as a program, this file measures on eight virtual devices."""

import dataclasses
import functools
import json
import os
import subprocess
import sys
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec
from tiny_model import tiny_config, tiny_params

from rspo_jax import models, sharding

CONFIG = tiny_config(tie_word_embeddings=False, vocab_size=48)
MESHES = [(1, 8, 1), (2, 2, 2)]


@pytest.fixture(scope="module")
def figures():
    """What `measure` found, by a process of its own: the number of devices is fixed when JAX starts."""
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.parametrize("mesh", [str(m) for m in MESHES])
@pytest.mark.parametrize("what", ["logits", "gradient", "masked gradient", "cached states"])
def test_sharded_equals_unsharded(figures, mesh, what):
    assert figures[mesh][what] < 1e-4


@pytest.mark.parametrize("mesh", [str(m) for m in MESHES])
def test_a_directory_saves_from_the_mesh_and_loads_onto_it_bit_by_bit(figures, mesh):
    assert figures[mesh]["saved and loaded equal"]


def test_each_device_holds_its_part_only(figures):
    """On 2 x 2 x 2 a kernel is split in four and copied once; the moments of AdamW follow their parameters."""
    parts = figures[str((2, 2, 2))]["shard shapes"]
    assert parts["layers/self_attn/q_proj/kernel"] == [2, 16, 16]
    assert parts["layers/mlp/down_proj/kernel"] == [2, 24, 16]
    assert parts["embed_tokens"] == [24, 16]
    assert parts["lm_head/kernel"] == [16, 24]
    assert parts["norm/scale"] == [32]
    assert figures[str((2, 2, 2))]["moments follow"]
    assert figures[str((2, 2, 2))]["gathered shape"] == [2, 32, 16]
    assert figures[str((2, 2, 2))]["cache shape"] == [2, 1, 8, 16]


def test_sizes_that_do_not_divide_are_named(figures):
    errors = figures["errors"]
    assert "mesh data x fsdp x tensor = 2 x 2 x 1 needs 4 devices and there are 8" in errors["mesh"]
    assert "k_proj/kernel has size 12 on axis 2, which the mesh axis tensor = 8 does not divide" in errors["param"]
    assert (
        "a batch of 6 rows does not divide over data x fsdp = 4 devices; pad it to a multiple of 4" in errors["batch"]
    )


def test_every_matrix_of_a_model_has_a_rule_of_its_own():
    """The last rule copies; only vectors, adapters' small sides and scalars may end there."""
    params = jax.eval_shape(lambda: models.init(jax.random.key(0), CONFIG))
    params["adapter"] = jax.eval_shape(lambda: models.init_lora(jax.random.key(0), params_zero(), rank=2))
    for path, leaf in jax.tree.leaves_with_path(params):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        whole = sharding.partition_spec(name, leaf.shape) == PartitionSpec()
        assert whole == name.endswith("scale"), name


def params_zero():
    return jax.tree.map(lambda x: jnp.zeros(x.shape), jax.eval_shape(lambda: models.init(jax.random.key(0), CONFIG)))


def measure():
    """Largest differences between sharded and unsharded results, and where the parts lie, as JSON on stdout."""
    params = tiny_params(CONFIG)
    tokens = jax.random.randint(jax.random.key(5), (8, 10), 0, 48)
    mask = jnp.arange(10) < jnp.array([10, 3, 7, 10, 1, 9, 10, 5])[:, None]
    batch = {"tokens": tokens, "mask": mask}
    want = jax.jit(results)(params, batch)
    found = {str(sizes): measure_mesh(sizes, params, batch, want) for sizes in MESHES}
    narrow = {"k_proj": {"kernel": jnp.zeros((2, 32, 12))}}
    found["errors"] = {
        "mesh": message(lambda: sharding.make_mesh(2, 2, 1)),
        "param": message(lambda: sharding.shard_params(narrow, sharding.make_mesh(1, 1, 8))),
        "batch": message(lambda: sharding.shard_batch(jnp.zeros((6, 2)), sharding.make_mesh(2, 2, 2))),
    }
    print(json.dumps(found))


def measure_mesh(sizes, params, batch, want):
    mesh = sharding.make_mesh(*sizes)
    sharded = sharding.shard_params(params, mesh)
    on_mesh = dataclasses.replace(CONFIG, mesh=mesh)
    got = jax.jit(functools.partial(results, config=on_mesh))(sharded, sharding.shard_batch(batch, mesh))
    found = {name: difference(got[name], want[name]) for name in want}
    moments = sharding.shard_params(optax.adamw(1e-3).init(params), mesh)[0].mu
    found["moments follow"] = same_places(moments, sharded)
    found["shard shapes"] = {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf.addressable_shards[0].data.shape
        for path, leaf in jax.tree.leaves_with_path(sharded)
    }
    with tempfile.TemporaryDirectory() as directory:
        models.save_hf(directory, on_mesh, sharded)
        loaded_config, loaded = models.load_hf(directory, mesh=mesh)
    same = difference(loaded, params) == 0 and same_places(loaded, sharded)
    found["saved and loaded equal"] = same and loaded_config == on_mesh
    cache = jax.eval_shape(lambda: models.init_cache(CONFIG, 8, 16))
    found["cache shape"] = sharding.cache_shardings(cache, mesh).k[0].shard_shape(cache.k[0].shape)
    gathered = sharding.gather_fsdp(sharded, mesh)["layers"]["self_attn"]["q_proj"]["kernel"]
    found["gathered shape"] = gathered.addressable_shards[0].data.shape
    return found


def same_places(a, b):
    return all(jax.tree.leaves(jax.tree.map(lambda x, y: x.sharding == y.sharding, a, b)))


def results(params, batch, config=CONFIG):
    return {
        "logits": models.logits(params, config, batch["tokens"], batch["mask"]) * batch["mask"][..., None],
        "gradient": jax.grad(loss)(params, batch, config),
        "masked gradient": jax.grad(loss)(params, batch, config, mask=batch["mask"].reshape(-1)),
        "cached states": cached_states(params, batch, config),
    }


def loss(params, batch, config, mask=None):
    states = models.hidden(params, config, batch["tokens"], batch["mask"])
    flat = states.reshape(-1, states.shape[-1])
    logp, entropy = models.token_logprobs(
        flat, models.head(params, config), batch["tokens"].reshape(-1), chunk=16, mask=mask
    )
    return jnp.sum((logp + 0.1 * entropy) * batch["mask"].reshape(-1)) / jnp.sum(batch["mask"])


def cached_states(params, batch, config):
    cache = models.init_cache(CONFIG, 8, 16)
    first, cache = models.extend(params, config, cache, batch["tokens"][:, :6], batch["mask"][:, :6], 0)
    second, _ = models.extend(params, config, cache, batch["tokens"][:, 6:], batch["mask"][:, 6:], jnp.int32(6))
    return jnp.concatenate([first, second], axis=1) * batch["mask"][..., None]


def difference(a, b):
    leaves = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return max(float(np.abs(np.asarray(x) - np.asarray(y)).max()) for x, y in leaves)


def message(function):
    try:
        function()
    except ValueError as error:
        return str(error)
    return "no error"


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    measure()

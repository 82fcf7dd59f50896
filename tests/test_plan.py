"""The memory planner against real arrays and the compiler. Run as a program, this file compiles for virtual devices."""

import functools
import json
import os
import pathlib
import subprocess
import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

from rspo_jax import build, configuration, learner, plan, sharding
from rspo_jax.learner import Forward
from rspo_jax.models import init_cache, sampler
from rspo_jax.models.transformer import ModelConfig
from rspo_jax.packing import ActionBatch
from rspo_jax.update import AgentState, LossBatch, make_optimizer

ROOT = pathlib.Path(__file__).resolve().parents[1]
SMALL = ModelConfig(1000, 64, 192, 4, 4, 2, 16)
SHORT = {"context.max_prompt": 95, "decoding.max_response": 32, "optim.minibatch_rows": 16, "mesh.fsdp": 1}


def config(env: str = "webshop", algo: str = "gigpo", size: str = "1.5b", **changes):
    changes = {key.replace("__", "."): value for key, value in changes.items()}
    return configuration.load_config(str(ROOT / f"configs/{env}_{algo}.py:paper-{size}"), changes)


def short(**changes):
    """A paper preset with short rows, in float32: what a CPU compiles quickly and as it is."""
    return config(
        **{key.replace(".", "__"): value for key, value in SHORT.items()} | {"model__dtype": "float32"} | changes
    )


def agent_shapes(tree, model):
    """(AgentState, base) as shapes."""
    trained, base = plan.parameters(tree, model)
    moments = jax.eval_shape(make_optimizer(tree.optim).init, trained)
    return AgentState(trained, moments, jax.ShapeDtypeStruct((), jnp.int32)), base


def batch_shapes(tree, parts: int = 1) -> LossBatch:
    """An optimizer update's batch, as large as it can get."""
    rows, _, length, sampled = plan.batch_sizes(tree, parts)
    N = rows * parts

    def of(dtype, *shape):
        return jax.ShapeDtypeStruct((N, *shape), dtype)

    def at_tokens(dtype):
        return of(dtype, sampled)

    actions = ActionBatch(
        tokens=of(jnp.int32, length),
        allowed=of(jnp.int32, sampled, 0),
        episode=of(jnp.int32),
        action_mask=at_tokens(jnp.bool_),
        constraint=at_tokens(jnp.int8),
        logp=at_tokens(jnp.float32),
        **{name: at_tokens(jnp.int32) for name in ("position", "target", "turn")},
    )
    names = ("advantage", "weight", "logp_old", "logp_behaviour", "logp_ref")
    return LossBatch(actions, off_policy=of(jnp.bool_), **{name: at_tokens(jnp.float32) for name in names})


def lower_update(tree, model, parts: int = 1, place=lambda tree: tree, place_batch=lambda tree: tree):
    """The optimizer step of a configuration, traced for its shapes."""
    state, base = agent_shapes(tree, model)
    rows, micro, *_ = plan.batch_sizes(tree, parts)
    return learner._step.lower(
        place(state),
        None if base is None else place(base),
        (place_batch(batch_shapes(tree, parts)),),
        None,
        0.01,
        0.0,
        1e-6,
        forward=Forward(model, tree.model.dtype, tree.model.lora.alpha, 1.0, tree.model.remat),
        options=build.loss_options(tree),
        optimizer=make_optimizer(tree.optim),
        counts=(-(-rows // micro),),
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"optim__micro_rows": 0, "model__remat": False},
        {"optim__micro_rows": 4, "model__remat": True},
        {"optim__micro_rows": 4, "model__remat": False, "model__lora__rank": 4},
    ],
    ids=["all at once", "micro-batches and remat", "adapters"],
)
def test_an_update_needs_what_the_compiler_allocates(changes):
    """On one CPU device: never a tenth less, nor twice as much. XLA recomputes parts of attention that the planner,
    which reads what JAX keeps, counts as kept."""
    tree = short(**changes)
    planned = sum(plan.plan(tree, SMALL, 1, platform="cpu").updating.values())
    compiled = lower_update(tree, SMALL).compile().memory_analysis().temp_size_in_bytes
    assert 0.9 < planned / compiled < 2


def test_what_is_held_is_what_the_arrays_weigh():
    """Parameters, moments and critics of a PPO run, byte by byte."""
    tree = short(algo="ppo")
    held = plan.plan(tree, SMALL, 1).held
    state = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), agent_shapes(tree, SMALL)[0])
    assert held["target A: parameters"] == held["guide B: parameters"] == weight(state.params)
    assert held["target A: optimizer moments"] == held["guide B: optimizer moments"] == weight(state.opt_state)
    assert held["critic of A: parameters"] == weight(state.params) + 4 * (SMALL.hidden_size + 1)
    assert held["reference model (float32)"] == weight(state.params)
    assert sum(held.values()) == pytest.approx(13 * weight(state.params), rel=1e-2), "A, B, two critics: 3 each"


def weight(tree) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


def test_adapters_are_counted_twice_and_their_base_once():
    held = plan.plan(short(model__lora__rank=4), SMALL, 1).held
    whole = 4.0 * plan.parameter_count(SMALL)
    assert held["frozen base (float32)"] == whole
    assert not any("reference" in name for name in held)
    assert held["target A: parameters"] == held["guide B: parameters"] < whole / 4


@pytest.mark.parametrize(
    ("enabled", "source", "guide"), [(True, "guide", True), (True, "history", False), (False, "guide", False)]
)
def test_only_a_run_with_a_guide_pays_for_one(enabled, source, guide):
    held = plan.plan(short(rspo__enabled=enabled, rspo__source=source), SMALL, 1).held
    assert ("guide B: parameters" in held) == guide


def test_the_cache_is_that_of_the_decoder():
    """96 rows become 128 (a power of two), 127 tokens of a row become 256 slots."""
    sampling = plan.plan(short(decoding__rows=96), SMALL, 1).sampling
    cache = init_cache(SMALL, 128, 256)
    assert sampling["key/value cache"] == weight(cache)


def test_published_models_have_their_published_number_of_parameters():
    assert plan.parameter_count(plan.PUBLISHED["paper-1.5b"]) == 1_543_714_304
    assert plan.parameter_count(plan.PUBLISHED["paper-7b"]) == 7_615_616_512


@pytest.mark.parametrize(
    ("env", "size", "devices", "memory"),
    [("webshop", "1.5b", 2, 96), ("alfworld", "1.5b", 8, 96), ("webshop", "7b", 8, 80), ("alfworld", "7b", 8, 80)],
)
def test_the_papers_presets_fit_their_machines(env, size, devices, memory):
    result = plan.plan(config(env, size=size), plan.PUBLISHED[f"paper-{size}"], devices)
    assert result.peak <= plan.USABLE * memory * plan.GIB
    assert result.peak >= sum(result.held.values())


@settings(max_examples=20, deadline=None)
@given(
    fsdp=st.sampled_from([1, 2, 4, 8]),
    rows=st.sampled_from([8, 16, 32]),
    rank=st.sampled_from([0, 2]),
    key=st.sampled_from(["mesh.fsdp", "optim.micro_rows", "decoding.rows"]),
)
def test_more_devices_for_the_parameters_or_fewer_rows_never_need_more(fsdp, rows, rank, key):
    """Halving rows, or splitting parameters further over the same eight devices, lowers the plan or leaves it."""
    tree = short(
        mesh__fsdp=fsdp, optim__micro_rows=rows, optim__minibatch_rows=64, decoding__rows=64, model__lora__rank=rank
    )
    less = {"mesh.fsdp": min(8, 2 * fsdp), "optim.micro_rows": max(8, rows // 2), "decoding.rows": 32}
    before, after = plan.plan(tree, SMALL, 8), plan.plan(changed(tree, {key: less[key]}), SMALL, 8)
    # What fsdp splits is whole where it is used: at most the model and a gradient.
    gathered = 2 * 4 * plan.parameter_count(SMALL) if key == "mesh.fsdp" and fsdp == 1 else 0
    assert after.peak <= before.peak + gathered


def changed(tree, changes):
    tree = tree.copy_and_resolve_references()
    for key, value in changes.items():
        configuration.set_value(tree, key, value)
    return tree


def test_a_remedy_is_what_the_plan_says_of_it():
    tree = short(optim__micro_rows=16, model__remat=False)
    limit = 0.6 * plan.plan(tree, SMALL, 1).peak
    found = list(plan.remedies(tree, SMALL, 1, limit))
    assert {key for changes, _ in found for key in changes} >= {"optim.micro_rows", "model.remat", "model.lora.rank"}
    for changes, peak in found:
        assert plan.plan(changed(tree, changes), SMALL, 1).peak == peak
    assert any(peak <= limit for _, peak in found)


def test_where_no_single_change_is_enough_all_of_them_are_tried():
    tree = short(optim__micro_rows=16, model__remat=False)
    *single, (together, peak) = plan.remedies(tree, SMALL, 1, limit=1.0)
    assert all(set(changes) <= set(together) for changes, _ in single)
    assert peak <= min(p for _, p in single)


def test_devices_that_the_mesh_does_not_fill_are_an_error():
    with pytest.raises(ValueError, match="mesh = 'data 1 x fsdp 2 x tensor 1': there are 3 devices"):
        plan.plan(short(mesh__fsdp=2), SMALL, 3)
    with pytest.raises(ValueError, match="does not divide"):
        plan.plan(short(mesh__fsdp=3, optim__micro_rows=3), SMALL, 3)
    with pytest.raises(ValueError, match="mesh = 'data 4 x fsdp 0 x tensor 1'"):
        plan.plan(short(mesh__fsdp=0), SMALL, 4)


def test_what_a_run_refuses_is_no_plan():
    with pytest.raises(ValueError, match="optim.micro_rows = 16: give a multiple of data x fsdp = 32, or 0"):
        plan.plan(short(optim__micro_rows=16), SMALL, 32)
    tree = config("webshop", "gigpo", model__path=str(build.ASSETS / "webshop-easy"))
    with pytest.raises(ValueError, match="takes at most 4096 positions"):
        plan.model_of(tree)


def test_devices_that_share_a_head_each_hold_its_cache():
    """With two key/value heads, four devices of a tensor axis cannot split them."""
    one, two, four = (plan.plan(short(mesh__tensor=t), SMALL, t).sampling["key/value cache"] for t in (1, 2, 4))
    assert (two, four) == (one / 2, one)


def command(*arguments: str):
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(sys.path)}
    line = [sys.executable, "-m", "rspo_jax.plan", *arguments]
    return subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)


def test_the_command_prints_a_table_and_whether_it_fits():
    run = command("--config=configs/webshop_gigpo.py:paper-1.5b", "--devices=8", "--memory=80")
    assert run.returncode == 0, run.stderr
    first, *lines = run.stdout.splitlines()
    assert first == "1.54B parameters, 8 devices: data 4 x fsdp 2 x tensor 1"
    assert lines[-1].startswith("peak") and lines[-1].endswith("of 72.0 usable: fits")
    figures = {line[:46].strip(): float(line[46:55]) for line in lines[1:-1]}
    for name in ("target A: parameters", "guide B: optimizer moments", "key/value cache", "gradients"):
        assert figures[name] > 0


def test_the_command_says_what_to_change_and_fails_where_it_does_not_fit():
    run = command("--config=configs/webshop_gigpo.py:paper-1.5b", "--devices=8", "--memory=20", "--config.seed=7")
    assert run.returncode == 1, run.stderr
    helps = run.stdout[run.stdout.index("what would help") :]
    assert "--config.mesh.fsdp=8" in helps and "--config.optim.micro_rows=8" in helps
    assert any(line.split()[1] == "fits" for line in helps.splitlines()[1:])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--config=configs/webshop_gigpo.py:paper-1.5b", "--devices=3"], "error: mesh = "),
        (["--config=configs/webshop_gigpo.py:paper-1.5b", "--config.model.path=/none"], "error: model.path = '/none'"),
        (["--config=configs/webshop_gigpo.py:paper-2b"], "did you mean paper-7b?"),
    ],
)
def test_a_mistake_is_one_sentence(arguments, sentence):
    run = command(*arguments)
    assert run.returncode == 2
    assert sentence in run.stderr and "Traceback" not in run.stderr


@functools.cache
def lowered(env: str, size: str, devices: int) -> dict:
    """What `measure` found, in a process of its own: the number of devices is fixed when JAX starts."""
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join(sys.path),
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
    }
    line = [sys.executable, __file__, env, size]
    run = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=1800)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("env", "size", "devices"), [("webshop", "1.5b", 2), ("alfworld", "1.5b", 8), ("alfworld", "7b", 8)]
)
def test_the_papers_programs_are_made_ahead_of_time_for_their_mesh(env, size, devices):
    """Update, log-probs, prefill and decoding at the published sizes, for all devices, from shapes alone."""
    found = lowered(env, size, devices)
    for name in ("update", "logprobs", "prefill", "generate"):
        assert found[name]["partitions"] == devices, name
    assert found["update"]["state kept"]


def test_a_step_keeps_every_array_where_it_was_and_splits_the_batch():
    """The published widths with two layers, compiled. Without a split batch each device would hold every row's
    activations and logits, which is far more than planned."""
    compiled = lowered("alfworld", "1.5b", 8)["compiled"]
    assert compiled["moved"] == []
    assert compiled["arguments"] == pytest.approx(compiled["held"], rel=0.01)
    assert 0.7 < compiled["temporary"] / compiled["planned"] < 1.2


def measure(env: str, size: str) -> None:
    """Facts about the programs of a paper preset on this process's devices, as JSON on stdout."""
    tree = config(env, size=size)
    mesh = build.make_mesh(tree)
    model = replace(plan.PUBLISHED[f"paper-{size}"], mesh=mesh)
    update = lower_update(tree, model, *placing(mesh))
    state, _ = agent_shapes(tree, model)
    found = {"update": facts(update) | {"state kept": same_shapes(update.out_info[0], state)}}
    found |= {name: facts(low) for name, low in lower_sampling(tree, model, mesh).items()}
    if (env, size) == ("alfworld", "1.5b"):
        found["compiled"] = compile_update(mesh, replace(model, num_hidden_layers=2))
    print(json.dumps(found))


def placing(mesh):
    """(devices that split rows, placing of parameters, placing of rows)."""
    rows = sharding.batch_sharding(mesh)

    def struct(x, place):
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place)

    def place(tree):
        return jax.tree.map(struct, tree, sharding.tree_shardings(tree, mesh))

    return rows.num_devices // mesh.shape["tensor"], place, lambda tree: jax.tree.map(lambda x: struct(x, rows), tree)


def lower_sampling(tree, model, mesh) -> dict:
    """Log-probs of stored rows, the prefill of one chunk of prompts, and decoding."""
    parts, place, place_rows = placing(mesh)
    state, _ = agent_shapes(tree, model)
    params = place(jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, jnp.dtype(tree.model.dtype)), state.params))
    rows, micro, *_ = plan.batch_sizes(tree, parts)
    forward = Forward(model, tree.model.dtype, 0.0, 1.0, False)
    actions = place_rows(batch_shapes(tree, parts).actions)
    B, R = build.rollout_settings(tree).rows, tree.decoding.max_response
    slots = -(-(tree.context.max_prompt + R) // 256) * 256
    cache = place_rows(jax.eval_shape(lambda: init_cache(model, B, slots, tree.model.dtype)))
    chunk = place_rows(jax.ShapeDtypeStruct((B, 256), jnp.int32)), place_rows(jax.ShapeDtypeStruct((B, 256), jnp.bool_))
    hidden = place_rows(jax.ShapeDtypeStruct((B, model.hidden_size), jnp.dtype(tree.model.dtype)))
    draws = jax.ShapeDtypeStruct((R, B), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec(None, sharding.BATCH)))
    active = place_rows(jax.ShapeDtypeStruct((B,), jnp.bool_))
    return {
        "logprobs": learner._logprobs.lower(
            place(state.params), None, actions, None, forward=forward, count=rows // micro
        ),
        "prefill": sampler._prefill.lower(params, model, cache, *chunk, None),
        "generate": sampler._generate.lower(params, model, cache, hidden, 256, draws, None, active, 1.0, 0, R, 0),
    }


def facts(low) -> dict:
    head = low.as_text()[:2000]
    return {"partitions": int(head.split("mhlo.num_partitions = ")[1].split(" ")[0])}


def same_shapes(a, b) -> bool:
    shape = lambda x: (x.shape, str(x.dtype))  # noqa: E731
    return jax.tree.map(shape, a) == jax.tree.map(shape, b)


def compile_update(mesh, model) -> dict:
    """Compiled in float32 with short rows: memory, and which arrays the step would leave elsewhere."""
    tree = short(env="alfworld", mesh__fsdp=mesh.shape["fsdp"], optim__minibatch_rows=64, optim__micro_rows=16)
    parts, place, place_rows = placing(mesh)
    low = lower_update(tree, model, parts, place, place_rows)
    compiled = low.compile()
    memory, planned = compiled.memory_analysis(), plan.plan(tree, model, parts, platform="cpu")
    state = place(agent_shapes(tree, model)[0])
    after = dict(jax.tree.leaves_with_path(compiled.output_shardings[0]))
    moved = [
        jax.tree_util.keystr(p)
        for p, x in jax.tree.leaves_with_path(state)
        if not after[p].is_equivalent_to(x.sharding, x.ndim)
    ]
    held = planned.held["target A: parameters"] + planned.held["target A: optimizer moments"]
    return {
        "moved": moved,
        "arguments": memory.argument_size_in_bytes,
        "held": held + planned.updating["batch"],
        "temporary": memory.temp_size_in_bytes,
        "planned": sum(planned.updating.values()),
    }


if __name__ == "__main__":
    measure(*sys.argv[1:])

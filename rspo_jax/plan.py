"""Memory planner: what a configuration needs on each device, from shapes alone.

    python -m rspo_jax.plan --config=configs/webshop_gigpo.py:paper-1.5b --devices=8 --memory=80

Nothing is allocated and no accelerator is needed: parameters, moments and caches are traced with `jax.eval_shape` and
divided by the sharding rules; what the backward pass keeps is read off `jax.vjp` of the very functions that train.
Lengths are the longest that the configuration allows, so a run usually stays below the plan.
"""

import copy
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
from absl import app, flags
from jax.sharding import AbstractMesh, AxisType
from ml_collections import ConfigDict, config_flags

from rspo_jax import build, configuration, footprint, packing, sharding
from rspo_jax.configuration import require
from rspo_jax.learner import check_micro_rows
from rspo_jax.models import lora, transformer
from rspo_jax.models.rope import RopeConfig
from rspo_jax.models.transformer import ModelConfig
from rspo_jax.models.value import init_value_head
from rspo_jax.packing import bucket
from rspo_jax.update import action_logprobs, make_optimizer
from rspo_jax.validation import validate

GIB = 2**30
USABLE = 0.9  # of a device's memory; the rest is the driver's, the compiler's and lost between buffers
HEAD_CHUNK = action_logprobs.__kwdefaults__["chunk"]  # rows of logits that an update holds at a time, on all devices
PREFILL_CHUNK = 512  # columns that a prefill feeds at a time

_QWEN = {"head_dim": 128, "rope": RopeConfig(rope_theta=1e6), "model_type": "qwen2"}
PUBLISHED = {  # sizes of Qwen2.5-Instruct (arXiv 2412.15115), for the paper's presets without a model directory
    "paper-1.5b": ModelConfig(151936, 1536, 8960, 28, 12, 2, **_QWEN),
    "paper-7b": ModelConfig(152064, 3584, 18944, 28, 28, 4, tie_word_embeddings=False, **_QWEN),
}


@dataclass(frozen=True)
class Plan:
    """Bytes on one device, by name: what a run holds all the time, and what its two kinds of work add to that."""

    held: dict[str, float]
    sampling: dict[str, float]
    updating: dict[str, float]

    @property
    def peak(self) -> float:
        return sum(self.held.values()) + max(sum(self.sampling.values()), sum(self.updating.values()))


def plan(config: ConfigDict, model: ModelConfig, devices: int, *, platform: str = "gpu") -> Plan:
    """The plan of a configuration with this model on so many devices.

    Raises ValueError where the mesh does not fit the devices, or does not divide a parameter or a micro-batch.
    """
    mesh = abstract_mesh(config, devices)
    check_micro_rows(config, mesh)
    trained, base = parameters(config, model)
    return Plan(
        _held(config, model, mesh, trained, base),
        _sampling(config, model, mesh, trained, base),
        _updating(config, model, mesh, trained, base, fused=platform == "gpu" and fused_attention(config, model)),
    )


def abstract_mesh(config: ConfigDict, devices: int) -> AbstractMesh:
    """The mesh of config.mesh over devices that need not exist."""
    m = config.mesh
    require(devices >= 1, "devices", devices, "give at least 1")
    data = max(1, devices // max(1, m.fsdp * m.tensor)) if m.data == -1 else m.data
    require(
        min(data, m.fsdp, m.tensor) >= 1 and data * m.fsdp * m.tensor == devices,
        "mesh",
        f"data {data} x fsdp {m.fsdp} x tensor {m.tensor}",
        f"there are {devices} devices; choose sizes whose product is {devices}",
    )
    return AbstractMesh((data, m.fsdp, m.tensor), sharding.AXES, axis_types=(AxisType.Auto,) * 3)


def parameters(config: ConfigDict, model: ModelConfig):
    """(trained, base) as shapes: the whole model in float32 and None, or a float32 adapter and the frozen base."""
    rank = config.model.lora.rank
    if not rank:
        return footprint.whole_model(model, jnp.float32), None
    base = footprint.whole_model(model, config.model.dtype)
    make = partial(lora.init_lora, rank=rank, targets=tuple(config.model.lora.targets), dtype=jnp.float32)
    return jax.eval_shape(lambda params: make(jax.random.key(0), params), base), base


def model_of(config: ConfigDict, preset: str | None = None) -> ModelConfig:
    """The model of config.model.path; without one the published sizes of a paper preset, or the shipped agent's."""
    unset = not config.model.path or config.model.path.startswith("<")  # presets name what to fill in as <...>
    if unset and preset in PUBLISHED:
        return PUBLISHED[preset]
    return build.read_model_config(config, build.model_path(config))


def parameter_count(model: ModelConfig) -> int:
    """Parameters of the whole model."""
    return sum(leaf.size for leaf in jax.tree.leaves(footprint.whole_model(model, jnp.float32)))


def _held(config, model, mesh, trained, base) -> dict[str, float]:
    dtype = jnp.dtype(config.model.dtype)
    parts = {}

    def agent(name, params):
        parts[f"{name}: parameters"] = footprint.sharded_bytes(params, mesh)
        moments = jax.eval_shape(make_optimizer(config.optim).init, params)
        parts[f"{name}: optimizer moments"] = footprint.sharded_bytes(moments, mesh)

    guide = config.rspo.enabled and config.rspo.source == "guide"
    if base is not None:
        parts[f"frozen base ({dtype})"] = footprint.sharded_bytes(base, mesh)
    agent("target A", trained)
    if guide:
        agent("guide B", trained)
    if base is None and (config.loss.kl_coef > 0 or config.loss.kl_target > 0):
        parts[f"reference model ({dtype})"] = footprint.sharded_bytes(footprint.cast(trained, dtype), mesh)
    if config.algo.name == "ppo":
        critic = {"head": jax.eval_shape(lambda: init_value_head(model.hidden_size))}
        critic |= {} if config.critic.shared else {"backbone": trained}
        agent("critic of A", critic)
        if guide:
            agent("critic of B", critic)
    if config.process_reward.source == "model":
        whole = trained if base is None else base
        parts["process reward model, if as large"] = footprint.sharded_bytes(footprint.cast(whole, dtype), mesh)
    return parts


def _sampling(config, model, mesh, trained, base) -> dict[str, float]:
    dtype = jnp.dtype(config.model.dtype)
    settings = build.rollout_settings(config)
    share = -(-settings.rows // _parts(mesh))
    rows = 1 << (share - 1).bit_length()  # the decoder's batches are powers of two times what the mesh splits
    window = settings.context == "window"
    length = settings.max_prompt + settings.max_response if window else settings.max_tokens
    cache = jax.eval_shape(partial(transformer.init_cache, model, rows, bucket(length, 256), dtype))
    tensor = mesh.shape["tensor"]
    held = footprint.tree_bytes(cache) / (1 if model.num_key_value_heads % tensor else tensor)
    # Prompts that all rows share are computed once and repeated; in append context the cache grows by copying.
    second = 0.5 if window else 1.0
    whole = trained if base is None else base
    parts = {
        "key/value cache": held,
        "key/value cache, while it is copied": second * held,
        "logits and their probabilities": 4.0 * 4 * rows * model.vocab_size,
        "prefill of one chunk": footprint.layer_bytes(
            footprint.split_heads(model, mesh), rows, min(PREFILL_CHUNK, length), dtype, length
        ),
    }
    if base is not None or dtype != jnp.float32:
        parts[f"weights merged or converted ({dtype})"] = footprint.sharded_bytes(footprint.cast(whole, dtype), mesh)
    if mesh.shape["fsdp"] > 1:  # gathered once: else every token would gather them
        parts["weights gathered to decode"] = footprint.tree_bytes(footprint.cast(whole, dtype)) / mesh.shape["tensor"]
    return parts


def _updating(config, model, mesh, trained, base, fused) -> dict[str, float]:
    dtype = jnp.dtype(config.model.dtype)
    rows, micro, length, sampled = batch_sizes(config, _parts(mesh))
    chunk = min(-(-HEAD_CHUNK // _parts(mesh)), micro * sampled)
    local = footprint.split_heads(model, mesh)
    # The sum so far, that of the current micro-batch, and that of the long rows, which are computed apart.
    copies = 1 + (rows > micro) + (rows * _parts(mesh) >= packing._ROWS_TO_GROUP)
    kept = partial(footprint.kept_bytes, length=length, dtype=dtype, fused=fused)
    parts = {
        "gradients": copies * footprint.sharded_bytes(trained, mesh),
        "activations kept for the backward pass": micro * kept(local, remat=config.model.remat),
        "one layer's backward pass": micro * kept(replace(local, num_hidden_layers=1), remat=False),
        "head: a chunk of logits": footprint.head_bytes(model, chunk, dtype) / mesh.shape["tensor"],
        "weights and gradients gathered": footprint.gathered_bytes(model, mesh, dtype),
        "batch": 4.0 * rows * (length + 9 * sampled),
    }
    if base is None and dtype != jnp.float32:
        parts[f"parameters in {dtype}"] = footprint.sharded_bytes(footprint.cast(trained, dtype), mesh)
    return parts


def batch_sizes(config: ConfigDict, parts: int) -> tuple[int, int, int, int]:
    """(rows of an optimizer update, rows at once, tokens, sampled tokens) on each of `parts` devices, at most."""
    episodes = config.batch.tasks * config.batch.group_size
    response = config.decoding.max_response + 1  # and the end-of-turn token
    if config.context.mode == "window":
        rows, length, sampled = episodes * config.env.max_turns, config.context.max_prompt + response, response
    else:
        length = config.context.max_tokens
        rows, sampled = episodes, min(length, config.env.max_turns * response)
    rows = -(-min(config.optim.minibatch_rows or rows, rows) // parts)
    micro = -(-config.optim.micro_rows // parts) if config.optim.micro_rows else rows
    return rows, min(micro, rows), bucket(length, 64), bucket(sampled, 32)


def fused_attention(config: ConfigDict, model: ModelConfig) -> bool:
    """Whether a GPU takes the fused kernel; see models/attention.py."""
    return jnp.dtype(config.model.dtype).itemsize == 2 and model.head_dim % 8 == 0 and model.head_dim <= 128


def _parts(mesh) -> int:
    return mesh.shape["data"] * mesh.shape["fsdp"]


def remedies(
    config: ConfigDict, model: ModelConfig, devices: int, limit: float, **options
) -> Iterator[tuple[dict, float]]:
    """Changes of settings that save memory, each as ({key: value}, peak with it), in the order of what they cost.

    Of a number of rows, the largest that fits is given, or else the smallest there is. The last entry, if no single
    change is enough, is all of them together.
    """
    together: dict = {}
    enough = False
    for ladder in _ladders(config, devices):
        found = None
        for changes in ladder:
            peak = _peak(config, model, devices, changes, options)
            found = (changes, peak) if peak is not None else found
            if peak is not None and peak <= limit:
                break
        if found is None:
            continue
        enough = enough or found[1] <= limit
        together |= found[0]
        yield found
    if not enough and len(together) > 1:
        peak = _peak(config, model, devices, together, options)
        if peak is not None:
            yield together, peak


def _ladders(config: ConfigDict, devices: int) -> Iterator[list[dict]]:
    """For each setting the values to try, the mildest first."""
    parts = devices // config.mesh.tensor
    rows, micro, *_ = batch_sizes(config, parts)
    yield [{"optim.micro_rows": parts * r} for r in _halves(min(micro, rows))]
    yield [{"model.remat": True}] if not config.model.remat else []
    yield [{"mesh.fsdp": parts, "mesh.data": 1}] if config.mesh.fsdp < parts else []
    yield [{"decoding.rows": parts * r} for r in _halves(-(-build.rollout_settings(config).rows // parts))]
    yield [{"model.dtype": "bfloat16", "loss.old_logp": "trainer"}] if config.model.dtype == "float32" else []
    yield [{"model.lora.rank": 32}] if not config.model.lora.rank else []


def _halves(n: int) -> list[int]:
    """Powers of two below n, the largest first."""
    return [1 << k for k in range((n - 1).bit_length() - 1, -1, -1)] if n > 1 else []


def _peak(config, model, devices, changes, options) -> float | None:
    """The peak with some settings changed; None where the mesh or the model does not allow them."""
    changed = copy.deepcopy(config)
    for key, value_ in changes.items():
        configuration.set_value(changed, key, value_)
    try:
        return plan(changed, model, devices, **options).peak
    except ValueError:
        return None


def describe(result: Plan, memory: float) -> str:
    """The plan as a table in GiB; memory: GiB of one device."""
    lines = ["GiB on each device"]
    for title, part in (
        ("all the time", result.held),
        ("more while it samples", result.sampling),
        ("more while it updates", result.updating),
    ):
        lines.append(f"{title:<46}{sum(part.values()) / GIB:>9.2f}")
        lines += [f"  {name:<44}{size / GIB:>9.2f}" for name, size in part.items() if size]
    verdict = "fits" if result.peak <= USABLE * memory * GIB else "does not fit"
    lines.append(f"{'peak':<46}{result.peak / GIB:>9.2f}  of {USABLE * memory:.1f} usable: {verdict}")
    return "\n".join(lines)


def describe_remedy(changes: dict, peak: float, memory: float) -> str:
    """One line: the command-line settings, the peak with them, and whether that is enough."""
    settings = " ".join(f"--config.{key}={value_}" for key, value_ in changes.items())
    return f"  {peak / GIB:>7.2f}  {'fits' if peak <= USABLE * memory * GIB else '    '}  {settings}"


def main(argv) -> None:
    """Prints the plan of the flags; exit status 1 where it does not fit."""
    del argv
    jax.config.update("jax_platforms", "cpu")  # nothing is computed: leave the accelerators to others
    config, devices, memory = flags.FLAGS.config, flags.FLAGS.devices, flags.FLAGS.memory
    try:
        validate(config)
        require(memory > 0, "--memory", memory, "give the GiB of one device")
        model = model_of(config, flags.FLAGS["config"].config_filename.partition(":")[2])
        result = plan(config, model, devices)
        mesh = abstract_mesh(config, devices)
    except (ValueError, FileNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    count = parameter_count(model)
    shape = " x ".join(f"{name} {size}" for name, size in mesh.shape.items())
    print(f"{count / 1e9:.2f}B parameters, {devices} devices: {shape}")
    print(describe(result, memory))
    limit = USABLE * memory * GIB
    if result.peak > limit:
        print("what would help, each on its own (all together where no single one is enough):")
        for changes, peak in remedies(config, model, devices, limit):
            print(describe_remedy(changes, peak, memory))
        sys.exit(1)


if __name__ == "__main__":
    config_flags.DEFINE_config_file("config", None, "Configuration file, with an optional :preset.", lock_config=True)
    flags.DEFINE_integer("devices", 1, "Number of devices.")
    flags.DEFINE_float("memory", 80.0, "Memory of one device in GiB.")
    flags.mark_flag_as_required("config")
    app.run(main, flags_parser=configuration.parse_flags)

"""The device mesh, and one table from parameter path to PartitionSpec.

Axes: `data` copies the parameters and splits the batch; `fsdp` splits both; `tensor` splits heads, inner widths and the
vocabulary. Optimizer moments have the paths of their parameters as suffix, so the same table places them.
"""

import math
import re

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

AXES = ("data", "fsdp", "tensor")
BATCH = ("data", "fsdp")  # axes that split rows

# First match wins. Stacked layer parameters have the layer as axis 0; kernels are [layer, in, out].
RULES = (
    (r"embed_tokens$", PartitionSpec("tensor", "fsdp")),
    (r"lm_head/kernel$", PartitionSpec("fsdp", "tensor")),
    (r"(q_proj|k_proj|v_proj|gate_proj|up_proj)/kernel$", PartitionSpec(None, "fsdp", "tensor")),
    (r"(q_proj|k_proj|v_proj)/bias$", PartitionSpec(None, "tensor")),
    (r"(o_proj|down_proj)/kernel$", PartitionSpec(None, "tensor", "fsdp")),
    (r"(q_proj|k_proj|v_proj|gate_proj|up_proj)/lora_a$", PartitionSpec(None, "fsdp", None)),
    (r"(q_proj|k_proj|v_proj|gate_proj|up_proj)/lora_b$", PartitionSpec(None, None, "tensor")),
    (r"(o_proj|down_proj)/lora_a$", PartitionSpec(None, "tensor", None)),
    (r"(o_proj|down_proj)/lora_b$", PartitionSpec(None, None, "fsdp")),
    (r"", PartitionSpec()),  # norms, small heads, step counters: a copy on every device
)


def make_mesh(data: int = 1, fsdp: int = 1, tensor: int = 1) -> Mesh:
    """A mesh of data x fsdp x tensor devices; raises ValueError where that is not the number of devices."""
    sizes, devices = (data, fsdp, tensor), jax.device_count()
    if min(sizes) < 1 or math.prod(sizes) != devices:
        raise ValueError(
            f"mesh data x fsdp x tensor = {data} x {fsdp} x {tensor} needs {math.prod(sizes)} devices and there are "
            f"{devices}; choose sizes whose product is {devices}."
        )
    return jax.make_mesh(sizes, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def partition_spec(path: str, shape: tuple[int, ...]) -> PartitionSpec:
    """The first rule whose pattern ends the parameter path ("layers/mlp/up_proj/kernel"); scalars are never split."""
    spec = next(spec for pattern, spec in RULES if re.search(pattern, path))
    return spec if len(spec) <= len(shape) else PartitionSpec()


def named_sharding(path: str, shape: tuple[int, ...], mesh: Mesh) -> NamedSharding:
    """Where the array at `path` lives; raises ValueError where its size does not divide by a mesh axis."""
    spec = partition_spec(path, shape)
    for axis, name in enumerate(spec):
        if name is not None and shape[axis] % mesh.shape[name]:
            raise ValueError(
                f"{path} has size {shape[axis]} on axis {axis}, which the mesh axis {name} = {mesh.shape[name]} does "
                f"not divide; choose a {name} size that divides it."
            )
    return NamedSharding(mesh, spec)


def tree_shardings(tree, mesh: Mesh):
    """The sharding of every leaf of a tree of arrays or shapes: parameters, gradients or an optimizer state."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: named_sharding(jax.tree_util.keystr(path, simple=True, separator="/"), leaf.shape, mesh),
        tree,
    )


def shard_params(tree, mesh: Mesh):
    """Places every leaf of a tree of parameters (or an optimizer state) by RULES."""
    return jax.device_put(tree, tree_shardings(tree, mesh))


def gather_fsdp(tree, mesh: Mesh):
    """A copy of parameters that `fsdp` does not split, for decoding: else every token would gather them anew."""
    whole = lambda place: NamedSharding(mesh, PartitionSpec(*(n if n != "fsdp" else None for n in place.spec)))  # noqa: E731
    return jax.device_put(tree, jax.tree.map(whole, tree_shardings(tree, mesh)))


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Splits axis 0 (rows) over data x fsdp; every other axis is whole."""
    return NamedSharding(mesh, PartitionSpec(BATCH))


def cache_shardings(cache, mesh: Mesh):
    """Splits the rows of a key/value cache as a batch's, and its heads over tensor where that divides them."""

    def place(leaf):
        heads = ("tensor",) if len(leaf.shape) == 4 and leaf.shape[1] % mesh.shape["tensor"] == 0 else ()
        return NamedSharding(mesh, PartitionSpec(BATCH, *heads))

    return jax.tree.map(place, cache)


def shard_batch(tree, mesh: Mesh):
    """Places arrays whose axis 0 is rows; raises ValueError where the rows do not divide evenly."""
    parts = mesh.shape["data"] * mesh.shape["fsdp"]
    for leaf in jax.tree.leaves(tree):
        if leaf.shape[0] % parts:
            raise ValueError(
                f"a batch of {leaf.shape[0]} rows does not divide over data x fsdp = {parts} devices; pad it to a "
                f"multiple of {parts}."
            )
    return jax.device_put(tree, batch_sharding(mesh))

"""Low-rank adapters (LoRA, arXiv 2106.09685) as a transform of the parameter tree.

An adapter is a tree of its own: at the path of each adapted kernel [n, in, out] it holds {"lora_a": [n, in, r],
"lora_b": [n, r, out]}, and the effective kernel is kernel + alpha / r * lora_a @ lora_b. Several adapters (two agents,
a critic) share one base. Train with

    loss(adapter) = f(attach(base, adapter, alpha=alpha))

where f is anything that takes parameters (`hidden`, `extend`, ...): the base is stored once and gets no gradient.
"""

from collections.abc import Sequence

import flax.traverse_util
import jax
import jax.numpy as jnp

from rspo_jax.models.transformer import Params

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def init_lora(key: jax.Array, params: Params, *, rank: int, targets: Sequence[str] = TARGETS, dtype=None) -> Params:
    """An adapter for the `targets` of params that changes nothing yet: lora_a has variance 1 / in, lora_b is zero.

    dtype: None is that of the kernel. Raises ValueError for an unknown target or an impossible rank.
    """
    unknown = sorted(set(targets) - set(TARGETS))
    if unknown or not targets:
        raise ValueError(f"LoRA targets {unknown or 'are empty'}: choose from {', '.join(TARGETS)}.")
    if rank < 1:
        raise ValueError(f"LoRA rank = {rank} must be at least 1.")
    kernels = {
        path[:-1]: leaf
        for path, leaf in flax.traverse_util.flatten_dict(params).items()
        if path[-1] == "kernel" and path[-2] in targets
    }
    adapter = {}
    keys = jax.random.split(key, len(kernels))
    for own_key, (path, kernel) in zip(keys, sorted(kernels.items()), strict=True):
        n, fan_in, fan_out = kernel.shape
        kind = dtype or kernel.dtype
        adapter[*path, "lora_a"] = (fan_in**-0.5 * jax.random.normal(own_key, (n, fan_in, rank))).astype(kind)
        adapter[*path, "lora_b"] = jnp.zeros((n, rank, fan_out), kind)
    return flax.traverse_util.unflatten_dict(adapter)


def attach(params: Params, adapter: Params, *, alpha: float) -> Params:
    """Parameters of the adapted model for a forward pass: the base without gradient, plus its low-rank terms."""
    flat = flax.traverse_util.flatten_dict(jax.lax.stop_gradient(params))
    for path, leaf in flax.traverse_util.flatten_dict(adapter).items():
        # The scale rides on lora_b, so that the layer needs no number besides its arrays.
        leaf = leaf * (alpha / leaf.shape[1]) if path[-1] == "lora_b" else leaf
        flat[path] = leaf.astype(flat[*path[:-1], "kernel"].dtype)
    return flax.traverse_util.unflatten_dict(flat)


def merge(params: Params, adapter: Params, *, alpha: float) -> Params:
    """Parameters with the adapter folded into their kernels (computed in f32): for export, or for fast decoding."""
    flat = flax.traverse_util.flatten_dict(params)
    low_rank = flax.traverse_util.flatten_dict(adapter)
    for path in {path[:-1] for path in low_rank}:
        a, b = (low_rank[*path, name].astype(jnp.float32) for name in ("lora_a", "lora_b"))
        kernel = flat[*path, "kernel"]
        delta = (alpha / a.shape[-1]) * jnp.einsum("nir,nro->nio", a, b, precision="highest")
        flat[*path, "kernel"] = (kernel.astype(jnp.float32) + delta).astype(kernel.dtype)
    return flax.traverse_util.unflatten_dict(flat)

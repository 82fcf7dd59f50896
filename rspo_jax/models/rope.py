"""Rotary position embeddings (RoFormer, arXiv 2104.09864) with the frequency scalings of Llama models."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np


@dataclasses.dataclass(frozen=True)
class RopeConfig:
    """Frequencies of the rotation; names as in `rope_parameters` of a Hugging Face config.

    `rope_type` is "default", "linear" (every frequency divided by `factor`) or "llama3" (long wavelengths divided by
    `factor`, short ones kept, a smooth ramp between, measured against `original_max_position_embeddings`).
    """

    rope_theta: float = 10000.0
    rope_type: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> np.ndarray:
    """Angle per position of each rotated pair, f32[head_dim // 2]."""
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    frequencies = (1.0 / np.float32(rope.rope_theta) ** exponents).astype(np.float32)
    if rope.rope_type == "default":
        return frequencies
    if rope.rope_type == "linear":
        return frequencies / np.float32(rope.factor)
    if rope.rope_type == "llama3":
        # Turns that a pair makes over the original context decide how far it is slowed down.
        turns = rope.original_max_position_embeddings * frequencies / (2 * math.pi)
        ramp = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
        keep = np.clip(ramp, 0.0, 1.0)
        return (keep * frequencies + (1 - keep) * frequencies / rope.factor).astype(np.float32)
    raise ValueError(f"rope_type {rope.rope_type!r} is not implemented; use 'default', 'linear' or 'llama3'.")


def rotation(rope: RopeConfig, head_dim: int, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Cosine and sine, f32[N, L, 1, head_dim // 2], of integer positions i32[N, L]."""
    angles = positions[..., None, None].astype(jnp.float32) * inverse_frequencies(rope, head_dim)
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x: jax.Array, cosine: jax.Array, sine: jax.Array) -> jax.Array:
    """Rotates pairs (i, i + head_dim // 2) of x [N, L, heads, head_dim] in f32; the dtype of x is kept."""
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1).astype(x.dtype)

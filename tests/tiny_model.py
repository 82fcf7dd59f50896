"""Tiny random models for tests."""

import jax

from rspo_jax import models


def tiny_config(**changes) -> models.ModelConfig:
    sizes = {
        "vocab_size": 50,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
    }
    return models.ModelConfig(**sizes | changes)


def tiny_params(config: models.ModelConfig, seed: int = 0, dtype="float32") -> dict:
    """Parameters whose biases, norms and embeddings are random too, so that no term is hidden by a zero or a one."""
    params = models.init(jax.random.key(seed), config, dtype)
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(seed + 1), len(leaves))
    noisy = [p + 0.2 * jax.random.normal(k, p.shape, p.dtype) for p, k in zip(leaves, keys, strict=True)]
    return jax.tree.unflatten(tree, noisy)

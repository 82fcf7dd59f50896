"""Language models as a config, a nested dict of arrays and plain functions."""

from rspo_jax.models.logprobs import logits_logprobs, token_logprobs
from rspo_jax.models.transformer import (
    Cache,
    ModelConfig,
    extend,
    grow_cache,
    head,
    hidden,
    init,
    init_cache,
    logits,
    take_cache,
)

__all__ = [
    "Cache",
    "ModelConfig",
    "extend",
    "grow_cache",
    "head",
    "hidden",
    "init",
    "init_cache",
    "logits",
    "logits_logprobs",
    "take_cache",
    "token_logprobs",
]

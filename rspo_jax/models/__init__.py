"""Language models as a config, a nested dict of arrays and plain functions."""

from rspo_jax.models.hf import load_hf, save_hf
from rspo_jax.models.hf_config import read_config
from rspo_jax.models.logprobs import logits_logprobs, token_logprobs
from rspo_jax.models.lora import attach, init_lora, merge
from rspo_jax.models.rope import RopeConfig
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
    unstack,
)
from rspo_jax.models.value import init_reward_head, init_value_head, last_of_turn, turn_reward, value

__all__ = [
    "Cache",
    "ModelConfig",
    "RopeConfig",
    "attach",
    "extend",
    "grow_cache",
    "head",
    "hidden",
    "init",
    "init_cache",
    "init_lora",
    "init_reward_head",
    "init_value_head",
    "last_of_turn",
    "load_hf",
    "logits",
    "logits_logprobs",
    "merge",
    "read_config",
    "save_hf",
    "take_cache",
    "token_logprobs",
    "turn_reward",
    "unstack",
    "value",
]

"""Pure functions of arrays: advantages, reward swap, losses, replay selection, diagnostics."""

from rspo_jax.algos.advantages import (
    discounted_returns,
    dr_grpo_advantage,
    gae,
    gigpo_advantage,
    grpo_advantage,
    mixed_groups,
    reinforce_pp_advantage,
    rloo_advantage,
    token_gae,
    whiten,
)
from rspo_jax.algos.aggregation import token_weights, tokens_to_turns, turns_to_tokens, weighted_sum
from rspo_jax.algos.diagnostics import group_fractions, merge, policy_summary, policy_sums, repeated_states
from rspo_jax.algos.losses import (
    clipped_surrogate,
    entropy_bonus,
    kl_penalty,
    sequence_logprobs,
    value_loss,
)
from rspo_jax.algos.registry import ADVANTAGES, Options, returns_vary
from rspo_jax.algos.replay import Stored, push_baselines, select, select_self_imitation
from rspo_jax.algos.schedules import adaptive_kl, decay, should_keep_guide
from rspo_jax.algos.similarity import state_ids
from rspo_jax.algos.swap import swap_reward

__all__ = [
    "ADVANTAGES",
    "Options",
    "Stored",
    "adaptive_kl",
    "clipped_surrogate",
    "decay",
    "discounted_returns",
    "dr_grpo_advantage",
    "entropy_bonus",
    "gae",
    "gigpo_advantage",
    "group_fractions",
    "grpo_advantage",
    "kl_penalty",
    "merge",
    "mixed_groups",
    "policy_sums",
    "policy_summary",
    "push_baselines",
    "reinforce_pp_advantage",
    "repeated_states",
    "returns_vary",
    "rloo_advantage",
    "select",
    "select_self_imitation",
    "sequence_logprobs",
    "should_keep_guide",
    "state_ids",
    "swap_reward",
    "token_gae",
    "token_weights",
    "tokens_to_turns",
    "turns_to_tokens",
    "value_loss",
    "weighted_sum",
    "whiten",
]

"""Which settings can work: every limit on a key of the configuration tree, checked before anything is made of it."""

import math

from ml_collections import ConfigDict

from rspo_jax import algos
from rspo_jax.configuration import flatten, require, require_one_of
from rspo_jax.models import lora

CHOICES = {
    "env.size": ("tiny", "official"),
    "env.min_options": (0, 1, 2),
    "env.observation_mode": ("text", "text_rich"),
    "env.compat": ("official", "fixed"),
    "context.mode": ("append", "window"),
    "context.format": ("plain", "verl"),
    "model.dtype": ("float32", "bfloat16"),
    "algo.name": tuple(algos.ADVANTAGES),
    "algo.norm": ("std", "none"),
    "algo.gae_level": ("turn", "token"),
    "loss.kl_kind": ("k1", "k2", "k3"),
    "loss.kl_in": ("loss", "reward"),
    "loss.aggregation": ("token_mean", "turn_mean", "sequence_mean", "constant"),
    "loss.ratio": ("token", "sequence"),
    "loss.old_logp": ("sampler", "trainer"),
    "reward": ("outcome", "dense", "mixed"),
    "process_reward.source": ("env", "click", "model"),
    "collect.outcome": ("success", "score"),
    "reward_model.backbone": ("frozen", "trained"),
    "optim.lr_schedule": ("constant", "linear", "cosine"),
    "rspo.alpha_schedule": ("constant", "linear", "cosine"),
    "rspo.collect": ("fresh", "reuse"),
    "rspo.source": ("guide", "history", "self_imitation"),
    "rspo.guide_reward": ("outcome", "dense", "mixed"),
    "rspo.sampling": ("reward", "variance", "random"),
    "rspo.backfill": ("on_policy", "none"),
    "rspo.guide_reset": ("always", "until_success", "never"),
    "rspo.off_clip": ("generalized", "standard", "decoupled", "none"),
    "rspo.off_ratio": ("behaviour", "old"),
    "rspo.guide_data": ("sampled", "recycled"),
}

AT_LEAST = {
    "seed": 0,
    "batch.tasks": 1,
    "batch.group_size": 1,
    "env.seed": 0,
    "env.max_turns": 1,
    "env.workers": 0,
    "env.num_train": 1,
    "env.num_valid": 1,
    "env.num_products": 0,
    "context.history": 0,
    "context.max_tokens": 16,
    "context.max_prompt": 16,
    "model.lora.rank": 0,
    "decoding.eval_temperature": 0,
    "decoding.max_response": 1,
    "decoding.max_free": 1,
    "decoding.rows": 0,
    "algo.omega": 0,
    "algo.invalid_penalty": 0,
    "algo.dynamic_sampling": 0,
    "loss.eps_low": 0,
    "loss.eps_high": 0,
    "loss.kl_coef": 0,
    "loss.kl_target": 0,
    "loss.kl_horizon": 1,
    "optim.lr": 0,
    "optim.warmup": 0,
    "optim.weight_decay": 0,
    "optim.epochs": 1,
    "optim.minibatch_rows": 0,
    "optim.micro_rows": 0,
    "critic.lr": 0,
    "critic.value_clip": 0,
    "critic.warmup": 0,
    "critic.epochs": 1,
    "process_reward.scale": 0,
    "process_reward.noise_std": 0,
    "process_reward.refit": 0,
    "collect.episodes": 1,
    "collect.temperature": 0,
    "reward_model.epochs": 1,
    "reward_model.patience": 1,
    "reward_model.lr": 0,
    "reward_model.batch": 1,
    "reward_model.rows": 1,
    "reward_model.inner": 1,
    "rspo.k": 1,
    "rspo.collect_tasks": 1,
    "rspo.history": 0,
    "rspo.min_successes": 0,
    "rspo.guide_max_loops": 0,
    "rspo.guide_lr_scale": 0,
    "rspo.off_ratio_cap": 0,
    "train.steps": 1,
    "train.eval_every": 0,
    "train.checkpoint_every": 1,
    "train.transcripts": 0,
    "eval.episodes": 1,
    "eval.repeats": 1,
    "sft.episodes": 1,
    "sft.steps": 1,
    "sft.rows": 1,
    "sft.lr": 0,
    "sft.vocab_size": 1,
    "sft.width": 2,
    "sft.layers": 1,
    "sft.heads": 1,
    "sft.ffn": 1,
    "mesh.data": -1,
    "mesh.fsdp": 1,
    "mesh.tensor": 1,
}

ABOVE = {
    "env.timeout": 0,
    "decoding.temperature": 0,
    "algo.similarity": 0,
    "model.lora.alpha": 0,
    "optim.clip_norm": 0,
    "reward_model.held_out": 0,
}

AT_MOST = {
    "algo.gamma": 1,
    "algo.lam": 1,
    "algo.similarity": 1,
    "sft.skill": 1,
}

BELOW = {
    "rspo.alpha": 1,
    "optim.b1": 1,
    "optim.b2": 1,
    "reward_model.held_out": 1,
}

# Shares, probabilities and discounts, which have a bound on either side.
AT_LEAST |= dict.fromkeys(("algo.gamma", "algo.lam", "sft.skill", "rspo.alpha", "optim.b1", "optim.b2"), 0)


def validate(config: ConfigDict) -> None:
    """Raises ValueError, naming key, value and remedy, for settings that cannot work, alone or together."""
    for key in flatten(config):
        number = value(config, key)
        require(not isinstance(number, float) or not math.isnan(number), key, number, "give a number")
    for key, allowed in CHOICES.items():
        require_one_of(key, value(config, key), allowed)
    for key, limit in AT_LEAST.items():
        require(value(config, key) >= limit, key, value(config, key), f"give at least {limit}")
    for key, limit in ABOVE.items():
        require(value(config, key) > limit, key, value(config, key), f"must be above {limit}")
    for key, limit in AT_MOST.items():
        require(value(config, key) <= limit, key, value(config, key), f"give at most {limit}")
    for key, limit in BELOW.items():
        require(value(config, key) < limit, key, value(config, key), f"must be below {limit}")
    _check_sizes(config)
    _check_decoding(config)
    _check_variants(config)


def _check_sizes(config: ConfigDict) -> None:
    """Sizes that must fit each other."""
    stored = config.rspo.alpha * config.batch.tasks
    require(
        not config.rspo.enabled or abs(stored - round(stored)) < 1e-6,
        "rspo.alpha",
        config.rspo.alpha,
        f"rspo.alpha * batch.tasks = {stored:g} must be a whole number of tasks (batch.tasks = {config.batch.tasks})",
    )
    shortest = config.decoding.max_response + 2  # a prompt, a longest response and its end-of-turn token
    require(
        config.context.mode == "window" or config.context.max_tokens >= shortest,
        "context.max_tokens",
        config.context.max_tokens,
        f"a row must hold a prompt and decoding.max_response = {config.decoding.max_response} tokens; "
        f"give far more than {shortest}",
    )
    sft = config.sft
    require(sft.rows <= sft.episodes, "sft.rows", sft.rows, f"give at most sft.episodes = {sft.episodes}")
    require(
        sft.width % (2 * sft.heads) == 0, "sft.width", sft.width, f"give a multiple of 2 * sft.heads = {2 * sft.heads}"
    )
    require(config.mesh.data != 0, "mesh.data", 0, "give at least 1, or -1 for all devices that remain")
    require(bool(config.eval.splits), "eval.splits", config.eval.splits, "name at least one split, such as ('valid',)")


def _check_decoding(config: ConfigDict) -> None:
    """Options of the model and of sampling that need others."""
    require(
        not (config.decoding.constrain and config.context.format == "verl"),
        "decoding.constrain",
        True,
        "constrained decoding needs context.format = plain: a verl response is more than an action",
    )
    for name in config.model.lora.targets:
        require_one_of("model.lora.targets", name, lora.TARGETS)
    require(
        not config.model.lora.rank or bool(config.model.lora.targets),
        "model.lora.targets",
        config.model.lora.targets,
        f"name at least one of {', '.join(lora.TARGETS)}",
    )


def _check_variants(config: ConfigDict) -> None:
    """Options of the algorithm that need others."""
    loss, rspo, rounds = config.loss, config.rspo, config.algo.dynamic_sampling
    require(not loss.dual_clip or loss.dual_clip > 1, "loss.dual_clip", loss.dual_clip, "0 or above 1")
    require(
        config.algo.name not in ("grpo", "dr_grpo", "rloo") or config.batch.group_size > 1,
        "batch.group_size",
        config.batch.group_size,
        f"{config.algo.name} compares the episodes of a task and learns nothing from one; give at least 2",
    )
    require(
        loss.kl_target <= 0 or loss.kl_coef > 0,
        "loss.kl_coef",
        loss.kl_coef,
        "loss.kl_target multiplies it step by step; start above 0",
    )
    require(
        not rounds or config.batch.group_size > 1,
        "algo.dynamic_sampling",
        rounds,
        "one episode never varies; needs batch.group_size of at least 2",
    )
    require(
        rspo.guide_data == "sampled" or (rspo.source == "guide" and rspo.collect == "fresh"),
        "rspo.guide_data",
        rspo.guide_data,
        "a guide without rollouts of its own must collect: needs rspo.source = guide and rspo.collect = fresh",
    )


def value(config: ConfigDict, key: str):
    """The value of a dotted key."""
    for name in key.split("."):
        config = config[name]
    return config

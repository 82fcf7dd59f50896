"""What changes the scale of a configuration, whatever its environment and algorithm."""

import os

from ml_collections import ConfigDict

from configs import default
from rspo_jax.configuration import parse_preset

NAMES = ("tiny", "sparse", "smoke", "paper-1.5b", "paper-7b")


def make(env: str, algo: str, preset: str | None) -> ConfigDict:
    """The configuration of one environment and base algorithm at one scale ("" or None means tiny)."""
    name = parse_preset(preset, NAMES)
    config = default.get_config()
    _environment(config, env)
    _algorithm(config, env, algo)
    if name in ("tiny", "sparse", "smoke"):
        _tiny(config, env, algo)
        if name == "sparse":
            _sparse(config, env)
        if name == "smoke":
            _smoke(config)
    else:
        _paper(config, env, algo, name.removeprefix("paper-"))
    return config


def _environment(config: ConfigDict, env: str) -> None:
    config.env.name = env
    config.env.max_turns = {"webshop": 15, "alfworld": 50}[env]
    if env == "alfworld":
        config.env.data = os.environ.get("ALFWORLD_DATA", "")
        config.eval.splits = ("valid_seen",)
        config.eval.final_splits = ("valid_unseen",)


def _algorithm(config: ConfigDict, env: str, algo: str) -> None:
    config.algo.name = algo
    if algo == "gigpo":
        config.algo.norm = "none" if env == "webshop" else "std"
    if algo == "ppo":
        config.batch.tasks, config.batch.group_size = 128, 1
        config.algo.gamma = 1.0
        config.rspo.collect_tasks = 224


def _tiny(config: ConfigDict, env: str, algo: str) -> None:
    """A 0.2M-parameter agent on generated tasks: minutes on two CPU cores."""
    config.context.mode, config.context.format = "append", "plain"
    config.context.max_tokens = 320
    config.decoding.constrain = True
    config.decoding.max_response = 24
    config.decoding.max_free = 12
    config.decoding.eval_temperature = 1.0
    config.batch.tasks, config.batch.group_size = (64, 1) if algo == "ppo" else (8, 8)
    config.rspo.collect_tasks = 112 if algo == "ppo" else 14
    config.optim.lr = 1e-3
    config.optim.weight_decay = 0.0
    config.optim.minibatch_rows = 16
    config.critic.lr = 1e-3
    config.loss.kl_coef = 0.0
    config.train.steps = 90
    config.train.eval_every = 30
    config.train.checkpoint_every = 30
    config.sft.episodes = 8000
    config.sft.steps = 1500
    config.sft.vocab_size = 1500
    if env == "webshop":
        config.sft.skill, config.sft.lr = 0.6, 4e-3
    else:
        config.sft.skill, config.sft.lr = 0.4, 3e-3
        # Generated rooms are small; official ones need all turns and long rows.
        config.env.max_turns, config.context.max_tokens = (50, 4096) if config.env.data else (20, 320)


def _sparse(config: ConfigDict, env: str) -> None:
    """The tiny run from an agent that almost never succeeds, on the harder tasks."""
    config.model.base = "sparse"
    config.sft.episodes, config.sft.steps, config.sft.lr = 3000, 150, 3e-3
    if env == "webshop":
        config.env.min_options = 1
        config.sft.skill, config.sft.rows = 0.1, 32
    else:
        config.env.task_types = ("clean", "heat", "cool", "pick2")
        config.sft.skill = 0.0


def _smoke(config: ConfigDict) -> None:
    """The tiny run cut down to seconds: every phase once."""
    config.batch.tasks, config.batch.group_size = 2, 2 if config.batch.group_size > 1 else 1
    config.rspo.alpha, config.rspo.k, config.rspo.collect_tasks = 0.5, 1, 2
    config.env.max_turns = 4
    config.train.steps, config.train.eval_every = 2, 0
    config.eval.episodes = 4
    config.sft.episodes, config.sft.steps = 64, 4
    config.collect.episodes, config.reward_model.epochs = 64, 2


def _paper(config: ConfigDict, env: str, algo: str, size: str) -> None:
    """The published setting on Qwen2.5-Instruct; give config.model.path and config.env.data."""
    config.model.path = config.model.path or f"<directory of Qwen2.5-{size.upper()}-Instruct>"
    config.env.data = config.env.data or "<directory of the official data>"
    config.context.mode, config.context.format = "window", "verl"
    config.context.max_prompt = 4096 if env == "webshop" else 2048
    config.optim.minibatch_rows = 64 if env == "webshop" else 256
    config.optim.micro_rows = config.reward_model.rows = {"1.5b": 16, "7b": 8}[size]
    config.model.dtype = "bfloat16"
    config.model.remat = True
    config.loss.old_logp = "trainer"
    config.mesh.fsdp = {"1.5b": 2, "7b": 8}[size]
    if env == "alfworld":
        config.mesh.fsdp = 8
    config.train.eval_every = 5
    config.eval.episodes = 128

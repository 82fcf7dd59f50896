"""From a configuration to the parts of a run: tasks, policy, parameters. All errors about user input arise here."""

import dataclasses
import pathlib

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from rspo_jax import algos, sharding
from rspo_jax.configuration import require, require_one_of
from rspo_jax.decoder import Policy
from rspo_jax.envs import alfworld, gym_suite, prompts, webshop
from rspo_jax.envs.base import TaskSuite
from rspo_jax.envs.pool import EnvPool
from rspo_jax.models import lora
from rspo_jax.models.chat import ChatFormat
from rspo_jax.models.constrain import ActionGrammar
from rspo_jax.models.hf import load_hf
from rspo_jax.models.hf_config import read_config
from rspo_jax.models.tokenizer import load_tokenizer
from rspo_jax.models.transformer import ModelConfig
from rspo_jax.rollout import RolloutSettings
from rspo_jax.update import LossOptions

ASSETS = pathlib.Path(__file__).parent / "assets"

_WEBSHOP_FILES = {
    "items": ("items_shuffle.json", "items_shuffle_1000.json"),
    "attributes": ("items_ins_v2.json", "items_ins_v2_1000.json"),
    "instructions": ("items_human_ins.json",),
}


def env_kind(config: ConfigDict) -> str:
    """webshop, alfworld or generic: what prompts and metrics know about."""
    return "generic" if config.env.id else config.env.name


def make_suite(config: ConfigDict) -> TaskSuite:
    """Environments and task splits of config.env."""
    env = config.env
    if env.id:
        return gym_suite(env.id, num_train=env.num_train, num_valid=env.num_valid, seed=env.seed)
    require_one_of("env.name", env.name, ("webshop", "alfworld"))
    if env.name == "alfworld":
        if env.data:
            return alfworld.official_suite(env.data, max_steps=env.max_turns, task_types=env.task_types)
        return alfworld.generated_suite(
            env.seed,
            size=env.size,
            num_train=env.num_train,
            num_valid=env.num_valid,
            max_steps=env.max_turns,
            task_types=env.task_types,
        )
    if not env.data:
        return webshop.generated_suite(
            env.seed,
            min_options=env.min_options,
            observation_mode=env.observation_mode,
            show_attributes=env.show_attributes,
        )
    files = webshop_files(env.data, env.human_goals)
    return webshop.files_suite(
        **files,
        human_goals=env.human_goals,
        seed=env.seed,
        nouns=env.nouns or None,
        num_products=env.num_products or None,
        compat=env.compat,
        observation_mode=env.observation_mode,
        show_attributes=env.show_attributes,
    )


def webshop_files(directory: str, human_goals: bool) -> dict[str, str | None]:
    """The official WebShop files in a directory (plain or .gz; the full catalogue before the 1,000-product one)."""
    root = pathlib.Path(directory)
    if not root.is_dir():
        raise FileNotFoundError(f"env.data = {directory!r} is not a directory; give the folder of the WebShop files")
    found: dict[str, str | None] = {}
    for role, names in _WEBSHOP_FILES.items():
        paths = [root / (name + end) for name in names for end in ("", ".gz") if (root / (name + end)).is_file()]
        found[role] = str(paths[0]) if paths else None
        if not paths and (role != "instructions" or human_goals):
            remedy = "; set env.human_goals=False for synthetic goals" if role == "instructions" else ""
            raise FileNotFoundError(f"env.data = {directory!r} lacks {' or '.join(names)} (or .gz){remedy}")
    return found


def make_mesh(config: ConfigDict) -> jax.sharding.Mesh:
    """The device mesh; mesh.data = -1 takes the devices that remain."""
    m, devices = config.mesh, jax.device_count()
    rest = max(1, devices // max(1, m.fsdp * m.tensor))
    return sharding.make_mesh(rest if m.data == -1 else m.data, m.fsdp, m.tensor)


def model_path(config: ConfigDict) -> pathlib.Path:
    """The model directory: the user's, or a shipped tiny agent."""
    if config.model.path:
        return pathlib.Path(config.model.path)
    require_one_of("model.base", config.model.base, ("easy", "sparse"))
    kind = env_kind(config)
    require(kind != "generic", "model.path", "", "a user environment has no shipped agent; give a model directory")
    return ASSETS / f"{kind}-{config.model.base}"


def longest_row(config: ConfigDict) -> int:
    """Most tokens of a row: a whole episode in append context, a prompt and its response in window context."""
    c = config.context
    return c.max_tokens if c.mode == "append" else c.max_prompt + config.decoding.max_response


def read_model_config(config: ConfigDict, path: str | pathlib.Path) -> ModelConfig:
    """The ModelConfig of the model at `path`; raises ValueError where the longest row is too long for it."""
    longest = longest_row(config)
    model = read_config(path, max_length=longest)
    append, positions = config.context.mode == "append", model.max_position_embeddings
    require(
        longest <= positions,
        "context.max_tokens" if append else "context.max_prompt + decoding.max_response",
        longest,
        f"the model at {path} takes at most {positions} positions",
    )
    return model


def make_policy(config: ConfigDict, mesh: jax.sharding.Mesh, path: str | pathlib.Path | None = None):
    """(Policy, trainable parameters) of the model at `path` (default: model_path(config)).

    With model.lora.rank > 0 the trainable parameters are a fresh adapter and the policy holds the base.
    """
    path = pathlib.Path(path) if path else model_path(config)
    vocab_size = read_model_config(config, path).vocab_size  # first: the tokenizer's library would fail worse
    tokenizer = load_tokenizer(path)
    # An id without an embedding reads as NaN. Nobody writes the padding token, which some models leave out.
    largest = max(i for i in tokenizer.get_vocab().values() if i != tokenizer.pad_token_id)
    if largest >= vocab_size:
        raise ValueError(
            f"{path}: the tokenizer has ids up to {largest}, and the vocab_size of config.json is {vocab_size}; take "
            "both from the same model, or resize its embedding."
        )
    require_one_of("model.dtype", config.model.dtype, ("float32", "bfloat16"))
    model, params = load_hf(path, dtype=config.model.dtype, mesh=mesh, max_length=longest_row(config))
    return assemble_policy(config, mesh, model, tokenizer, params)


def assemble_policy(config: ConfigDict, mesh, model, tokenizer, params):
    """(Policy, trainable parameters) from parts in memory."""
    model = dataclasses.replace(model, mesh=mesh if mesh.size > 1 else None)  # as load_hf has it
    chat = ChatFormat.from_tokenizer(tokenizer, system=config.context.system or None)
    grammar = None
    if config.decoding.constrain:
        grammar = ActionGrammar(
            tokenizer, end_token=chat.end_token, vocab_size=model.vocab_size, free_limit=config.decoding.max_free
        )
    base, alpha = None, 0.0
    if config.model.lora.rank > 0:
        base, alpha = params, config.model.lora.alpha
        key = jax.random.fold_in(jax.random.key(config.seed), 0x10A)
        params = lora.init_lora(key, base, rank=config.model.lora.rank, targets=tuple(config.model.lora.targets))
        params = jax.tree.map(lambda x: x.astype(jnp.float32), params)
    policy = Policy(
        model, tokenizer, chat, mesh, grammar=grammar, base=base, lora_alpha=alpha, dtype=config.model.dtype
    )
    return policy, params


def make_pool(config: ConfigDict, suite: TaskSuite, rows: int) -> EnvPool:
    return EnvPool(suite.make_env, rows, config.env.workers, timeout=config.env.timeout)


def rollout_settings(config: ConfigDict, *, evaluation: bool = False) -> RolloutSettings:
    """Settings of training rollouts, or of evaluation (its own temperature; 0 is greedy)."""
    c = config.context
    temperature = config.decoding.eval_temperature if evaluation else config.decoding.temperature
    return RolloutSettings(
        format=prompts.get(c.format, env_kind(config)),
        context=c.mode,
        history=c.history,
        max_turns=config.env.max_turns,
        max_tokens=c.max_tokens,
        max_prompt=c.max_prompt,
        max_response=config.decoding.max_response,
        temperature=temperature or 1.0,
        greedy=temperature == 0,
        rows=config.decoding.rows or config.batch.tasks * config.batch.group_size,
        constrain=config.decoding.constrain,
    )


def loss_options(config: ConfigDict) -> LossOptions:
    return LossOptions(
        eps_low=config.loss.eps_low,
        eps_high=config.loss.eps_high,
        dual_clip=config.loss.dual_clip or None,
        kl_kind=config.loss.kl_kind,
        ratio=config.loss.ratio,
        off_clip=config.rspo.off_clip,
        off_ratio=config.rspo.off_ratio,
        off_ratio_cap=config.rspo.off_ratio_cap or None,
        turns=config.env.max_turns,
    )


def validate(config: ConfigDict) -> None:
    """Raises ValueError, naming key, value and remedy, for settings that cannot work together."""
    one_of = {
        "context.mode": ("append", "window"),
        "context.format": ("plain", "verl"),
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
    for key, allowed in one_of.items():
        require_one_of(key, _value(config, key), allowed)
    at_least = {
        "batch.tasks": 1,
        "batch.group_size": 1,
        "env.max_turns": 1,
        "env.workers": 0,
        "context.history": 0,
        "context.max_tokens": 16,
        "context.max_prompt": 16,
        "decoding.max_response": 1,
        "decoding.rows": 0,
        "optim.lr": 0,
        "optim.epochs": 1,
        "optim.minibatch_rows": 0,
        "optim.micro_rows": 0,
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
        "algo.dynamic_sampling": 0,
        "loss.kl_horizon": 1,
        "critic.warmup": 0,
        "critic.epochs": 1,
        "rspo.k": 1,
        "rspo.collect_tasks": 1,
        "rspo.history": 0,
        "train.steps": 1,
        "train.eval_every": 0,
        "train.checkpoint_every": 1,
        "eval.episodes": 1,
        "model.lora.rank": 0,
    }
    for key, least in at_least.items():
        require(_value(config, key) >= least, key, _value(config, key), f"give at least {least}")
    require(config.decoding.temperature > 0, "decoding.temperature", config.decoding.temperature, "must be above 0")
    require(0 <= config.rspo.alpha < 1, "rspo.alpha", config.rspo.alpha, "must be in [0, 1)")
    stored = config.rspo.alpha * config.batch.tasks
    require(
        not config.rspo.enabled or abs(stored - round(stored)) < 1e-6,
        "rspo.alpha",
        config.rspo.alpha,
        f"rspo.alpha * batch.tasks = {stored:g} must be a whole number of tasks (batch.tasks = {config.batch.tasks})",
    )
    require(
        not (config.decoding.constrain and config.context.format == "verl"),
        "decoding.constrain",
        True,
        "constrained decoding needs context.format = plain: a verl response is more than an action",
    )
    require(
        not config.loss.dual_clip or config.loss.dual_clip > 1, "loss.dual_clip", config.loss.dual_clip, "0 or above 1"
    )
    _check_adapters(config.model.lora)
    _check_variants(config)


def _check_adapters(adapters: ConfigDict) -> None:
    if adapters.rank:
        for target in adapters.targets:
            require_one_of("model.lora.targets", target, lora.TARGETS)
        require(len(adapters.targets) > 0, "model.lora.targets", (), f"choose from {', '.join(lora.TARGETS)}")
        require(adapters.alpha > 0, "model.lora.alpha", adapters.alpha, "must be above 0")


def _check_variants(config: ConfigDict) -> None:
    """Options of the algorithm that need others."""
    loss, rspo, rounds = config.loss, config.rspo, config.algo.dynamic_sampling
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


def _value(config: ConfigDict, key: str):
    for name in key.split("."):
        config = config[name]
    return config

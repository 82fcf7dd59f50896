"""From a configuration to the parts of a run: tasks, policy, parameters."""

import contextlib
import dataclasses
import pathlib

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from rspo_jax import sharding
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


@contextlib.contextmanager
def names_key(key: str, value):
    """Errors about what a setting points to name the setting."""
    try:
        yield
    except (ValueError, FileNotFoundError) as error:
        if key in str(error):
            raise
        kind = FileNotFoundError if isinstance(error, FileNotFoundError) else ValueError
        raise kind(f"{key} = {str(value)!r}: {error}") from None


def make_suite(config: ConfigDict) -> TaskSuite:
    """Environments and task splits of config.env."""
    if config.env.data and not config.env.id:
        with names_key("env.data", config.env.data):
            return _make_suite(config.env)
    return _make_suite(config.env)


def _make_suite(env: ConfigDict) -> TaskSuite:
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
    with names_key("model.path", path):
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
    with names_key("model.path", path):
        tokenizer = load_tokenizer(path)
        # An id without an embedding reads as NaN. Nobody writes the padding token, which some models leave out.
        largest = max(i for i in tokenizer.get_vocab().values() if i != tokenizer.pad_token_id)
        if largest >= vocab_size:
            raise ValueError(
                f"the tokenizer has ids up to {largest}, and the vocab_size of config.json is {vocab_size}; take both "
                "from the same model, or resize its embedding."
            )
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

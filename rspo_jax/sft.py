"""Imitation of a scripted, imperfect demonstrator: how the shipped tiny agents were made (`--mode=sft`)."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import logging

from rspo_jax import build, sharding
from rspo_jax.demonstrations import Demonstration, collect, to_row
from rspo_jax.envs import alfworld, prompts, webshop
from rspo_jax.models import hf, tokenizer, transformer
from rspo_jax.packing import Row, gather_actions, pack_rows
from rspo_jax.update import action_logprobs

_DEMONSTRATORS = {"webshop": webshop.demonstrator, "alfworld": alfworld.demonstrator}


def demonstrate(config, suite) -> list[Demonstration]:
    """The demonstrations that config.sft asks for."""
    kind = build.env_kind(config)
    if kind not in _DEMONSTRATORS:
        raise ValueError("env.id: only the built-in environments have a scripted demonstrator to imitate")
    return collect(
        suite,
        _DEMONSTRATORS[kind],
        prompts.get("plain", kind),
        split="train",
        episodes=config.sft.episodes,
        skill=config.sft.skill,
        max_turns=config.env.max_turns,
        seed=config.seed,
    )


def fresh_agent(config, suite, demos):
    """(Policy, random parameters) of a tiny transformer with a tokenizer trained on the demonstrations."""
    texts = [text for demo in demos for text in (*demo.prompts, *demo.actions)]
    tok = tokenizer.train_tokenizer(texts, suite.phrases, config.sft.vocab_size)
    s = config.sft
    model = transformer.ModelConfig(
        vocab_size=len(tok),
        hidden_size=s.width,
        intermediate_size=s.ffn,
        num_hidden_layers=s.layers,
        num_attention_heads=s.heads,
        num_key_value_heads=s.heads,
        head_dim=s.width // s.heads,
        max_position_embeddings=4096,
        model_type="qwen3",
        qkv_bias=False,
        qk_norm=True,
    )
    params = transformer.init(jax.random.key(config.seed), model)
    return build.assemble_policy(config, build.make_mesh(config), model, tok, params)


def batches(rows: list[Row], size: int, rng: np.random.Generator):
    """Endless batches of rows of similar length (short rows are not padded to the longest), in a seeded order."""
    order = np.argsort([len(r) for r in rows], kind="stable")
    groups = [order[i : i + size] for i in range(0, len(order) - size + 1, size)]
    packed: dict[int, object] = {}
    while True:
        for g in rng.permutation(len(groups)):
            if g not in packed:
                packed[g] = gather_actions(pack_rows([rows[i] for i in groups[g]]))
            yield packed[g]


def make_step(policy, optimizer):
    """A jitted imitation step: mean negative log-likelihood of the demonstrated tokens under the constrained policy."""
    free_tokens = None if policy.grammar is None else jnp.asarray(policy.grammar.free_tokens)

    def loss(params, actions):
        logp, _ = action_logprobs(policy.attach(params), policy.config, actions, free_tokens, 1.0)
        return -jnp.sum(logp) / jnp.maximum(jnp.sum(actions.action_mask), 1)

    @jax.jit
    def step(params, opt_state, actions):
        value, gradient = jax.value_and_grad(loss)(params, actions)
        updates, opt_state = optimizer.update(gradient, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, value

    return step


def imitate(config, workdir, writer=None):
    """Trains on demonstrations and saves the agent under WORKDIR/agent; returns (policy, parameters)."""
    suite = build.make_suite(config)
    start = time.monotonic()
    demos = demonstrate(config, suite)
    logging.info(
        "%d demonstrations, success %.1f %%, %.1f turns, %.0f s",
        len(demos),
        100 * np.mean([d.won for d in demos]),
        np.mean([len(d.actions) for d in demos]),
        time.monotonic() - start,
    )
    if config.sft.from_scratch:
        policy, params = fresh_agent(config, suite, demos)
    else:
        policy, params = build.make_policy(config, build.make_mesh(config))
        params = jax.tree.map(lambda x: x.astype(jnp.float32), params)  # bfloat16 would lose small updates
    rows = [to_row(d, policy, config.context.max_tokens) for d in demos]
    logging.info("vocabulary %d, rows of %.0f tokens", policy.config.vocab_size, np.mean([len(r) for r in rows]))
    schedule = optax.warmup_cosine_decay_schedule(0.0, config.sft.lr, config.sft.steps // 10, config.sft.steps)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=0.01))
    opt_state = optimizer.init(params)
    step = make_step(policy, optimizer)
    feed = batches(rows, config.sft.rows, np.random.default_rng(config.seed))
    for i in range(config.sft.steps):
        params, opt_state, value = step(params, opt_state, sharding.shard_batch(next(feed), policy.mesh))
        if i % 20 == 0 or i == config.sft.steps - 1:
            logging.info("sft step %d loss %.4f", i, float(value))
            if writer is not None:
                writer.write({"step": i + 1, "phase": "sft", "loss": value})
    end_token = policy.chat.end_token
    hf.save_hf(workdir / "agent", policy.config, policy.merged(params), policy.tokenizer, end_token=end_token)
    return policy, params

"""A learned process reward: a language model with a small head on the last sampled token of each turn.

    r_t = tanh(MLP(h_t)) in (-1, 1);   fitted so that  sum_t r_t = R in [0, 1],  by mean squared error over episodes

h_t is the last hidden state of the last token that the policy sampled in turn t: it has seen the history and the whole
decision. Only the sum is supervised; the turns share it out among themselves. A turn in which nothing was sampled
was no decision and gets 0. Source: SPA-RL, arXiv 2505.20732. The fit itself is in reward_fit.py.
"""

import json
import math
import os
import pathlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import flax.struct
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy

from rspo_jax import sharding
from rspo_jax.learner import pad_rows
from rspo_jax.models import hf, init_reward_head, last_of_turn, transformer, turn_reward
from rspo_jax.models.tokenizer import load_tokenizer
from rspo_jax.packing import bucket
from rspo_jax.trajectory import TokenRows

_HEAD, _INFO = "head.safetensors", "reward_model.json"
_HEAD_ARRAYS = ("up.kernel", "up.bias", "down.kernel", "down.bias")


@dataclass(frozen=True)
class RewardModel:
    """params: {"backbone": a language model's parameters, "head": see models.init_reward_head}; info: JSON values about
    how it was fitted (its context and format, held-out numbers)."""

    config: transformer.ModelConfig
    params: dict
    tokenizer: Any
    info: dict


@flax.struct.dataclass
class TurnRows:
    """Token rows as the model reads them; no padding rows.

    tokens: i32[N, L], left-aligned; mask: bool[N, L], sampled tokens; first: i32[N], first turn in which the row has a
    sampled token; turn: i32[N, L], turn of a sampled token, counted from `first`; episode: i32[N].
    """

    tokens: Any
    mask: Any
    turn: Any
    first: Any
    episode: Any


def turn_rows(rows: TokenRows) -> TurnRows:
    """The real rows (NumPy), as long as the longest rounded up: the shape depends on these rows alone."""
    real = np.asarray(rows.episode) >= 0
    used = np.asarray(rows.mask)[real]
    longest = int(used.sum(axis=1).max(initial=1))
    L = bucket(longest, 64 if longest <= 512 else 256)

    def fit(x):
        x = np.asarray(x)[real][:, :L]
        return np.pad(x, [(0, 0), (0, L - x.shape[1])])

    mask, turn = fit(rows.action_mask), fit(rows.turn)
    first = np.where(mask.any(axis=1), np.where(mask, turn, np.iinfo(np.int32).max).min(axis=1), 0).astype(np.int32)
    local = np.where(mask, turn - first[:, None], 0).astype(np.int32)
    return TurnRows(fit(rows.tokens), mask, local, first, np.asarray(rows.episode)[real])


def turns_of_row(rows: TurnRows) -> int:
    """Largest number of turns in a row, rounded up: 1 in window context."""
    turns = int(np.max(rows.turn, initial=0)) + 1
    return 1 if turns == 1 else bucket(turns, 8)


def features(backbone, config, rows: TurnRows, turns: int, remat=False) -> tuple[jax.Array, jax.Array]:
    """(h [N, turns, D], bool[N, turns]: something was sampled in that turn)."""
    hidden = transformer.hidden(backbone, config, rows.tokens, None, remat=remat)
    return last_of_turn(hidden, rows.turn, rows.mask, turns)


def rewards(params, config, rows: TurnRows, turns: int, remat=False) -> jax.Array:
    """r f32[N, turns], 0 where nothing was sampled."""
    h, present = features(params["backbone"], config, rows, turns, remat)
    return jnp.where(present, turn_reward(params["head"], h), 0.0)


_features = jax.jit(features, static_argnames=("config", "turns"))
_rewards = jax.jit(rewards, static_argnames=("config", "turns"))


def episode_rewards(model: RewardModel, params, rows: TokenRows, shape: tuple[int, int], *, size: int, mesh):
    """r f32[B, T] of the turns of B episodes, with `params` in place of the model's own; `size` rows at a time."""
    read = turn_rows(rows)
    turns = turns_of_row(read)
    out = in_chunks(lambda chunk: _rewards(params, model.config, chunk, turns), read, size, mesh)
    return by_episode(out, read, shape)


def episode_features(model: RewardModel, rows: TokenRows, shape: tuple[int, int], *, size: int, mesh):
    """(h f32[B, T, D], bool[B, T]) of the frozen backbone."""
    read = turn_rows(rows)
    turns = turns_of_row(read)
    backbone = model.params["backbone"]
    h, present = in_chunks(lambda chunk: _features(backbone, model.config, chunk, turns), read, size, mesh)
    return by_episode(h.astype(np.float32), read, shape), by_episode(present, read, shape)


def chunk_size(rows: int, size: int, mesh) -> int:
    """Rows on the device at once: `size`, less for a small batch, and always a multiple of what the mesh splits."""
    parts = mesh.shape["data"] * mesh.shape["fsdp"]
    return min(bucket(size, parts), bucket(rows, math.lcm(8, parts)))


def in_chunks(function: Callable, rows: TurnRows, size: int, mesh):
    """Arrays that `function` computes from rows, in chunks of one shape; the result is on the host."""
    N = len(rows.episode)
    size = chunk_size(N, size, mesh)
    outs = []
    for first in range(0, N, size):
        chunk = pad_rows(jax.tree.map(lambda x: x[first : first + size], rows), size)  # noqa: B023
        outs.append(function(sharding.shard_batch(chunk, mesh)))
    return jax.tree.map(lambda *parts: np.concatenate(parts)[:N], *jax.device_get(outs))


def by_episode(values: np.ndarray, rows: TurnRows, shape: tuple[int, int]) -> np.ndarray:
    """Values [N, turns, ...] of rows in the places of their episodes and turns, [B, T, ...]; 0 elsewhere."""
    out = np.zeros((*shape, *values.shape[2:]), values.dtype)
    n, column = np.nonzero(rows.mask)
    m = rows.turn[n, column]
    out[rows.episode[n], rows.first[n] + m] = values[n, m]
    return out


def new_model(config, params, tokenizer, *, inner: int, seed: int, mesh, info: dict) -> RewardModel:
    """A model that gives every turn 0, on a backbone that is not copied."""
    head = init_reward_head(jax.random.key(seed), config.hidden_size, inner)
    return RewardModel(config, {"backbone": params, "head": sharding.shard_params(head, mesh)}, tokenizer, info)


def save_reward_model(directory: str | os.PathLike, model: RewardModel) -> None:
    """Writes a Hugging Face directory of the backbone and its tokenizer, then the head, then a JSON file."""
    directory = pathlib.Path(directory)
    writes = jax.process_index() == 0
    if writes:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / _INFO).unlink(missing_ok=True)
    hf.save_hf(directory, model.config, model.params["backbone"], model.tokenizer)
    if not writes:
        return
    head = flax.traverse_util.flatten_dict(jax.device_get(model.params["head"]), sep=".")
    safetensors.numpy.save_file({k: np.array(v, order="C") for k, v in head.items()}, directory / _HEAD)
    temporary = directory / (_INFO + ".tmp")
    temporary.write_text(json.dumps(model.info, indent=2, sort_keys=True) + "\n")
    os.replace(temporary, directory / _INFO)


def load_reward_model(directory: str | os.PathLike, *, mesh, dtype=None, max_length: int | None = None) -> RewardModel:
    """Reads what `save_reward_model` wrote, placed on a mesh.

    dtype: of the backbone, None as stored. max_length: longest row to be used. Raises FileNotFoundError or ValueError,
    in one sentence, for anything missing or malformed.
    """
    directory = pathlib.Path(directory)
    for name in (_INFO, _HEAD):
        if not (directory / name).is_file():
            raise FileNotFoundError(
                f"{directory} is not a process reward model, it has no {name}; make one with --mode=reward_model"
            )
    try:
        info = json.loads((directory / _INFO).read_text())
        flat = safetensors.numpy.load_file(directory / _HEAD)
    except (OSError, ValueError, safetensors.SafetensorError) as error:
        raise ValueError(f"the process reward model in {directory} is damaged ({error}); make it again") from None
    config, backbone = hf.load_hf(directory, dtype=dtype, mesh=mesh, max_length=max_length)
    _check_head(directory, flat, config)
    head = flax.traverse_util.unflatten_dict({k: jnp.asarray(v) for k, v in flat.items()}, sep=".")
    params = {"backbone": backbone, "head": sharding.shard_params(head, mesh)}
    return RewardModel(config, params, load_tokenizer(directory), info)


def _check_head(directory, flat: dict, config) -> None:
    if set(flat) != set(_HEAD_ARRAYS):
        raise ValueError(f"{directory / _HEAD} must hold {', '.join(_HEAD_ARRAYS)} and holds {', '.join(sorted(flat))}")
    width, inner = config.hidden_size, flat["up.bias"].size
    shapes = dict(zip(_HEAD_ARRAYS, [(width, inner), (inner,), (inner,), ()], strict=True))
    for name, shape in shapes.items():
        if flat[name].shape != shape:
            raise ValueError(
                f"{directory / _HEAD}: {name} has shape {flat[name].shape}, a backbone of width {width} needs {shape}"
            )


def check_fits(model: RewardModel, directory, *, policy, context: str, format: str, longest: int) -> None:
    """Raises ValueError where a model cannot score the rows of a policy: other token ids, or another kind of row."""
    where = f"process_reward.path = {str(directory)!r}"
    have, want = model.config.vocab_size, policy.config.vocab_size
    if have != want:
        raise ValueError(f"{where} has a vocabulary of {have} and the policy one of {want}; they must share it")
    if model.tokenizer.get_vocab() != policy.tokenizer.get_vocab():
        raise ValueError(f"{where} has another tokenizer than the policy; collect and fit with the policy's own model")
    for key, now in (("context", context), ("format", format)):
        if model.info.get(key, now) != now:
            raise ValueError(
                f"{where} was fitted with context.{'mode' if key == 'context' else key} = {model.info[key]!r} and this "
                f"run has {now!r}; collect and fit with the same setting"
            )
    if longest > model.config.max_position_embeddings:
        raise ValueError(f"{where} takes {model.config.max_position_embeddings} positions, and rows reach {longest}")


__all__ = [
    "RewardModel",
    "TurnRows",
    "by_episode",
    "check_fits",
    "episode_features",
    "episode_rewards",
    "features",
    "in_chunks",
    "load_reward_model",
    "new_model",
    "rewards",
    "save_reward_model",
    "turn_rows",
    "turns_of_row",
]

"""Synthetic episodes whose outcome depends on one sampled token, and a tiny model to fit on them."""

import functools

import jax
import numpy as np
import tiny

from rspo_jax import reward_model, sharding
from rspo_jax.collected import Collected
from rspo_jax.configuration import fingerprint
from rspo_jax.packing import Row, pack_rows

KEY, OTHERS = 40, (41, 42, 43, 44, 45)
TURNS = 4


@functools.cache
def mesh():
    return sharding.make_mesh(data=jax.device_count())


def config(**changes):
    """The tiny configuration with a small process reward model; keys of `changes` have two underscores for a dot."""
    return tiny.config(**{"reward_model__inner": 16, "reward_model__batch": 16, "reward_model__lr": 1e-2} | changes)


def tiny_model(dtype="float32") -> reward_model.RewardModel:
    """On the parameters of the tiny agent."""
    params = jax.tree.map(lambda x: x.astype(dtype), tiny.params())
    info = {"context": "append", "format": "plain", "outcome": "success"}
    return reward_model.new_model(
        tiny.model_config(), params, tiny.tokenizer(), inner=16, seed=0, mesh=mesh(), info=info
    )


def token_rows(turns_of_episodes, window: bool):
    """Token rows of episodes given as lists of responses; each turn is a prompt of 3 ids and its response."""
    rows = []
    for b, responses in enumerate(turns_of_episodes):
        for t, response in enumerate(responses):
            if window or t == 0:
                rows.append(Row(episode=b))
            rows[-1].add_prompt([50 + t, 60, 61], t)
            n = len(response)
            rows[-1].add_response(response, [0.0] * n, [True] * n, [0] * n, [()] * n, t)
    return pack_rows(rows)


def episodes(count: int, window: bool = False, seed: int = 0) -> tuple[Collected, np.ndarray]:
    """(episodes, turn of the key token; -1 in the failures): half of them say KEY in one turn and succeed."""
    rng = np.random.default_rng(seed)
    said = [[[int(rng.choice(OTHERS))] for _ in range(TURNS)] for _ in range(count)]
    where = np.full(count, -1)
    for b in range(0, count, 2):
        where[b] = rng.integers(TURNS)
        said[b][where[b]] = [KEY]
    success = where >= 0
    data = Collected(
        rows=token_rows(said, window),
        outcome=success.astype(np.float32),
        success=success,
        turns=np.full(count, TURNS, np.int32),
        task=np.arange(count, dtype=np.int32),
        info={
            "model": "tiny",
            "context": "window" if window else "append",
            "format": "plain",
            "outcome": "success",
            "vocab_size": len(tiny.tokenizer()),
            "vocabulary": fingerprint(tiny.tokenizer().get_vocab()),
        },
    )
    return data, where

"""A policy's fixed parts, and the decoder that keeps its key/value cache through the turns of a rollout."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from rspo_jax import sharding
from rspo_jax.models import lora, sampler, transformer
from rspo_jax.models.chat import ChatFormat
from rspo_jax.models.constrain import ActionGrammar
from rspo_jax.packing import bucket


@dataclass(frozen=True)
class Policy:
    """Everything of an agent but what is trained.

    base: the frozen parameters under LoRA adapters, else None (then the trained parameters are the whole model).
    grammar: the admissible-action constraint, or None where the model writes freely.
    """

    config: transformer.ModelConfig
    tokenizer: Any
    chat: ChatFormat
    mesh: Mesh
    grammar: ActionGrammar | None = None
    base: Any = None
    lora_alpha: float = 0.0

    def attach(self, params, base=None):
        """Parameters for a forward pass: `params`, or the base with the adapter `params` (None: the bare base)."""
        base = self.base if base is None else base
        if base is None:
            return params
        return base if params is None else lora.attach(base, params, alpha=self.lora_alpha)

    def merged(self, params):
        """Parameters of the whole model, adapters folded in: for export and for sampling."""
        return params if self.base is None else lora.merge(self.base, params, alpha=self.lora_alpha)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of a response without its end-of-turn token."""
        kept = [int(i) for i in ids]
        if kept and kept[-1] == self.chat.end_token:
            kept.pop()
        return self.tokenizer.decode(kept, skip_special_tokens=True, clean_up_tokenization_spaces=False)


@dataclass(frozen=True)
class Response:
    """One sampled response; `unfed` are its last ids, which the cache has not seen yet. Arrays of its length."""

    tokens: np.ndarray
    logp: np.ndarray
    sampled: np.ndarray
    constraint: np.ndarray
    allowed: np.ndarray
    unfed: list[int] = field(default_factory=list)


class Decoder:
    """Answers prompts for a fixed set of rows, turn after turn.

    In append context a prompt is what is new since the row's last response, and the cache grows; in window context each
    turn starts from an empty cache. Rows that are no longer asked leave the batch when half of it is idle. A batch
    always has a size that the mesh divides.
    """

    def __init__(self, policy: Policy, params, settings, keys: jax.Array):
        self.policy, self.params, self.s, self.keys = policy, params, settings, keys
        self._parts = policy.mesh.shape["data"] * policy.mesh.shape["fsdp"]
        self._cache, self._slot, self._owners = None, 0, []

    def respond(
        self, rows: Sequence[int], prompts: Sequence[list[int]], admissible: Sequence[Sequence[str]] | None, turn: int
    ) -> list[Response]:
        """One response per asked row. rows: indices into `keys`; admissible: each row's actions under a constraint."""
        last = self._feed(rows, prompts)
        place = [self._owners.index(row) for row in rows]
        B = len(self._owners)
        active = np.zeros(B, bool)
        active[place] = True
        owners = np.asarray([max(o, 0) for o in self._owners])
        keys = jax.vmap(lambda key: jax.random.fold_in(key, turn))(self.keys[owners])
        trie = None
        if admissible is not None:
            lists: list[Sequence[str]] = [()] * B
            for p, actions in zip(place, admissible, strict=True):
                lists[p] = actions
            trie = self.policy.grammar.compile(lists)
        self._reserve(self.s.max_response)
        generated, self._cache = sampler.generate(
            self.params,
            self.policy.config,
            self._cache,
            last,
            self._slot,
            self._shard(keys),
            trie=trie,
            active=self._shard(active),
            max_tokens=self.s.max_response,
            temperature=self.s.temperature,
            end_token=self.policy.chat.end_token,
            greedy=self.s.greedy,
        )
        host = jax.device_get(generated)
        self._slot += int(host.slots)
        return [self._response(host, p) for p in place]

    def _response(self, generated: sampler.Generated, place: int) -> Response:
        n = int(generated.mask[place].sum())
        g = [x[place, :n] for x in (generated.tokens, generated.logp, generated.sampled)]
        unfed = [int(i) for i in g[0][int(generated.fed[place]) :]]
        return Response(*g, generated.constraint[place, :n], generated.allowed[place, :n], unfed)

    def _feed(self, rows, prompts) -> jax.Array:
        """Feeds the prompts; returns the last hidden state of each cache row."""
        if self._cache is None or self.s.context == "window":
            return self._start(rows, prompts)
        self._compact(rows)
        ids: list[list[int]] = [[] for _ in self._owners]
        for row, prompt in zip(rows, prompts, strict=True):
            ids[self._owners.index(row)] = prompt
        tokens, mask = sampler.right_align(ids, _chunk(ids))
        return self._prefill(tokens, mask)

    def _start(self, rows, prompts) -> jax.Array:
        """An empty cache; identical prompts are computed once and their cache rows repeated."""
        distinct = sorted(set(map(tuple, prompts)))
        size = max(bucket(len(rows), self._parts), self._owners and len(self._owners) or 0)
        shared = bucket(len(distinct), self._parts) * 2 <= size
        ids = [list(p) for p in distinct] if shared else [list(p) for p in prompts]
        ids += [[]] * (bucket(len(ids), self._parts) - len(ids)) if shared else [[]] * (size - len(ids))
        self._owners = list(rows) + [-1] * (size - len(rows))
        tokens, mask = sampler.right_align(ids, _chunk(ids))
        self._slot = 0
        slots = bucket(tokens.shape[1] + self.s.max_response, 256)
        dtype = self.params["embed_tokens"].dtype
        self._cache = self._shard(transformer.init_cache(self.policy.config, len(ids), slots, dtype))
        last = self._prefill(tokens, mask)
        if shared:
            where = {p: i for i, p in enumerate(distinct)}
            source = jnp.asarray([where[tuple(p)] for p in prompts] + [0] * (size - len(rows)))
            self._cache = self._shard(transformer.take_cache(self._cache, source))
            last = self._shard(jnp.take(last, source, axis=0))
        return last

    def _compact(self, rows) -> None:
        """Drops finished rows once at least half of the batch is idle."""
        half = bucket(len(rows), max(self._parts, 8))
        if 2 * half > len(self._owners):
            return
        keep = [self._owners.index(row) for row in rows] + [0] * (half - len(rows))
        self._cache = self._shard(transformer.take_cache(self._cache, jnp.asarray(keep)))
        self._owners = list(rows) + [-1] * (half - len(rows))

    def _prefill(self, tokens, mask) -> jax.Array:
        self._reserve(tokens.shape[1])
        last, self._cache = sampler.prefill(
            self.params, self.policy.config, self._cache, self._shard(tokens), self._shard(mask), self._slot
        )
        self._slot += tokens.shape[1]
        return last

    def _reserve(self, slots: int) -> None:
        have, need = self._cache.valid.shape[1], self._slot + slots
        if need > have:
            self._cache = self._shard(transformer.grow_cache(self._cache, bucket(need, 256)))

    def _shard(self, tree):
        return sharding.shard_batch(tree, self.policy.mesh) if self._parts > 1 else tree


def _chunk(ids: Sequence[Sequence[int]]) -> int:
    """Width multiple for a prefill: fine for short prompts, coarse for long ones, so that few shapes are compiled."""
    longest = max(map(len, ids), default=0)
    return 16 if longest <= 64 else 64 if longest <= 512 else 256


__all__ = ["Decoder", "Policy", "Response"]

"""A policy's fixed parts, and the decoder that keeps its key/value cache through the turns of a rollout."""

import functools
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
from rspo_jax.models.constrain import ActionGrammar, Trie
from rspo_jax.packing import bucket

_LEAST_ROWS = 8  # smaller batches are padded: they cost the same, and fewer programs are compiled


@dataclass(frozen=True)
class Policy:
    """Everything of an agent but what is trained.

    base: the frozen parameters under LoRA adapters, else None (then the trained parameters are the whole model).
    grammar: the admissible-action constraint, or None where the model writes freely.
    dtype: what the model computes in; trained parameters are float32 whatever it is.
    """

    config: transformer.ModelConfig
    tokenizer: Any
    chat: ChatFormat
    mesh: Mesh
    grammar: ActionGrammar | None = None
    base: Any = None
    lora_alpha: float = 0.0
    dtype: str = "float32"

    def __post_init__(self):
        # The same pages, and the same responses, come up again and again.
        for name, function in (("first", self.chat.first), ("next", self.chat.next), ("_text", self._decode)):
            object.__setattr__(self, name, functools.lru_cache(maxsize=1 << 14)(function))

    def attach(self, params):
        """Parameters for a forward pass that is differentiated; see `attach`."""
        return attach(params, self.base, self.lora_alpha, self.dtype)

    def merged(self, params):
        """Parameters of the whole model, adapters folded in, as it computes with them: for sampling and for export."""
        return attach(params, self.base, self.lora_alpha, self.dtype, merge=True)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of a response without its end-of-turn token."""
        return self._text(tuple(map(int, ids)))

    def _decode(self, ids: tuple[int, ...]) -> str:
        kept = ids[:-1] if ids and ids[-1] == self.chat.end_token else ids
        return self.tokenizer.decode(list(kept), skip_special_tokens=True, clean_up_tokenization_spaces=False)


def attach(params, base, lora_alpha: float, dtype: str, *, merge: bool = False):
    """Parameters for a forward pass in `dtype`: the trained ones, or the base with the adapter `params`.

    params None is the bare base. With merge the adapter is folded into the kernels, for a pass without gradient.
    """
    if base is None:
        return jax.tree.map(lambda x: x.astype(dtype), params)
    if params is None:
        return base
    return (lora.merge if merge else lora.attach)(base, params, alpha=lora_alpha)


def for_decoding(policy: Policy, params):
    """Parameters as decoding reads them fastest, made once for a rollout."""
    if policy.mesh.shape["fsdp"] > 1:
        params = sharding.gather_fsdp(params, policy.mesh)
    # Unstacked layers decode faster, and cost a second copy of the weights: on CPU, where models are small.
    return transformer.unstack(params) if jax.default_backend() == "cpu" else params


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
    turn starts from an empty cache. Rows that are no longer asked leave the batch when half of it is idle. Sizes are
    powers of two (times what the mesh splits), so that few programs are compiled. params: see `for_decoding`.
    """

    def __init__(self, policy: Policy, params, settings, keys: jax.Array):
        self.policy, self.params, self.s, self.keys = policy, params, settings, keys
        self._parts = policy.mesh.shape["data"] * policy.mesh.shape["fsdp"]
        self._cache, self._slot = None, 0
        self._owners: list[int] = []  # row of each place in the batch; -1 where it is padding
        self._trie_shape = (0, 0)

    def respond(
        self, rows: Sequence[int], prompts: Sequence[list[int]], admissible: Sequence[Sequence[str]] | None, turn: int
    ) -> list[Response]:
        """One response per asked row. rows: indices into `keys`; admissible: each row's actions under a constraint."""
        if self._cache is None or self.s.context == "window":
            last = self._start(rows, prompts)
        else:
            last = self._continue(rows, prompts)
        place_of = {row: place for place, row in enumerate(self._owners) if row >= 0}
        places = [place_of[row] for row in rows]
        B = len(self._owners)
        active = np.zeros(B, bool)
        active[places] = True
        trie = None if admissible is None else self._trie(B, places, admissible)
        self._reserve(self.s.max_response)
        generated, self._cache = sampler.generate(
            self.params,
            self.policy.config,
            self._cache,
            last,
            self._slot,
            self._shard(_turn_keys(self.keys, np.maximum(self._owners, 0), turn)),
            trie=trie,
            active=self._shard(active),
            max_tokens=self.s.max_response,
            temperature=self.s.temperature,
            end_token=self.policy.chat.end_token,
            greedy=self.s.greedy,
        )
        host = jax.device_get(generated)
        self._slot += int(host.slots)
        lengths = host.mask.sum(axis=1)
        return [_response(host, place, int(lengths[place])) for place in places]

    def _start(self, rows, prompts) -> jax.Array:
        """An empty cache; identical prompts are computed once and their cache rows repeated."""
        size = self._batch(len(rows))
        distinct = {prompt: i for i, prompt in enumerate(dict.fromkeys(map(tuple, prompts)))}
        shared = self._batch(len(distinct)) < size
        ids: list[Sequence[int]] = list(distinct) if shared else list(prompts)
        ids += [()] * ((self._batch(len(distinct)) if shared else size) - len(ids))
        self._owners = [*rows, *[-1] * (size - len(rows))]
        tokens, mask = sampler.right_align(ids, _chunk(ids))
        self._slot = 0
        slots = bucket(tokens.shape[1] + self.s.max_response, 256)
        dtype = self.params["embed_tokens"].dtype
        self._cache = _cache_maker(self.policy.config, len(ids), slots, dtype, self.policy.mesh)()
        last = self._prefill(tokens, mask)
        if not shared:
            return last
        source = np.asarray([distinct[tuple(p)] for p in prompts] + [0] * (size - len(rows)), np.int32)
        self._cache = self._place(_take_cache(self._cache, source))
        return self._shard(jnp.take(last, source, axis=0))

    def _continue(self, rows, prompts) -> jax.Array:
        """Feeds what is new to each row."""
        self._compact(rows)
        prompt_of = dict(zip(rows, prompts, strict=True))
        ids = [prompt_of.get(row, ()) for row in self._owners]
        return self._prefill(*sampler.right_align(ids, _chunk(ids)))

    def _compact(self, rows) -> None:
        """Drops finished rows once at least half of the batch is idle."""
        size = self._batch(len(rows))
        if size >= len(self._owners):
            return
        place_of = {row: place for place, row in enumerate(self._owners)}
        keep = np.asarray([place_of[row] for row in rows] + [0] * (size - len(rows)), np.int32)
        self._cache = self._place(_take_cache(self._cache, keep))
        self._owners = [*rows, *[-1] * (size - len(rows))]

    def _prefill(self, tokens, mask) -> jax.Array:
        self._reserve(tokens.shape[1])
        last, self._cache = sampler.prefill(
            self.params, self.policy.config, self._cache, self._shard(tokens), self._shard(mask), self._slot
        )
        self._slot += tokens.shape[1]
        return last

    def _trie(self, size: int, places, admissible) -> Trie:
        """The rows' trees, at least as large as those of earlier turns."""
        lists: list[Sequence[str]] = [()] * size
        for place, actions in zip(places, admissible, strict=True):
            lists[place] = actions
        trie = self.policy.grammar.compile(lists)
        have = trie.child_token.shape[1:]
        self._trie_shape = tuple(map(max, have, self._trie_shape))
        nodes, width = (want - got for want, got in zip(self._trie_shape, have, strict=True))
        if nodes or width:
            grow = ((0, 0), (0, nodes), (0, width))
            trie = trie._replace(
                child_token=np.pad(trie.child_token, grow, constant_values=-1),
                child_node=np.pad(trie.child_node, grow),
                free=np.pad(trie.free, grow[:2]),
                decided=np.pad(trie.decided, grow[:2]),
            )
        return trie

    def _batch(self, rows: int) -> int:
        """Rows of the batch that holds so many."""
        share = -(-max(rows, _LEAST_ROWS) // self._parts)
        return self._parts << (share - 1).bit_length()

    def _reserve(self, slots: int) -> None:
        have, need = self._cache.valid.shape[1], self._slot + slots
        if need > have:
            self._cache = self._place(_grow_cache(self._cache, bucket(need, 256)))

    def _shard(self, tree):
        return sharding.shard_batch(tree, self.policy.mesh) if self._parts > 1 else tree

    def _place(self, cache):
        mesh = self.policy.mesh
        return jax.device_put(cache, sharding.cache_shardings(cache, mesh)) if mesh.size > 1 else cache


@functools.lru_cache(maxsize=64)
def _cache_maker(config, rows: int, slots: int, dtype, mesh: Mesh):
    """Makes an empty cache in its places: whole, it may not fit a device."""
    make = functools.partial(transformer.init_cache, config, rows, slots, dtype)
    if mesh.size == 1:
        return make
    return jax.jit(make, out_shardings=sharding.cache_shardings(jax.eval_shape(make), mesh))


_take_cache = jax.jit(transformer.take_cache)
_grow_cache = jax.jit(transformer.grow_cache, static_argnums=1)


@jax.jit
def _turn_keys(keys, rows, turn):
    """A key for each place of the batch: that of its row, folded with the turn."""
    return jax.vmap(lambda key: jax.random.fold_in(key, turn))(keys[rows])


def _response(generated: sampler.Generated, place: int, length: int) -> Response:
    fields = (generated.tokens, generated.logp, generated.sampled, generated.constraint, generated.allowed)
    tokens, *others = (x[place, :length] for x in fields)
    return Response(tokens, *others, unfed=tokens[int(generated.fed[place]) :].tolist())


def _chunk(ids: Sequence[Sequence[int]]) -> int:
    """Width multiple for a prefill: fine for short prompts, coarse for long ones, so that few shapes are compiled."""
    longest = max(map(len, ids), default=0)
    return 8 if longest <= 32 else 16 if longest <= 128 else 64 if longest <= 512 else 256


__all__ = ["Decoder", "Policy", "Response", "attach", "for_decoding"]

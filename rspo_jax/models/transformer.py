"""One decoder-only transformer for Qwen2, Qwen3, Llama, Mistral and Gemma: a config, a dict and plain functions.

Shape letters: N rows or B cache rows, L or C tokens, D width, V vocabulary, S cache slots, n layers. Parameters:

    {"embed_tokens": [V, D], "norm": {"scale": [D]}, "lm_head": {"kernel": [D, V]} unless tied,
     "layers": {"input_layernorm", "post_attention_layernorm": {"scale": [n, D]},
                "self_attn": {"q_proj", "k_proj", "v_proj", "o_proj": {"kernel": [n, in, out], "bias"?: [n, out]},
                              "q_norm"?, "k_norm"?: {"scale": [n, head_dim]}},
                "mlp": {"gate_proj", "up_proj", "down_proj": {"kernel": [n, in, out]}}}}

Activations have the dtype of the parameters; norms, rotations, softmax and logits are f32.
"""

import dataclasses
import operator
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from rspo_jax.models import attention
from rspo_jax.models.rope import RopeConfig, rotate, rotation
from rspo_jax.sharding import batch_sharding

Params = dict

_ACTIVATIONS = {"silu": jax.nn.silu, "gelu_pytorch_tanh": lambda x: jax.nn.gelu(x, approximate=True)}
_REMAT_POLICIES = {True: None, "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable}


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Sizes and family flags; field names are those of a Hugging Face config.json where it has them.

    qkv_bias: biases on the query, key and value projections (Qwen2). qk_norm: RMSNorm on each query and key head
    (Qwen3). norm_offset: a stored norm scale s acts as s + norm_offset, and embed_scale multiplies the embeddings by
    sqrt(D) (Gemma). mesh: devices that the rows of activations are split over; without it, where parameters are split
    by `fsdp`, XLA splits the width of activations and computes all rows everywhere. source and generation: the
    config.json this was read from and the generation_config.json beside it, written back on export; they take no part
    in equality.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    model_type: str = "qwen2"
    hidden_act: str = "silu"
    rms_norm_eps: float = 1e-6
    rope: RopeConfig = RopeConfig()
    max_position_embeddings: int = 32768
    tie_word_embeddings: bool = True
    qkv_bias: bool = True
    qk_norm: bool = False
    norm_offset: float = 0.0
    embed_scale: bool = False
    mesh: jax.sharding.Mesh | None = None
    source: str = dataclasses.field(default="", compare=False, repr=False)
    generation: str = dataclasses.field(default="", compare=False, repr=False)

    def __post_init__(self):
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads = {self.num_attention_heads} is not a multiple of num_key_value_heads = "
                f"{self.num_key_value_heads}; every key/value head must serve the same number of query heads."
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim = {self.head_dim} is odd; rotary embeddings rotate pairs, so make it even.")
        if self.hidden_act not in _ACTIVATIONS:
            raise ValueError(f"hidden_act = {self.hidden_act!r} is not implemented; use one of {sorted(_ACTIVATIONS)}.")


class Cache(NamedTuple):
    """Keys and values of every layer. All rows share one slot index; a row's gaps are slots that are not `valid`.

    k: tuple of [B, kv_heads, head_dim, S], one per layer; v: tuple of [B, kv_heads, S, head_dim]; valid: bool[B, S];
    length: i32[B], valid tokens so far, which is the next token's position.
    """

    k: tuple
    v: tuple
    valid: jax.Array
    length: jax.Array


def init(key: jax.Array, config: ModelConfig, dtype=jnp.float32) -> Params:
    """Random parameters: normal with variance 1 / fan-in, projections into the residual stream scaled by (2n)^-1/2."""
    n, width, inner = config.num_hidden_layers, config.hidden_size, config.intermediate_size
    queries = config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    keys_of = iter(jax.random.split(key, 9))

    def normal(shape, scale):
        return (scale * jax.random.normal(next(keys_of), shape)).astype(dtype)

    def kernel(fan_in, fan_out, scale=1.0, bias=False):
        weights = {"kernel": normal((n, fan_in, fan_out), scale * fan_in**-0.5)}
        return weights | {"bias": jnp.zeros((n, fan_out), dtype)} if bias else weights

    def scale(*shape):
        return {"scale": jnp.full(shape, 1.0 - config.norm_offset, dtype)}

    into_residual = (2 * n) ** -0.5
    self_attn = {
        "q_proj": kernel(width, queries, bias=config.qkv_bias),
        "k_proj": kernel(width, keys, bias=config.qkv_bias),
        "v_proj": kernel(width, keys, bias=config.qkv_bias),
        "o_proj": kernel(queries, width, into_residual),
    }
    if config.qk_norm:
        self_attn |= {"q_norm": scale(n, config.head_dim), "k_norm": scale(n, config.head_dim)}
    mlp = {
        "gate_proj": kernel(width, inner),
        "up_proj": kernel(width, inner),
        "down_proj": kernel(inner, width, into_residual),
    }
    layers = {"input_layernorm": scale(n, width), "post_attention_layernorm": scale(n, width)}
    params = {
        "embed_tokens": normal((config.vocab_size, width), 0.02),
        "layers": layers | {"self_attn": self_attn, "mlp": mlp},
        "norm": scale(width),
    }
    if not config.tie_word_embeddings:
        params["lm_head"] = {"kernel": normal((width, config.vocab_size), 0.02)}
    return params


def hidden(
    params: Params, config: ModelConfig, tokens: jax.Array, mask: jax.Array | None = None, *, remat: bool | str = False
) -> jax.Array:
    """Last hidden states after the final norm, [N, L, D], of whole rows tokens i32[N, L]; the function to train with.

    mask bool[N, L] is False on padding, which may lie anywhere: position = number of real tokens before. Left-aligned
    rows need no mask: their real tokens never see the padding. remat: False keeps every activation for the backward
    pass, True keeps the input of each layer only, "dots" keeps the outputs of weight matrices. Values at padding are
    finite and mean nothing.
    """
    chex.assert_rank(tokens, 2)
    if mask is not None:
        chex.assert_equal_shape([tokens, mask])
        place, row = _left_aligned(mask), jnp.arange(tokens.shape[0])[:, None]
        tokens = jnp.zeros_like(tokens).at[row, place].set(tokens, unique_indices=True)
    rotation_ = rotation(config.rope, config.head_dim, jnp.arange(tokens.shape[1])[None])

    def layer_step(x, layer):
        return _layer(x, layer, config, tokens.shape, rotation_, attention.causal_attention), None

    if remat:
        layer_step = jax.checkpoint(layer_step, policy=_REMAT_POLICIES[remat], prevent_cse=False)
    x, _ = jax.lax.scan(layer_step, _embed(params, config, tokens), params["layers"])
    x = _rms_norm(x, params["norm"], config).reshape(*tokens.shape, -1)
    return x if mask is None else x[row, place]


def _left_aligned(mask):
    """Where each token goes, i32[N, L], when the real ones of a row move to its front in order.

    Causal attention alone is then exact, and fused kernels without a mask apply.
    """
    before = jnp.cumsum(mask, axis=1, dtype=jnp.int32)
    behind = before[:, -1:] + jnp.cumsum(~mask, axis=1, dtype=jnp.int32)
    return jnp.where(mask, before, behind) - 1


def logits(params: Params, config: ModelConfig, tokens: jax.Array, mask: jax.Array | None = None) -> jax.Array:
    """Next-token logits f32[N, L, V], for small inputs: `logprobs.token_logprobs`, for training, never holds them."""
    return jnp.matmul(hidden(params, config, tokens, mask), head(params, config), preferred_element_type=jnp.float32)


def head(params: Params, config: ModelConfig) -> jax.Array:
    """Output kernel [D, V]: the transposed embedding where the two are tied."""
    kernel = params["embed_tokens"].T if config.tie_word_embeddings else params["lm_head"]["kernel"]
    if config.mesh is None:
        return kernel
    # Gathered over fsdp once here, so that a loop over chunks of rows does not sum partial logits in each chunk.
    return jax.lax.with_sharding_constraint(kernel, NamedSharding(config.mesh, PartitionSpec(None, "tensor")))


def init_cache(config: ModelConfig, batch: int, slots: int, dtype=jnp.float32) -> Cache:
    """An empty cache of `slots` slots for `batch` rows."""
    n, heads, size = config.num_hidden_layers, config.num_key_value_heads, config.head_dim
    return Cache(
        k=tuple(jnp.zeros((batch, heads, size, slots), dtype) for _ in range(n)),
        v=tuple(jnp.zeros((batch, heads, slots, size), dtype) for _ in range(n)),
        valid=jnp.zeros((batch, slots), bool),
        length=jnp.zeros(batch, jnp.int32),
    )


def grow_cache(cache: Cache, slots: int) -> Cache:
    """The same cache with room for `slots` slots in all (at least as many as now)."""
    extra = slots - cache.valid.shape[1]
    if extra < 0:
        raise ValueError(f"slots = {slots} is smaller than the cache's {cache.valid.shape[1]}; a cache only grows.")
    return Cache(
        k=tuple(jnp.pad(k, ((0, 0), (0, 0), (0, 0), (0, extra))) for k in cache.k),
        v=tuple(jnp.pad(v, ((0, 0), (0, 0), (0, extra), (0, 0))) for v in cache.v),
        valid=jnp.pad(cache.valid, ((0, 0), (0, extra))),
        length=cache.length,
    )


def take_cache(cache: Cache, rows: jax.Array) -> Cache:
    """The cache of rows i32[B2] of the old batch: repeats prefilled prompts, or drops finished episodes."""
    return jax.tree.map(lambda x: jnp.take(x, rows, axis=0), cache)


def extend(
    params: Params, config: ModelConfig, cache: Cache, tokens: jax.Array, mask: jax.Array, slot: jax.Array | int
) -> tuple[jax.Array, Cache]:
    """Appends tokens i32[B, C] at slots [slot, slot + C) and returns (hidden states [B, C, D] after the norm, cache).

    mask bool[B, C] is False on gaps, which take a slot but no position and are never seen. `slot` is shared by all
    rows; slots must be filled in order and slot + C <= S (a traced `slot` cannot be checked). A Python integer saves
    work in a prefill. Donate the cache where you jit this: it is updated in place. Decoding one token is C = 1.
    """
    chex.assert_rank(tokens, 2)
    chex.assert_equal_shape([tokens, mask])
    slots = cache.valid.shape[1]
    if (slot if isinstance(slot, int) else 0) + tokens.shape[1] > slots:
        raise ValueError(
            f"{tokens.shape[1]} tokens at slot {slot} do not fit into {slots} slots; call grow_cache first."
        )
    positions = jnp.maximum(cache.length[:, None] + jnp.cumsum(mask, axis=1, dtype=jnp.int32) - 1, 0)
    rotation_ = rotation(config.rope, config.head_dim, positions)
    valid = jax.lax.dynamic_update_slice(cache.valid, mask, (0, slot))
    x = _embed(params, config, tokens)
    layers = unstack(params)["layers"]
    new_k, new_v = [], []

    def attend(q, k, v):
        i = len(new_k)
        new_k.append(_write(cache.k[i], attention.key_layout(k), (0, 0, 0, slot)))
        new_v.append(_write(cache.v[i], attention.value_layout(v), (0, 0, slot, 0)))
        return attention.cached_attention(q, new_k[i], new_v[i], valid, slot)

    for i in range(config.num_hidden_layers):  # unrolled: a scan would copy each layer's cache at every call
        x = _layer(x, layers[i], config, tokens.shape, rotation_, attend)
    length = cache.length + jnp.sum(mask, axis=1, dtype=jnp.int32)
    x = _rms_norm(x, params["norm"], config).reshape(*tokens.shape, -1)
    return x, Cache(tuple(new_k), tuple(new_v), valid, length)


def unstack(params: Params) -> Params:
    """The same parameters for `extend` only, with `layers` as a tuple of one dict per layer.

    Inside a decoding loop XLA copies every layer's weights out of the stacked arrays at every step. Call this once per
    weight update, outside of the loop's jit, where twice the memory for weights is affordable. Done twice it does
    nothing.
    """
    layers = params["layers"]
    if isinstance(layers, tuple):
        return params
    count = layers["input_layernorm"]["scale"].shape[0]
    return params | {"layers": tuple(jax.tree.map(operator.itemgetter(i), layers) for i in range(count))}


def _write(buffer, update, start):
    return jax.lax.dynamic_update_slice(buffer, update.astype(buffer.dtype), start)


def _embed(params, config, tokens):
    """Embeddings, flat: [N * L, D] (matrix products on two axes are the fast ones)."""
    x = jnp.take(params["embed_tokens"], tokens.reshape(-1), axis=0)
    x = x * jnp.asarray(config.hidden_size**0.5, x.dtype) if config.embed_scale else x
    return _split_rows(x, config)


def _split_rows(x, config):
    return x if config.mesh is None else jax.lax.with_sharding_constraint(x, batch_sharding(config.mesh))


def _layer(x, layer, config, shape, rotation_, attend):
    """One pre-norm block on x [N * L, D]; attend(q, k, v) sees [N, L, heads, head_dim]."""
    weights = layer["self_attn"]
    normed = _rms_norm(x, layer["input_layernorm"], config)
    q, k, v = (
        _linear(normed, weights[name]).reshape(*shape, -1, config.head_dim) for name in ("q_proj", "k_proj", "v_proj")
    )
    if config.qk_norm:
        q, k = _rms_norm(q, weights["q_norm"], config), _rms_norm(k, weights["k_norm"], config)
    attended = attend(rotate(q, *rotation_), rotate(k, *rotation_), v)
    x = x + _linear(attended.reshape(x.shape[0], -1), weights["o_proj"])
    normed = _rms_norm(x, layer["post_attention_layernorm"], config)
    return _split_rows(x + _mlp(normed, layer["mlp"], config), config)


def _mlp(x, weights, config):
    gate = _ACTIVATIONS[config.hidden_act](_linear(x, weights["gate_proj"]))
    return _linear(gate * _linear(x, weights["up_proj"]), weights["down_proj"])


def _linear(x, weights):
    """x @ kernel + bias, plus the low-rank update of an attached adapter (lora.attach)."""
    y = x @ weights["kernel"]
    if "lora_a" in weights:
        y = y + (x @ weights["lora_a"]) @ weights["lora_b"]
    return y + weights["bias"] if "bias" in weights else y


def _rms_norm(x, weights, config):
    x32 = x.astype(jnp.float32)
    normed = x32 * jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + config.rms_norm_eps)
    return (normed * (weights["scale"].astype(jnp.float32) + config.norm_offset)).astype(x.dtype)

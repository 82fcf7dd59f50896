"""Causal attention: cuDNN through `jax.nn.dot_product_attention` on GPU, static query blocks elsewhere.

Query heads are grouped over key/value heads (arXiv 2305.13245): query head i reads key/value head
i // (heads / kv_heads). Softmax is f32 whatever the dtype of the inputs.
"""

import jax
import jax.numpy as jnp

QUERY_BLOCK = (
    128  # queries of one block read only the keys up to its end: nearly half of a full square is never computed
)
_MASKED = -1e30  # finite, so that a query in a gap, which may see no key at all, gives no NaN


def causal_attention(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Self-attention over whole rows, for training: each token sees itself and all before it.

    query [N, L, heads, head_dim], key and value [N, L, kv_heads, head_dim] -> [N, L, heads, head_dim].
    """
    if _cudnn_applies(query):
        return jax.nn.dot_product_attention(query, key, value, is_causal=True, implementation="cudnn")
    length = query.shape[1]
    query, key_t, value = _grouped(query, key.shape[2]), key_layout(key), value_layout(value)
    outputs = []
    for start in range(0, length, QUERY_BLOCK):
        end = min(start + QUERY_BLOCK, length)
        visible = (jnp.arange(end) <= jnp.arange(start, end)[:, None])[None]
        outputs.append(_attend(query[:, :, :, start:end], key_t[..., :end], value[:, :, :end], visible))
    return _ungrouped(jnp.concatenate(outputs, axis=3))


def cached_attention(
    query: jax.Array, key_t: jax.Array, value: jax.Array, valid: jax.Array, slot: jax.Array | int
) -> jax.Array:
    """Attention of the queries at slots [slot, slot + C) over a cache that already holds their keys.

    query [B, C, heads, head_dim], key_t [B, kv_heads, head_dim, S], value [B, kv_heads, S, head_dim], valid bool[B, S]
    -> [B, C, heads, head_dim]. A Python integer as `slot` lets each block read only the slots up to its own end.
    """
    length, slots = query.shape[1], value.shape[2]
    query = _grouped(query, key_t.shape[1])
    outputs = []
    for start in range(0, length, QUERY_BLOCK):
        end = min(start + QUERY_BLOCK, length)
        reach = min(slot + end, slots) if isinstance(slot, int) else slots
        visible = (jnp.arange(reach) <= slot + jnp.arange(start, end)[:, None])[None] & valid[:, None, :reach]
        outputs.append(_attend(query[:, :, :, start:end], key_t[..., :reach], value[:, :, :reach], visible))
    return _ungrouped(jnp.concatenate(outputs, axis=3))


def key_layout(key: jax.Array) -> jax.Array:
    """[N, L, kv_heads, head_dim] -> [N, kv_heads, head_dim, L], the layout of cached keys."""
    return key.transpose(0, 2, 3, 1)


def value_layout(value: jax.Array) -> jax.Array:
    """[N, L, kv_heads, head_dim] -> [N, kv_heads, L, head_dim], the layout of cached values."""
    return value.transpose(0, 2, 1, 3)


def _cudnn_applies(query: jax.Array) -> bool:
    """cuDNN's fused attention exists for 16-bit floats and head sizes that are multiples of 8 up to 128."""
    half = query.dtype in (jnp.bfloat16, jnp.float16)
    return jax.default_backend() == "gpu" and half and query.shape[-1] % 8 == 0 and query.shape[-1] <= 128


def _grouped(query: jax.Array, kv_heads: int) -> jax.Array:
    n, length, heads, head_dim = query.shape
    return query.reshape(n, length, kv_heads, heads // kv_heads, head_dim).transpose(0, 2, 3, 1, 4)


def _ungrouped(output: jax.Array) -> jax.Array:
    n, kv_heads, group, length, head_dim = output.shape
    return output.transpose(0, 3, 1, 2, 4).reshape(n, length, kv_heads * group, head_dim)


def _attend(query: jax.Array, key_t: jax.Array, value: jax.Array, visible: jax.Array) -> jax.Array:
    """query [N, K, g, C, h], key_t [N, K, h, S], value [N, K, S, h], visible bool[N or 1, C, S] -> [N, K, g, C, h]."""
    n, kv_heads, group, length, head_dim = query.shape
    rows = (query * head_dim**-0.5).reshape(n, kv_heads, group * length, head_dim)  # one product per key/value head
    scores = jnp.matmul(rows, key_t, preferred_element_type=jnp.float32).reshape(n, kv_heads, group, length, -1)
    scores = jnp.where(visible[:, None, None], scores, _MASKED)
    weights = jnp.exp(scores - jax.lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True)))
    total = jnp.sum(weights, axis=-1, keepdims=True)
    weights = weights.astype(value.dtype).reshape(n, kv_heads, group * length, -1)
    output = jnp.matmul(weights, value, preferred_element_type=jnp.float32).reshape(query.shape)
    return (output / total).astype(value.dtype)  # divides head_dim numbers of a query, not all its keys

"""Bytes of arrays, and of what a forward or backward pass holds, from shapes alone."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import jax
import jax.numpy as jnp

from rspo_jax import sharding
from rspo_jax.models import attention, logprobs, transformer
from rspo_jax.models.transformer import ModelConfig


@lru_cache
def whole_model(model: ModelConfig, dtype):
    """Shapes of all parameters."""
    return jax.eval_shape(lambda: transformer.init(jax.random.key(0), model, dtype))


@lru_cache
def kept_bytes(model: ModelConfig, length: int, dtype, *, remat: bool | str, fused: bool) -> float:
    """Bytes that the backward pass of `transformer.hidden` keeps of one row, parameters aside.

    Fused attention keeps its inputs, its output and one number per query; the other one keeps all scores.
    """
    params = whole_model(model, dtype)
    tokens = jax.ShapeDtypeStruct((1, length), jnp.int32)
    total = saved_bytes(lambda p, t: transformer.hidden(p, model, t, remat=remat), params, tokens, held=params)
    if remat is True or not fused:
        return total
    q, k = (
        jax.ShapeDtypeStruct((1, length, heads, model.head_dim), dtype)
        for heads in (model.num_attention_heads, model.num_key_value_heads)
    )
    plain = saved_bytes(attention.causal_attention, q, k, k, wrt=3)
    fused_bytes = 2 * tree_bytes(q) + 2 * tree_bytes(k) + 4.0 * length * model.num_attention_heads
    return total - model.num_hidden_layers * (plain - fused_bytes)


def saved_bytes(function: Callable, *args, wrt: int = 1, held=()) -> float:
    """Bytes that differentiating function(*args) by its first `wrt` arguments keeps between the two passes.

    held: a tree of arrays that exist anyway and are not counted.
    """

    def pull(*args):
        return jax.vjp(lambda *first: function(*first, *args[wrt:]), *args[:wrt])[1]

    kept = Counter(map(_kind, jax.tree.leaves(jax.eval_shape(pull, *args))))
    kept -= Counter(map(_kind, jax.tree.leaves(held)))
    return float(sum(count * size for (_, _, size), count in kept.items()))


def tree_bytes(tree) -> float:
    """Bytes of all arrays of a tree of shapes."""
    return float(sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree)))


def sharded_bytes(tree, mesh) -> float:
    """Bytes on one device of a tree of parameters or moments that is placed by the sharding rules."""

    def local(leaf, place):
        shape = place.shard_shape(leaf.shape)
        return tree_bytes(jax.ShapeDtypeStruct(shape, leaf.dtype))

    return float(sum(jax.tree.leaves(jax.tree.map(local, tree, sharding.tree_shardings(tree, mesh)))))


def _kind(leaf):
    return leaf.shape, str(leaf.dtype), leaf.size * leaf.dtype.itemsize


def cast(tree, dtype):
    """The same shapes in another dtype."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, dtype), tree)


def split_heads(model: ModelConfig, mesh) -> ModelConfig:
    """The model as one of the devices sees it that share each layer; a head that several share counts whole."""
    t = mesh.shape["tensor"]
    group = model.num_attention_heads // model.num_key_value_heads
    kv_heads = -(-model.num_key_value_heads // t)
    return replace(
        model,
        num_attention_heads=kv_heads * -(-group // max(1, t // model.num_key_value_heads)),
        num_key_value_heads=kv_heads,
        intermediate_size=model.intermediate_size // t,
    )


def layer_bytes(model, rows, columns, dtype, length) -> float:
    """What one layer of a prefill holds: the wide middle of its MLP, and the scores of a block of queries."""
    wide = rows * columns * (4 * model.hidden_size + 3 * model.intermediate_size) * dtype.itemsize
    block = min(attention.QUERY_BLOCK, columns)
    return float(wide + 2 * 4 * rows * model.num_attention_heads * block * length)


def head_bytes(model, rows, dtype) -> float:
    """A chunk of logits with its backward pass, and the gradient of the head."""
    hidden = jax.ShapeDtypeStruct((rows, model.hidden_size), dtype)
    head = jax.ShapeDtypeStruct((model.hidden_size, model.vocab_size), dtype)
    targets = jax.ShapeDtypeStruct((rows,), jnp.int32)

    def dense(head, hidden, targets):
        return logprobs.logits_logprobs(jnp.matmul(hidden, head, preferred_element_type=jnp.float32), targets)

    return saved_bytes(dense, head, hidden, targets, held=head) + 4.0 * rows * model.vocab_size


def gathered_bytes(model, mesh, dtype) -> float:
    """What fsdp splits is whole where it is used: two layers (one in use, one under way) and the gradient of one, the
    head and its gradient."""
    if mesh.shape["fsdp"] == 1:
        return 0.0
    params = whole_model(model, dtype)
    layer = tree_bytes(params["layers"]) / model.num_hidden_layers
    return (3 * layer + 2 * tree_bytes(params["embed_tokens"])) / mesh.shape["tensor"]

"""LoRA: nothing changes at the start, merged equals attached, the base gets no gradient."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_model import tiny_config, tiny_params

from rspo_jax import models
from rspo_jax.models.lora import TARGETS

CONFIG = tiny_config()
TOKENS = jax.random.randint(jax.random.key(9), (2, 7), 0, 50)
ALPHA = 16.0
hidden = jax.jit(models.hidden, static_argnames="config")


def trained_adapter(params, targets=TARGETS):
    """An adapter whose both halves are random."""
    adapter = models.init_lora(jax.random.key(1), params, rank=4, targets=targets)
    return jax.tree.map(lambda x: x + 0.1 * jax.random.normal(jax.random.key(2), x.shape), adapter)


def test_a_fresh_adapter_equals_the_base_exactly():
    params = tiny_params(CONFIG)
    adapter = models.init_lora(jax.random.key(1), params, rank=4)
    attached = models.attach(params, adapter, alpha=ALPHA)
    np.testing.assert_array_equal(hidden(attached, CONFIG, TOKENS), hidden(params, CONFIG, TOKENS))


@pytest.mark.parametrize("targets", [TARGETS, ("q_proj", "v_proj")])
def test_merged_equals_attached_in_hidden_and_extend(targets):
    params = tiny_params(CONFIG)
    adapter = trained_adapter(params, targets)
    attached, merged = models.attach(params, adapter, alpha=ALPHA), models.merge(params, adapter, alpha=ALPHA)
    want = hidden(merged, CONFIG, TOKENS)
    np.testing.assert_allclose(hidden(attached, CONFIG, TOKENS), want, atol=1e-4)
    cache = models.init_cache(CONFIG, 2, 8)
    got, _ = models.extend(attached, CONFIG, cache, TOKENS, jnp.ones((2, 7), bool), 0)
    np.testing.assert_allclose(got, want, atol=1e-4)
    assert np.abs(want - hidden(params, CONFIG, TOKENS)).max() > 0.1
    assert jax.tree.structure(merged) == jax.tree.structure(params)


def test_merge_adds_alpha_over_rank_times_the_product():
    params = tiny_params(CONFIG)
    adapter = trained_adapter(params, ("up_proj",))
    part = adapter["layers"]["mlp"]["up_proj"]
    want = params["layers"]["mlp"]["up_proj"]["kernel"][1] + 16 / 4 * part["lora_a"][1] @ part["lora_b"][1]
    merged = models.merge(params, adapter, alpha=16.0)
    np.testing.assert_allclose(merged["layers"]["mlp"]["up_proj"]["kernel"][1], want, atol=1e-5)
    np.testing.assert_array_equal(merged["embed_tokens"], params["embed_tokens"])


def test_the_base_gets_no_gradient_and_the_adapter_does():
    params = tiny_params(CONFIG)

    def loss(params, adapter):
        return jnp.sum(hidden(models.attach(params, adapter, alpha=ALPHA), CONFIG, TOKENS) ** 3)

    of_base, of_adapter = jax.grad(loss, (0, 1))(params, trained_adapter(params))
    assert all((g == 0).all() for g in jax.tree.leaves(of_base))
    assert all(np.isfinite(g).all() and np.abs(g).max() > 0 for g in jax.tree.leaves(of_adapter))


def test_two_adapters_share_one_base_and_it_stays_as_it_was():
    params = tiny_params(CONFIG)
    before = jax.tree.map(np.array, params)
    adapters = [trained_adapter(params), models.init_lora(jax.random.key(3), params, rank=2)]
    for adapter in adapters:
        attached = models.attach(params, adapter, alpha=ALPHA)
        assert attached["layers"]["mlp"]["up_proj"]["kernel"] is params["layers"]["mlp"]["up_proj"]["kernel"]
    jax.tree.map(functools.partial(np.testing.assert_array_equal), params, before)


def test_bad_targets_and_ranks_are_named():
    params = tiny_params(CONFIG)
    with pytest.raises(ValueError, match=r"LoRA targets \['lm_head'\]: choose from q_proj"):
        models.init_lora(jax.random.key(0), params, rank=4, targets=("q_proj", "lm_head"))
    with pytest.raises(ValueError, match="LoRA rank = 0 must be at least 1"):
        models.init_lora(jax.random.key(0), params, rank=0)

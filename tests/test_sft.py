"""Imitation with a given model."""

import jax

from rspo_jax import configuration, sft


def test_imitation_in_bfloat16_trains_float32_parameters(tmp_path):
    changes = {"sft.from_scratch": False, "model.dtype": "bfloat16", "sft.steps": 1, "sft.rows": 8}
    config = configuration.load_config("configs/webshop_gigpo.py:smoke", changes)
    policy, params = sft.imitate(config, tmp_path)
    assert all(leaf.dtype == "float32" for leaf in jax.tree.leaves(params))
    assert policy.merged(params)["embed_tokens"].dtype == "bfloat16"

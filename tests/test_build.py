"""What a user's settings and model directory may not be, each in one sentence before anything is computed."""

import json
import shutil

import pytest
import safetensors.numpy
import tiny

from rspo_jax import build, validation
from rspo_jax.models.tokenizer import load_tokenizer


@pytest.fixture
def directory(tmp_path):
    """A copy of a model directory, to be spoiled."""
    return shutil.copytree(tiny.agent_directory(), tmp_path / "model")


def load(directory, **changes):
    tree = tiny.config(model__path=str(directory), **changes)
    return build.make_policy(tree, build.make_mesh(tree))


def edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_tokenizer_with_more_ids_than_embeddings_is_refused(directory):
    """Such an id would be read as NaN; constrained or not."""
    weights = safetensors.numpy.load_file(directory / "model.safetensors")
    weights["model.embed_tokens.weight"] = weights["model.embed_tokens.weight"][:200]
    safetensors.numpy.save_file(weights, directory / "model.safetensors")
    edit(directory / "config.json", vocab_size=200)
    for constrain in (True, False):
        with pytest.raises(ValueError, match="tokenizer has ids up to 2.., and the vocab_size of config.json is 200"):
            load(directory, decoding__constrain=constrain)


def test_a_padding_token_without_an_embedding_and_spare_embeddings_are_fine(directory):
    tokenizer = load_tokenizer(directory)
    tokenizer.add_special_tokens({"pad_token": "<|late|>"})
    tokenizer.save_pretrained(directory)
    policy, _ = load(directory, decoding__constrain=False)
    assert policy.config.vocab_size == policy.tokenizer.pad_token_id


def test_a_malformed_config_is_named_before_the_tokenizer_is_read(directory):
    edit(directory / "config.json", num_hidden_layers="two")
    with pytest.raises(ValueError, match="num_hidden_layers = 'two' must be a positive whole number"):
        load(directory)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"context__max_prompt": 0}, "context.max_prompt = 0: give at least 16"),
        ({"model__lora__rank": 4, "model__lora__targets": ("q_proj", "k_prj")}, "did you mean k_proj?"),
        ({"model__lora__rank": 4, "model__lora__targets": ()}, r"model.lora.targets = \(\): name at least one of"),
        ({"model__lora__rank": 4, "model__lora__alpha": 0.0}, "model.lora.alpha = 0.0: must be above 0"),
    ],
)
def test_impossible_settings_are_refused_without_the_model(changes, message):
    with pytest.raises(ValueError, match=message):
        validation.validate(tiny.config(**changes))

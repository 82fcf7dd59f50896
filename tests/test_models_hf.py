"""Hugging Face directories: the logits of transformers, bit-exact round trips, one clear sentence for bad input."""

import json

import hf_parity
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from tiny_model import tiny_config, tiny_params

from rspo_jax import models
from rspo_jax.models import hf

logits = jax.jit(models.logits, static_argnames="config")
extend = jax.jit(models.extend, static_argnames="config")


def recorded(name, directory, changes=None, dtype="float32"):
    """Writes the model of a recording; returns its logits as transformers computed them."""
    with np.load(hf_parity.RECORDINGS / f"{name}.npz") as recording:
        model = json.loads(str(recording["model"]))
        hf_parity.write_directory(directory, model["config"] | (changes or {}), model["shapes"], dtype)
        return recording["logits"]


def cached_logits(params, config, tokens, mask):
    """The same logits by a prefill of 7 tokens and single steps."""
    cache = models.init_cache(config, len(tokens), 16, params["embed_tokens"].dtype)
    parts = []
    for start, end in [(0, 7), *((i, i + 1) for i in range(7, tokens.shape[1]))]:
        piece = slice(start, end)
        states, cache = extend(params, config, cache, tokens[:, piece], mask[:, piece], jnp.int32(start))
        parts.append(states @ models.head(params, config))
    return np.asarray(jnp.concatenate(parts, axis=1), np.float32)


def assert_close(got, want, mask, tolerance):
    np.testing.assert_allclose(np.asarray(got)[mask], want[mask], atol=tolerance, rtol=0)


def assert_same_bits(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert x.dtype == y.dtype and np.asarray(x).tobytes() == np.asarray(y).tobytes()


# Parity


@pytest.mark.parametrize("name", hf_parity.CASES)
def test_logits_equal_the_recorded_ones_whole_and_cached(name, tmp_path):
    want, tokens, mask = recorded(name, tmp_path), hf_parity.TOKENS, hf_parity.MASK
    config, params = models.load_hf(tmp_path)
    assert_close(logits(params, config, tokens, mask), want, mask, 1e-4)
    assert_close(cached_logits(params, config, tokens, mask), want, mask, 1e-4)


@pytest.mark.parametrize("name", ["qwen2_linear", "qwen3", "llama2", "llama3"])
def test_the_older_config_dialect_means_the_same(name, tmp_path):
    """rope_theta at top level, rope_scaling with `type`, no head_dim unless it is unusual, torch_dtype."""
    with np.load(hf_parity.RECORDINGS / f"{name}.npz") as recording:
        fields = json.loads(str(recording["model"]))["config"]
    new = models.hf_config.parse_config(fields)
    rope = fields.pop("rope_parameters")
    fields["rope_theta"] = rope.pop("rope_theta")
    fields["rope_scaling"] = None if rope["rope_type"] == "default" else rope | {"type": rope.pop("rope_type")}
    if name != "qwen3":
        fields.pop("head_dim", None)
    fields["torch_dtype"] = fields.pop("dtype")
    old = models.hf_config.parse_config(fields)
    assert old == new and hash(old) == hash(new)


@pytest.mark.parametrize("name", hf_parity.CASES)
def test_transformers_agrees_in_bfloat16_and_on_what_we_export(name, tmp_path):
    """The exported f32 model has identical logits; our bf16 logits are as near to f32 as those of transformers."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    tokens, mask = np.random.RandomState(1).randint(0, 50, (2, 30)), np.ones((2, 30), bool)
    mask[1, :11] = False
    reference = hf_parity.reference_model(name)
    reference.save_pretrained(tmp_path / "original")
    want = hf_parity.reference_logits(reference, tokens, mask)
    config, params = models.load_hf(tmp_path / "original")
    assert_close(logits(params, config, tokens, mask), want, mask, 1e-4)
    models.save_hf(tmp_path / "ours", config, params)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours", dtype=torch.float32).eval()
    np.testing.assert_array_equal(hf_parity.reference_logits(again, tokens, mask), want)
    half = hf_parity.reference_logits(reference.to(torch.bfloat16), tokens, mask)
    config, params = models.load_hf(tmp_path / "original", dtype="bfloat16")
    error = np.abs(np.asarray(logits(params, config, tokens, mask)) - want)[mask]
    error_of_transformers = np.abs(half - want)[mask]
    assert error.mean() < 1.5 * error_of_transformers.mean() < 0.03 * np.abs(want).max()


def test_a_model_born_here_has_identical_logits_in_transformers(tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    changes = {"qkv_bias": False, "qk_norm": True, "tie_word_embeddings": False, "head_dim": 16}
    config = tiny_config(model_type="qwen3", rope=models.RopeConfig(5e5, "linear", 2.0), **changes)
    params, tokens, mask = tiny_params(config), hf_parity.TOKENS, np.ones((2, 12), bool)
    models.save_hf(tmp_path, config, params)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    assert_close(logits(params, config, tokens, mask), hf_parity.reference_logits(model, tokens, mask), mask, 1e-4)


# Round trips


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["qwen2_tied", "qwen3"])
def test_round_trip_keeps_every_bit_and_every_config_key(name, dtype, tmp_path):
    recorded(name, tmp_path / "a", {"a_key_of_the_future": [1, 2]}, dtype)
    config, params = models.load_hf(tmp_path / "a")
    assert params["embed_tokens"].dtype == dtype
    models.save_hf(tmp_path / "b", config, params)
    first, second = (safetensors.numpy.load_file(tmp_path / d / "model.safetensors") for d in "ab")
    assert first.keys() == second.keys()
    assert all(first[k].dtype == second[k].dtype and first[k].tobytes() == second[k].tobytes() for k in first)
    fields = [json.loads((tmp_path / d / "config.json").read_text()) for d in "ab"]
    assert fields[1] == fields[0] | {"dtype": dtype}
    again, params_again = models.load_hf(tmp_path / "b")
    assert again == config
    assert_same_bits(params_again, params)


def test_generation_ends_at_the_models_own_tokens_and_at_the_end_of_a_turn(tmp_path):
    """An instruction-tuned model may name other ends in generation_config.json than in config.json."""
    recorded("gemma", tmp_path / "a", {"eos_token_id": 1})
    written = {}

    def saved(name, **options):
        models.save_hf(tmp_path / name, *models.load_hf(tmp_path / "a"), **options)
        path = tmp_path / name / "generation_config.json"
        written[name] = json.loads(path.read_text()) if path.is_file() else None
        return written[name]

    assert saved("none") is None
    assert saved("born", end_token=7) == {"eos_token_id": [7, 1]}
    (tmp_path / "a" / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 7], "top_p": 0.8}))
    assert saved("kept", end_token=7) == saved("as it was") == {"eos_token_id": [1, 7], "top_p": 0.8}
    (tmp_path / "a" / "generation_config.json").write_text(json.dumps({"eos_token_id": 1, "pad_token_id": 0}))
    assert saved("more", end_token=7) == {"eos_token_id": [7, 1], "pad_token_id": 0}
    transformers = pytest.importorskip("transformers")
    assert transformers.GenerationConfig.from_pretrained(tmp_path / "more").eos_token_id == [7, 1]
    (tmp_path / "a" / "generation_config.json").write_text("{")
    with pytest.raises(ValueError, match="generation_config.json is not valid JSON"):
        models.load_hf(tmp_path / "a")


def test_shards_hold_what_one_file_holds(tmp_path, monkeypatch):
    config = tiny_config()
    params = tiny_params(config, dtype="bfloat16")
    monkeypatch.setattr(hf, "_SHARD_BYTES", 6000)
    models.save_hf(tmp_path, config, params)
    assert len(list(tmp_path.glob("model-*-of-*.safetensors"))) > 3
    again, params_again = models.load_hf(tmp_path)
    assert again == config
    assert_same_bits(params_again, params)


def test_saving_again_replaces_the_old_weights_and_leaves_other_files(tmp_path, monkeypatch):
    config = tiny_config()
    (tmp_path / "notes.txt").write_text("mine")
    with monkeypatch.context() as patch:
        patch.setattr(hf, "_SHARD_BYTES", 6000)
        models.save_hf(tmp_path, config, tiny_params(config))
    params = tiny_params(config, seed=5)
    models.save_hf(tmp_path, config, params)
    assert {p.name for p in tmp_path.iterdir()} == {"config.json", "model.safetensors", "notes.txt"}
    assert_same_bits(models.load_hf(tmp_path)[1], params)


def test_a_save_that_fails_leaves_the_old_model_whole(tmp_path):
    class BrokenTokenizer:
        def save_pretrained(self, directory):
            raise OSError("disk full")

    config, params = tiny_config(), tiny_params(tiny_config())
    models.save_hf(tmp_path, config, params)
    with pytest.raises(OSError, match="disk full"):
        models.save_hf(tmp_path, config, tiny_params(config, seed=5), tokenizer=BrokenTokenizer())
    assert {p.name for p in tmp_path.iterdir()} == {"config.json", "model.safetensors"}
    assert_same_bits(models.load_hf(tmp_path)[1], params)


def test_dtype_option_converts_while_reading(tmp_path):
    config, params = tiny_config(), tiny_params(tiny_config())
    models.save_hf(tmp_path, config, params)
    half = models.load_hf(tmp_path, dtype=jnp.bfloat16)[1]
    assert_same_bits(half, jax.tree.map(lambda p: p.astype(jnp.bfloat16), params))


def test_an_untied_copy_of_a_tied_head_and_old_buffers_are_ignored(tmp_path):
    want = recorded("qwen2_tied", tmp_path)
    add_tensor(tmp_path, "lm_head.weight", np.zeros((50, 32), np.float32))
    add_tensor(tmp_path, "model.layers.0.self_attn.rotary_emb.inv_freq", np.zeros(4, np.float32))
    config, params = models.load_hf(tmp_path)
    assert_close(logits(params, config, hf_parity.TOKENS, hf_parity.MASK), want, hf_parity.MASK, 1e-4)


# Bad input


def add_tensor(directory, name, array):
    path = directory / "model.safetensors"
    tensors = safetensors.numpy.load_file(path)
    if array is None:
        del tensors[name]
    safetensors.numpy.save_file(tensors | ({} if array is None else {name: array}), path)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="Model directory .*nowhere does not exist"):
        models.load_hf(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="has no config.json"):
        models.load_hf(tmp_path)
    recorded("llama2", tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="has no weights .* safetensors format"):
        models.load_hf(tmp_path)


def test_a_missing_shard_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(hf, "_SHARD_BYTES", 6000)
    models.save_hf(tmp_path, tiny_config(), tiny_params(tiny_config()))
    shard = sorted(tmp_path.glob("model-00002*"))[0]
    shard.unlink()
    with pytest.raises(FileNotFoundError, match=f"lacks the shard {shard.name}"):
        models.load_hf(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ValueError, match="no readable weight_map"):
        models.load_hf(tmp_path)


def test_wrong_tensors_are_named(tmp_path):
    recorded("llama2", tmp_path)
    norm = "model.norm.weight"
    add_tensor(tmp_path, norm, None)
    with pytest.raises(ValueError, match=f"lacks tensor {norm} .1 missing in all"):
        models.load_hf(tmp_path)
    add_tensor(tmp_path, norm, np.ones(31, np.float32))
    with pytest.raises(ValueError, match=rf"{norm} has shape \(31,\), config.json says \(32,\)"):
        models.load_hf(tmp_path)
    add_tensor(tmp_path, norm, np.ones(32, np.int32))
    with pytest.raises(ValueError, match=f"{norm} is stored as I32"):
        models.load_hf(tmp_path)
    add_tensor(tmp_path, norm, np.ones(32, ml_dtypes.bfloat16))
    add_tensor(tmp_path, "model.layers.0.self_attn.q_proj.bias", np.ones(32, np.float32))
    with pytest.raises(ValueError, match="holds tensor model.layers.0.self_attn.q_proj.bias, for which"):
        models.load_hf(tmp_path)


def test_unreadable_files_are_named(tmp_path):
    recorded("llama2", tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1")
    with pytest.raises(ValueError, match="model.safetensors is not a readable safetensors file"):
        models.load_hf(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="is not valid JSON"):
        models.load_hf(tmp_path)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"model_type": "mamba"}, "model_type 'mamba' is not implemented; known types: qwen2"),
        ({"architectures": ["Qwen2ForSequenceClassification"]}, "'Qwen2ForSequenceClassification' is not implemented"),
        ({"hidden_size": None}, "lacks hidden_size"),
        ({"num_hidden_layers": "2"}, "num_hidden_layers = '2' must be a positive whole number"),
        ({"num_key_value_heads": 3}, "num_key_value_heads = 3"),
        ({"attention_bias": True}, "attention_bias = True is not implemented"),
        ({"mlp_bias": True}, "mlp_bias = True is not implemented"),
        ({"quantization_config": {"bits": 4}}, "quantization_config = .* is not implemented"),
        ({"hidden_act": "relu"}, "hidden_act = 'relu' is not implemented"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_type 'yarn' is not implemented"),
        ({"rope_scaling": {"type": "linear"}}, "RoPE scaling 'linear' lacks factor"),
        ({"rope_scaling": {"type": "linear", "factor": "8"}}, "factor = '8' must be a number"),
        ({"rope_scaling": "yarn"}, "rope_parameters = 'yarn' is not implemented"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}, "one rotation for all layers"),
        ({"rope_parameters": {"rope_theta": "1e6"}}, "rope_theta = '1e6' must be a number"),
        ({"head_dim": 0}, "head_dim = 0 must be a positive whole number"),
        ({"num_key_value_heads": 0}, "num_key_value_heads = 0 must be a positive whole number"),
        ({"max_position_embeddings": "4k"}, "max_position_embeddings = '4k' must be a positive whole number"),
        ({"rms_norm_eps": "tiny"}, "rms_norm_eps = 'tiny' must be a number"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5 is not implemented"),
        ({"layer_types": ["linear_attention"] * 2}, "layer type 'linear_attention' is not implemented"),
        ({"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0, "layer_types": None}, "windowed"),
    ],
)
def test_config_fields_that_change_the_model_are_refused(changes, message, tmp_path):
    recorded("qwen2_tied", tmp_path, changes)
    with pytest.raises(ValueError, match=message) as error:
        models.load_hf(tmp_path)
    assert "config.json" in str(error.value) and "\n" not in str(error.value)


def test_a_sliding_window_is_fine_where_rows_fit_into_it(tmp_path):
    want = recorded("mistral", tmp_path, {"sliding_window": 12})
    with pytest.raises(ValueError, match="sliding_window = 12 is shorter than the context of 131072 tokens"):
        models.load_hf(tmp_path)
    config, params = models.load_hf(tmp_path, max_length=12)
    assert_close(logits(params, config, hf_parity.TOKENS, hf_parity.MASK), want, hf_parity.MASK, 1e-4)
    models.save_hf(tmp_path / "again", config, params)
    assert json.loads((tmp_path / "again" / "config.json").read_text())["sliding_window"] == 12

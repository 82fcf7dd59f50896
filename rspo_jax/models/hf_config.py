"""ModelConfig from and to the config.json of a Hugging Face model directory.

transformers 5 writes the rotation as `rope_parameters`, older files `rope_theta` and `rope_scaling`: both are read.
A field that would change the model's function and is not implemented is an error, never ignored.
"""

import dataclasses
import json
import pathlib

from rspo_jax.models.rope import RopeConfig
from rspo_jax.models.transformer import ModelConfig

# What transformers assumes where config.json is silent, and how each family is built. `architecture` is its class name.
_QWEN = {"num_key_value_heads": 32, "max_position_embeddings": 32768}
FAMILIES = {
    "qwen2": {"architecture": "Qwen2ForCausalLM", "defaults": _QWEN, "flags": {"qkv_bias": True}},
    "qwen3": {"architecture": "Qwen3ForCausalLM", "defaults": _QWEN | {"head_dim": 128}, "flags": {"qk_norm": True}},
    "llama": {"architecture": "LlamaForCausalLM", "defaults": {"max_position_embeddings": 2048}, "flags": {}},
    "mistral": {
        "architecture": "MistralForCausalLM",
        "defaults": {"num_key_value_heads": 8, "max_position_embeddings": 131072, "sliding_window": 4096},
        "flags": {},
    },
    "gemma": {
        "architecture": "GemmaForCausalLM",
        "defaults": {
            "num_key_value_heads": 16,
            "head_dim": 256,
            "max_position_embeddings": 8192,
            "hidden_act": "gelu_pytorch_tanh",
            "tie_word_embeddings": True,
        },
        "flags": {"norm_offset": 1.0, "embed_scale": True},
    },
}
_SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
_OPTIONAL_SIZES = ("num_key_value_heads", "head_dim", "max_position_embeddings", "sliding_window")
_ROPE_KEYS = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
_NOT_IMPLEMENTED = {  # key: the values under which it changes nothing
    "attention_bias": (False, None),
    "mlp_bias": (False, None),
    "quantization_config": (None,),
    "use_bidirectional_attention": (False, None),
    "partial_rotary_factor": (1.0, None),
}


def read_config(directory: str | pathlib.Path, *, max_length: int | None = None) -> ModelConfig:
    """The ModelConfig of `directory`/config.json.

    max_length: longest row the model will see, for models with a sliding window (default: its own longest context).
    Raises FileNotFoundError where the directory or the file is missing, ValueError for content that we cannot honour.
    """
    directory = pathlib.Path(directory)
    if not directory.is_dir():
        raise FileNotFoundError(f"Model directory {directory} does not exist; give the path of a Hugging Face model.")
    path = directory / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"{directory} has no config.json; it must be a model saved in Hugging Face format.")
    config = parse_config(_read_json(path), max_length=max_length, where=str(path))
    generation = directory / "generation_config.json"
    return dataclasses.replace(config, generation=json.dumps(_read_json(generation)) if generation.is_file() else "")


def _read_json(path):
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON ({error}); save the model again.") from None


def parse_config(fields: dict, *, max_length: int | None = None, where: str = "config.json") -> ModelConfig:
    """`read_config` of the parsed JSON object; `where` names it in error messages."""
    if not isinstance(fields, dict):
        raise ValueError(f"{where} must hold a JSON object, not a {type(fields).__name__}.")
    family = _family(fields, where)
    read = family["defaults"] | {key: value for key, value in fields.items() if value is not None}
    missing = [key for key in _SIZES if key not in read]
    if missing:
        raise ValueError(f"{where} lacks {', '.join(missing)}; every size of the model must be given.")
    not_whole = [k for k in (*_SIZES, *_OPTIONAL_SIZES) if k in read and (type(read[k]) is not int or read[k] < 1)]
    if not_whole:
        raise ValueError(f"{where}: {not_whole[0]} = {read[not_whole[0]]!r} must be a positive whole number.")
    _check_numbers(read, ("rms_norm_eps",), where)
    for key, harmless in _NOT_IMPLEMENTED.items():
        if fields.get(key) not in harmless:
            raise ValueError(f"{where}: {key} = {fields[key]!r} is not implemented; use a model without it.")
    _check_window(fields, read, max_length, where)
    try:
        return ModelConfig(
            **{key: read[key] for key in _SIZES},
            model_type=fields["model_type"],
            num_key_value_heads=read.get("num_key_value_heads", read["num_attention_heads"]),
            head_dim=read.get("head_dim", read["hidden_size"] // read["num_attention_heads"]),
            hidden_act=_activation(fields, read),
            rms_norm_eps=read.get("rms_norm_eps", 1e-6),
            rope=_read_rope(fields, read, where),
            max_position_embeddings=read["max_position_embeddings"],
            tie_word_embeddings=read.get("tie_word_embeddings", False),
            source=json.dumps(fields),
            **{"qkv_bias": False} | family["flags"],
        )
    except ValueError as error:
        raise ValueError(f"{where}: {error}" if where not in str(error) else str(error)) from None


def config_fields(config: ModelConfig, dtype: str) -> dict:
    """The config.json object of `config` with parameters of `dtype` ("float32", "bfloat16"); unknown keys are kept."""
    fields = json.loads(config.source) if config.source else {}
    # A file that still describes this model is written back in its own dialect, old or new.
    if not fields or parse_config(fields, max_length=1) != dataclasses.replace(config, mesh=None):
        for key in ("rope_scaling", "rope_theta", "layer_types"):
            fields.pop(key, None)
        fields |= _own_fields(config)
    fields["torch_dtype" if "torch_dtype" in fields and "dtype" not in fields else "dtype"] = dtype
    return fields


def generation_fields(config: ModelConfig, end_token: int | None) -> dict:
    """The generation_config.json object of `config`: what it came with, and an answer ends at `end_token` as well.

    Without one transformers and vLLM stop where config.json says, which need not be where a chat template ends a turn.
    """
    fields = json.loads(config.generation) if config.generation else {}
    if end_token is not None:
        known = fields.get("eos_token_id", json.loads(config.source or "{}").get("eos_token_id"))
        known = known if isinstance(known, list) else [known] * (known is not None)
        fields["eos_token_id"] = known if end_token in known else [end_token, *known]
    return fields


def _own_fields(config):
    kept = (*_SIZES, "num_key_value_heads", "head_dim", "hidden_act", "rms_norm_eps", "max_position_embeddings")
    rope = {"rope_type": config.rope.rope_type, "rope_theta": config.rope.rope_theta}
    used = {"default": (), "linear": _ROPE_KEYS[:1], "llama3": _ROPE_KEYS}[config.rope.rope_type]
    return {key: getattr(config, key) for key in kept} | {
        "architectures": [FAMILIES[config.model_type]["architecture"]],
        "model_type": config.model_type,
        "tie_word_embeddings": config.tie_word_embeddings,
        "rope_parameters": rope | {key: getattr(config.rope, key) for key in used},
        "sliding_window": None,
    }


def _family(fields, where):
    model_type = fields.get("model_type")
    if model_type not in FAMILIES:
        raise ValueError(f"{where}: model_type {model_type!r} is not implemented; known types: {', '.join(FAMILIES)}.")
    family = FAMILIES[model_type]
    architecture = (fields.get("architectures") or [family["architecture"]])[0]
    if architecture != family["architecture"]:
        raise ValueError(
            f"{where}: architecture {architecture!r} is not implemented; "
            f"a {model_type} model must be a {family['architecture']}."
        )
    return family


def _activation(fields, read):
    name = fields.get("hidden_activation") or read.get("hidden_act", "silu")
    # Gemma's first files say "gelu" for what was trained with the tanh approximation; transformers reads them so too.
    return "gelu_pytorch_tanh" if fields["model_type"] == "gemma" and name == "gelu" else name


def _check_numbers(fields, keys, where):
    wrong = [key for key in keys if key in fields and type(fields[key]) not in (int, float)]
    if wrong:
        raise ValueError(f"{where}: {wrong[0]} = {fields[wrong[0]]!r} must be a number.")


def _read_rope(fields, read, where):
    rope = fields.get("rope_scaling") or fields.get("rope_parameters") or {}
    if not isinstance(rope, dict) or any(isinstance(value, dict) for value in rope.values()):
        raise ValueError(
            f"{where}: rope_parameters = {rope!r} is not implemented; use a model with one rotation for all layers."
        )
    rope = {"rope_theta": read.get("rope_theta", 10000.0)} | rope
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    if rope_type not in ("default", "linear", "llama3"):
        raise ValueError(
            f"{where}: rope_type {rope_type!r} is not implemented; use a model with 'default', 'linear' or 'llama3'."
        )
    if rope.get("partial_rotary_factor", 1.0) not in (1.0, None):
        raise ValueError(f"{where}: partial_rotary_factor is not implemented; use a model that rotates whole heads.")
    _check_numbers(rope, ("rope_theta",), where)
    theta = float(rope["rope_theta"])
    if rope_type == "default":
        return RopeConfig(rope_theta=theta)
    if rope_type == "llama3":
        rope.setdefault("original_max_position_embeddings", read["max_position_embeddings"])
    wanted = _ROPE_KEYS[:1] if rope_type == "linear" else _ROPE_KEYS
    missing = [key for key in wanted if key not in rope]
    if missing:
        raise ValueError(f"{where}: RoPE scaling {rope_type!r} lacks {', '.join(missing)}; complete rope_parameters.")
    _check_numbers(rope, wanted, where)
    return RopeConfig(rope_theta=theta, rope_type=rope_type, **{key: rope[key] for key in wanted})


def _check_window(fields, read, max_length, where):
    """A sliding window changes nothing for rows that fit into it; longer rows would need a masked attention."""
    window = read.get("sliding_window") if fields.get("sliding_window", 0) is not None else None
    if fields["model_type"].startswith("qwen"):
        by_count = read.get("max_window_layers", 28) < read["num_hidden_layers"]
        slides = "sliding_attention" in fields["layer_types"] if fields.get("layer_types") else by_count
        window = window if read.get("use_sliding_window", False) and slides else None
    unknown = set(fields.get("layer_types") or ()) - {"full_attention", "sliding_attention"}
    if unknown:
        raise ValueError(f"{where}: layer type {sorted(unknown)[0]!r} is not implemented; use full attention.")
    context = max_length or read["max_position_embeddings"]
    if window is not None and window < context:
        raise ValueError(
            f"{where}: sliding_window = {window} is shorter than the context of {context} tokens, and windowed "
            f"attention is not implemented; limit rows to max_length <= {window} tokens."
        )

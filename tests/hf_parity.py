"""Small models of every architecture, and their logits as transformers computes them.

    python tests/hf_parity.py        records tests/data/hf_parity/*.npz anew (needs torch)

Weights are a fixed function of the tensor's name, so a recording holds a config.json and logits only.
"""

import json
import pathlib
import zlib

import ml_dtypes
import numpy as np
import safetensors.numpy

RECORDINGS = pathlib.Path(__file__).parent / "data" / "hf_parity"
TOKENS = np.random.RandomState(0).randint(0, 50, (2, 12))
MASK = np.ones((2, 12), bool)
MASK[0, :4] = False  # the first row is padded on the left

_SIZES = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": None,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 100.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
CASES = {  # name: (model_type, changes)
    "qwen2_tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2_linear": ("qwen2", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}}),
    "qwen3": ("qwen3", {"head_dim": 16, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    "llama2": ("llama", {"rms_norm_eps": 1e-5}),
    "llama3": ("llama", {"rope_parameters": _LLAMA3, "tie_word_embeddings": True}),
    "mistral": ("mistral", {"sliding_window": None}),
    "gemma": ("gemma", {"head_dim": 16}),
}


def fixed_weight(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """f32 values of one tensor: pseudo-random from its name, of a size that makes every term matter."""
    noise = np.random.RandomState(zlib.crc32(name.encode())).uniform(-1, 1, shape).astype(np.float32)
    if "norm" in name:
        return 1.0 + 0.3 * noise
    return 0.3 * noise


def write_directory(directory: pathlib.Path, fields: dict, shapes: dict, dtype="float32") -> None:
    """A Hugging Face directory of config `fields` and fixed weights."""
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float32
    tensors = {name: fixed_weight(name, tuple(shape)).astype(kind) for name, shape in shapes.items()}
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(fields))
    safetensors.numpy.save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def reference_model(name: str):
    """The transformers model of a case, f32, with fixed weights."""
    import torch
    import transformers

    model_type, changes = CASES[name]
    config = transformers.AutoConfig.for_model(model_type, **_SIZES | changes)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for tensor_name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(fixed_weight(tensor_name, tuple(parameter.shape))))
    return model


def reference_logits(model, tokens: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """f32[N, L, V] of a transformers model; positions count real tokens."""
    import torch

    positions = np.maximum(mask.cumsum(axis=1) - 1, 0)
    arguments = {"attention_mask": torch.tensor(mask).long(), "position_ids": torch.tensor(positions)}
    with torch.no_grad():
        return model(torch.tensor(tokens), **arguments).logits.float().numpy()


def record(name: str) -> None:
    model = reference_model(name)
    fields = model.config.to_dict() | {"architectures": [type(model).__name__]}
    shapes = {key: list(value.shape) for key, value in model.named_parameters()}
    text = json.dumps({"config": fields, "shapes": shapes}, default=str)
    np.savez_compressed(RECORDINGS / f"{name}.npz", logits=reference_logits(model, TOKENS, MASK), model=np.array(text))


if __name__ == "__main__":
    RECORDINGS.mkdir(parents=True, exist_ok=True)
    for case in CASES:
        record(case)

"""Hugging Face model directories: config.json and safetensors to (config, params), and back without a lost bit.

Reading is lazy: each stacked parameter is assembled from its layers' tensors, slice by slice where a mesh is given, so
that neither the host nor the devices ever hold the model twice.
"""

import dataclasses
import functools
import json
import os
import pathlib
import shutil
import tempfile

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from rspo_jax import sharding
from rspo_jax.models.hf_config import config_fields, generation_fields, read_config
from rspo_jax.models.tokenizer import make_portable
from rspo_jax.models.transformer import ModelConfig, Params, init

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_SHARD_BYTES = 5 * 10**9


def load_hf(
    directory: str | pathlib.Path,
    *,
    dtype: jnp.dtype | str | None = None,
    mesh: jax.sharding.Mesh | None = None,
    max_length: int | None = None,
) -> tuple[ModelConfig, Params]:
    """Config and parameters of a Qwen2, Qwen3, Llama, Mistral or Gemma model.

    dtype: None keeps each parameter as stored. mesh: parameters are placed by `sharding.RULES`, each device reading
    only its part, and the config names the mesh. max_length: longest row to be used, for models with a sliding window.
    Raises FileNotFoundError or ValueError, in one sentence, for anything missing, malformed or not implemented.
    """
    directory = pathlib.Path(directory)
    config = read_config(directory, max_length=max_length)
    tensors = _Tensors(directory)
    shapes = flax.traverse_util.flatten_dict(jax.eval_shape(lambda: init(jax.random.key(0), config)), sep="/")
    tensors.check({name for path in shapes for name in _hf_names(path, config)}, config)
    if mesh is None:
        places = dict.fromkeys(shapes, jax.sharding.SingleDeviceSharding(jax.devices()[0]))
    else:
        places = {path: sharding.named_sharding(path, leaf.shape, mesh) for path, leaf in shapes.items()}
    flat = {path: _load(tensors, path, leaf.shape, config, dtype, places[path]) for path, leaf in shapes.items()}
    if mesh is not None and mesh.size > 1:
        config = dataclasses.replace(config, mesh=mesh)
    return config, flax.traverse_util.unflatten_dict(flat, sep="/")


def save_hf(
    directory: str | pathlib.Path, config: ModelConfig, params: Params, tokenizer=None, *, end_token: int | None = None
) -> None:
    """Writes config.json, safetensors (shards of 5 GB) and the tokenizer, so that transformers loads the same model.

    end_token: id that ends an answer, for generation_config.json (by default what the model came with, if anything).
    Files are complete before they get their names, config.json last: a directory that has one is whole. On several
    hosts every process must call this; the first one writes.
    """
    directory = pathlib.Path(directory)
    writes = jax.process_index() == 0
    if writes:
        directory.mkdir(parents=True, exist_ok=True)
    flat = flax.traverse_util.flatten_dict(params, sep="/")
    temporary = pathlib.Path(tempfile.mkdtemp(prefix=".saving-", dir=directory)) if writes else None
    try:
        _write_tensors(temporary, _named_arrays(flat, config))
        if writes:
            if tokenizer is not None:
                tokenizer.save_pretrained(temporary)
                make_portable(temporary)
            _write_json(temporary / "config.json", config_fields(config, flat["embed_tokens"].dtype.name))
            generation = generation_fields(config, end_token)
            if generation:
                _write_json(temporary / "generation_config.json", generation)
            _install(temporary, directory)
    finally:
        if writes:
            shutil.rmtree(temporary, ignore_errors=True)


def _hf_names(path, config):
    """Tensor names of one parameter: one per layer if it is stacked."""
    if path == "embed_tokens":
        return ["model.embed_tokens.weight"]
    stem, leaf = path.rsplit("/", 1)
    stem += ".bias" if leaf == "bias" else ".weight"
    if path.startswith("layers/"):
        stem = stem.removeprefix("layers/").replace("/", ".")
        return [f"model.layers.{i}.{stem}" for i in range(config.num_hidden_layers)]
    return [stem if stem.startswith("lm_head") else f"model.{stem}"]


class _Tensors:
    """The tensors of a directory by name, in one file or in shards; opened when first read."""

    def __init__(self, directory):
        self.directory = directory
        self._open = functools.cache(self._open_file)
        index = directory / _INDEX
        if (directory / _SINGLE).is_file():
            self.file_of = dict.fromkeys(self._open(_SINGLE).keys(), _SINGLE)
        elif index.is_file():
            try:
                self.file_of = json.loads(index.read_text())["weight_map"]
            except (ValueError, KeyError, TypeError):
                raise ValueError(f"{index} has no readable weight_map; save or download the model again.") from None
            for name in sorted(set(self.file_of.values())):
                if not (directory / name).is_file():
                    raise FileNotFoundError(f"{directory} lacks the shard {name} that {_INDEX} lists; download it.")
        else:
            raise FileNotFoundError(
                f"{directory} has no weights ({_SINGLE} or {_INDEX}); save the model in safetensors format."
            )

    def _open_file(self, name):
        try:
            return safetensors.safe_open(self.directory / name, "np")
        except Exception as error:  # the library's own exception class is not public in every version
            raise ValueError(f"{self.directory / name} is not a readable safetensors file ({error}).") from None

    def check(self, wanted, config):
        missing = sorted(wanted - self.file_of.keys())
        if missing:
            raise ValueError(f"{self.directory} lacks tensor {missing[0]} ({len(missing)} missing in all).")
        tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
        extra = [n for n in self.file_of.keys() - wanted - tied if not n.endswith("rotary_emb.inv_freq")]
        if extra:
            raise ValueError(
                f"{self.directory} holds tensor {min(extra)}, for which the {config.model_type} model of config.json "
                f"has no place ({len(extra)} in all); check the config or remove it."
            )

    def slice(self, name):
        """A lazy slice object with get_shape, get_dtype and []."""
        try:
            return self._open(self.file_of[name]).get_slice(name)
        except safetensors.SafetensorError:
            raise ValueError(
                f"{self.directory / self.file_of[name]} lacks tensor {name} that {_INDEX} lists."
            ) from None


def _load(tensors, path, shape, config, dtype, place):
    """One (stacked) parameter of `shape` from its tensors, placed shard by shard."""
    slices = [tensors.slice(name) for name in _hf_names(path, config)]
    transposed, stacked = path.endswith("kernel"), path.startswith("layers/")
    stored = shape[1:] if stacked else shape
    stored = stored[::-1] if transposed else stored
    for name, part in zip(_hf_names(path, config), slices, strict=True):
        if tuple(part.get_shape()) != stored:
            raise ValueError(
                f"{tensors.directory}: {name} has shape {tuple(part.get_shape())}, config.json says {stored}."
            )
        if part.get_dtype() not in _DTYPES:
            raise ValueError(f"{tensors.directory}: {name} is stored as {part.get_dtype()}; use a 16- or 32-bit model.")
    target = jnp.dtype(dtype or _DTYPES[slices[0].get_dtype()])

    @functools.lru_cache(maxsize=1)  # replicas on other devices ask for the same part again
    def read(index):
        bounds = [slice(*b) for b in index]
        layers = range(config.num_hidden_layers)[bounds.pop(0)] if stacked else [0]
        bounds = tuple(bounds[::-1] if transposed else bounds)
        out = np.empty([len(layers), *(len(range(*b.indices(n))) for b, n in zip(bounds, stored, strict=True))], target)
        for row, layer in zip(out, layers, strict=True):
            row[...] = slices[layer][bounds]
        out = np.swapaxes(out, 1, 2) if transposed else out
        return np.ascontiguousarray(out if stacked else out[0])

    return jax.make_array_from_callback(shape, place, lambda index: read(tuple((i.start, i.stop) for i in index)))


def _named_arrays(flat, config):
    """Yields (tensor name, NumPy array), fetching one parameter at a time."""
    for path, leaf in flat.items():
        if path == "lm_head/kernel" and config.tie_word_embeddings:
            continue
        value = _fetch(leaf)
        names = _hf_names(path, config)
        for name, part in zip(names, value if path.startswith("layers/") else [value], strict=True):
            yield name, np.ascontiguousarray(part.T if path.endswith("kernel") else part)


def _fetch(leaf):
    if getattr(leaf, "is_fully_addressable", True):
        return np.asarray(leaf)
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(leaf, tiled=True))


def _write_tensors(directory, named):
    """Writes shards of at most _SHARD_BYTES and their index, or one file where one is enough; None only consumes."""
    shards, pending, size = [], {}, 0

    def flush():
        nonlocal pending, size
        if directory is not None:
            safetensors.numpy.save_file(pending, directory / f"part-{len(shards)}", metadata={"format": "pt"})
        shards.append((list(pending), size))
        pending, size = {}, 0

    for name, array in named:
        if pending and size + array.nbytes > _SHARD_BYTES:
            flush()
        pending[name] = array
        size += array.nbytes
    flush()
    if directory is None:
        return
    if len(shards) == 1:
        os.replace(directory / "part-0", directory / _SINGLE)
        return
    files = [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    for i, file in enumerate(files):
        os.replace(directory / f"part-{i}", directory / file)
    weight_map = {name: file for file, (names, _) in zip(files, shards, strict=True) for name in names}
    index = {"metadata": {"total_size": sum(n for _, n in shards)}, "weight_map": weight_map}
    _write_json(directory / _INDEX, index)


def _write_json(path, fields):
    path.write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n")


def _install(temporary, directory):
    """Moves the files over; weights of an earlier save that do not belong to this one go away."""
    new = {path.name for path in temporary.iterdir()}
    (directory / "config.json").unlink(missing_ok=True)  # until the end nobody can load a mixture of two saves
    for old in [*directory.glob("model-*-of-*.safetensors"), directory / _SINGLE, directory / _INDEX]:
        if old.name not in new:
            old.unlink(missing_ok=True)
    for name in sorted(new, key=lambda name: name == "config.json"):
        os.replace(temporary / name, directory / name)

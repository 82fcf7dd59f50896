"""Checkpoints of everything that a resume needs, on Orbax: the device state, and host data with arrays of any size."""

import math
import os
import pathlib
import shutil
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import logging

PyTree = Any


class Restored(NamedTuple):
    """A checkpoint read back: `state` in the structure and shardings asked for, `host` as it was saved."""

    step: int
    state: PyTree
    host: dict


class Checkpointer:
    """Keeps two checkpoints in a directory: the last one, and the one with the largest metric.

    `state` is any pytree of arrays: parameters, optimizer states, typed PRNG keys. Its structure must be known to read
    it back. `host` is a dict of JSON values in which NumPy arrays may stand anywhere, with shapes that only the
    checkpoint knows (the buffer D, counters, generator states); tuples in it come back as lists.

    A save runs in the background and appears under its final name only when complete, so a crash in the middle leaves
    the earlier ones usable. Use it as a context manager, or `close` it: both wait for the save in progress.
    """

    def __init__(self, directory: str | os.PathLike):
        self._directory = pathlib.Path(directory).absolute()
        self._damaged: set[int] = set()
        self._clean = False
        self._manager = ocp.CheckpointManager(
            self._directory,
            options=ocp.CheckpointManagerOptions(create=True, preservation_policy=self),
            item_handlers={
                "state": ocp.StandardCheckpointHandler(),
                "host": ocp.JsonCheckpointHandler(),
                "arrays": ocp.StandardCheckpointHandler(),
            },
        )
        self._metrics = {step: self._read_metric(step) for step in self._manager.all_steps()}

    def save(self, step: int, state: PyTree, host: dict, metric: float | None = None) -> None:
        """Starts saving; the arrays may be donated or changed as soon as this returns.

        Args:
            step: larger than that of every earlier checkpoint.
            metric: larger is better; None or NaN where it was not measured (such a checkpoint is never the best).

        Raises:
            ValueError: the step is not after the last checkpoint's.
        """
        self._prepare()
        latest = self._manager.latest_step()
        if latest is not None and step <= latest:
            raise ValueError(f"checkpoint step {step} must be after {latest}, the last one in {self._directory}")
        known = metric is not None and not math.isnan(metric)
        self._metrics[step] = float(metric) if known else None
        leaves, keys = _encode(state)
        arrays: list[np.ndarray] = []
        record = {"host": _take_arrays(host, arrays), "metric": self._metrics[step], "keys": keys}
        items = {"state": ocp.args.StandardSave(leaves), "host": ocp.args.JsonSave(record)}
        # Orbax stores no empty array; the JSON knows its shape.
        stored = {str(i): array for i, array in enumerate(arrays) if array.size}
        if stored:
            items["arrays"] = ocp.args.StandardSave(stored)
        self._manager.save(step, args=ocp.args.Composite(**items))

    def restore_latest(self, abstract_state: PyTree | Callable[[dict], PyTree]) -> Restored | None:
        """The last usable checkpoint, or None where there is none at all. Damaged ones are skipped with a warning.

        Args:
            abstract_state: pytree of the saved structure: arrays, or `jax.ShapeDtypeStruct`s, whose shardings decide
                where the arrays go (without one: the first device). Or a function that makes it from the host data
                (without its arrays), for a structure that varies.

        Raises:
            ValueError: the checkpoint holds another tree, or every checkpoint is damaged.
        """
        return self._restore_first(sorted(self._manager.all_steps(), reverse=True), abstract_state)

    def restore_best(self, abstract_state: PyTree) -> Restored | None:
        """The checkpoint with the largest metric, or None where none was measured. Otherwise as `restore_latest`."""
        return self._restore_first(self._ranked(self._manager.all_steps()), abstract_state)

    def wait(self) -> None:
        """Blocks until the save in progress is complete; raises what it raised."""
        self._manager.wait_until_finished()

    def close(self) -> None:
        self._manager.wait_until_finished()
        self._manager.close()

    def __enter__(self) -> "Checkpointer":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def should_preserve(self, checkpoints, *, context) -> list[bool]:
        """Orbax's question which checkpoints to keep: the last and the best."""
        del context
        steps = [checkpoint.step for checkpoint in checkpoints]
        keep = {max(steps, default=None), *self._ranked(steps)[:1]}
        return [step in keep for step in steps]

    def _ranked(self, steps) -> list[int]:
        """Steps with a metric, the best first; of equal ones the later."""
        measured = [(self._metrics[step], step) for step in steps if self._metrics.get(step) is not None]
        return [step for _, step in sorted(measured, reverse=True)]

    def _prepare(self) -> None:
        """Removes what crashes left: unfinished saves, and damaged checkpoints that would bar their step's number."""
        if not self._clean:
            self._clean = True
            for path in self._directory.glob("*.orbax-checkpoint-tmp*"):
                shutil.rmtree(path, ignore_errors=True)
        for step in self._damaged:
            self._manager.delete(step)
            self._metrics.pop(step, None)
        self._damaged.clear()

    def _read_record(self, step: int) -> dict:
        return self._manager.restore(step, args=ocp.args.Composite(host=ocp.args.JsonRestore())).host

    def _read_metric(self, step: int) -> float | None:
        try:
            return self._read_record(step)["metric"]
        except Exception:  # damaged: restoring it says so
            return None

    def _restore_first(self, steps: list[int], abstract_state: PyTree) -> Restored | None:
        reason = None
        for step in steps:
            try:
                record, stored = self._read_record(step), self._manager.item_metadata(step).state.tree
            except Exception as error:  # Orbax raises many types, the plain Exception among them
                reason = self._skip(step, error)
                continue
            wanted = abstract_state(record["host"]) if callable(abstract_state) else abstract_state
            _check_tree(f"checkpoint {self._directory / str(step)}", stored, wanted)
            try:
                return self._restore(step, record, wanted)
            except Exception as error:
                reason = self._skip(step, error)
        if reason is not None:
            raise ValueError(f"every checkpoint in {self._directory} is damaged ({reason}): remove it to start again")
        return None

    def _restore(self, step: int, record: dict, abstract_state: PyTree) -> Restored:
        specs: dict[str, tuple] = {}
        _array_specs(record["host"], specs)
        templates = {i: np.zeros(shape, dtype) for i, (shape, dtype) in specs.items()}
        items = {"state": ocp.args.StandardRestore(_abstract_leaves(abstract_state))}
        stored = {i: template for i, template in templates.items() if template.size}
        if stored:
            items["arrays"] = ocp.args.StandardRestore(stored)
        restored = self._manager.restore(step, args=ocp.args.Composite(**items))
        arrays = templates | (restored.arrays if stored else {})
        state = _decode(restored.state, record["keys"], abstract_state)
        return Restored(step, state, _put_arrays(record["host"], arrays))

    def _skip(self, step: int, error: Exception) -> str:
        self._damaged.add(step)
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        logging.warning("checkpoint %s is damaged and skipped: %s", self._directory / str(step), reason)
        return reason


def abstract(tree: PyTree) -> PyTree:
    """`jax.ShapeDtypeStruct` of every array with its sharding: what a restore needs of a state it will replace."""

    def struct(leaf):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=getattr(leaf, "sharding", None))

    return jax.tree.map(struct, tree)


def _named_leaves(tree: PyTree) -> dict[str, Any]:
    """Leaves by dotted path, such as `optimizer.0.mu.embed_tokens`: checkpoints do not depend on container types."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    named = {jax.tree_util.keystr(path, simple=True, separator=".") or "value": leaf for path, leaf in leaves}
    if len(named) != len(leaves):
        raise ValueError("two arrays of the state have the same dotted path: rename a key that contains a dot")
    return named


def _is_key(leaf: Any) -> bool:
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _encode(state: PyTree) -> tuple[dict[str, Any], dict[str, str]]:
    """Leaves that Orbax can store (PRNG keys as their bits, nothing empty), and the generator of every key."""
    leaves, keys = {}, {}
    for name, leaf in _named_leaves(state).items():
        leaf = leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)
        if _is_key(leaf):
            keys[name] = str(jax.random.key_impl(leaf))
            leaf = jax.random.key_data(leaf)
        if leaf.size:
            leaves[name] = leaf
    return leaves, keys


def _abstract_leaves(abstract_state: PyTree) -> dict[str, Any]:
    """What Orbax is asked for, leaf by leaf: our shardings, never those of the process that saved."""
    result = {}
    for name, leaf in _named_leaves(abstract_state).items():
        if not math.prod(leaf.shape):
            continue
        if isinstance(leaf, np.ndarray | np.generic):
            result[name] = np.zeros(leaf.shape, leaf.dtype)
            continue
        shape = jax.eval_shape(jax.random.key_data, leaf) if _is_key(leaf) else leaf
        sharding = getattr(leaf, "sharding", None) if not _is_key(leaf) else None
        sharding = sharding or jax.sharding.SingleDeviceSharding(jax.devices()[0])
        result[name] = jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding)
    return result


def _decode(leaves: dict[str, Any], keys: dict[str, str], abstract_state: PyTree) -> PyTree:
    """The state in the structure of `abstract_state`."""
    named = _named_leaves(abstract_state)
    result = []
    for name, target in named.items():
        sharding = getattr(target, "sharding", None)
        if name in keys:
            key = jax.random.wrap_key_data(leaves[name], impl=keys[name])
            result.append(jax.device_put(key, sharding) if sharding else key)
        elif name in leaves:
            result.append(leaves[name])
        else:
            empty = np.zeros(target.shape, target.dtype)
            result.append(empty if isinstance(target, np.ndarray) else jax.device_put(empty, sharding))
    return jax.tree.unflatten(jax.tree.structure(abstract_state), result)


def _check_tree(name: str, stored: dict[str, Any], abstract_state: PyTree) -> None:
    """Raises ValueError with the first differences between a checkpoint's tree and the one asked for."""
    there = {path: _spelled(leaf) for path, leaf in stored.items()}
    here = {path: _spelled(leaf) for path, leaf in _abstract_leaves(abstract_state).items()}
    wrong = [
        f"{path} is {there.get(path, 'absent')} there and {here.get(path, 'absent')} here"
        for path in sorted({*there, *here})
        if there.get(path) != here.get(path)
    ]
    if wrong:
        more = f", and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise ValueError(
            f"{name} holds another tree of arrays: {'; '.join(wrong[:3])}{more}: "
            "use the configuration that it was saved with, or another --workdir"
        )


def _spelled(leaf: Any) -> str:
    return f"{np.dtype(leaf.dtype).name}[{','.join(str(size) for size in leaf.shape)}]"


_ARRAY = "__array__"


def _take_arrays(value: Any, arrays: list[np.ndarray]) -> Any:
    """`value` with every array moved to `arrays` and a note of its index, shape and dtype in its place."""
    if isinstance(value, dict):
        bad = [key for key in value if not isinstance(key, str) or key == _ARRAY]
        if bad:
            raise ValueError(f"host data has the key {bad[0]!r}: keys must be strings other than {_ARRAY}")
        return {key: _take_arrays(item, arrays) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_take_arrays(item, arrays) for item in value]
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        # A copy: the save is still running when the caller goes on to change its buffer.
        array = np.array(value)
        arrays.append(array)
        return {_ARRAY: [str(len(arrays) - 1), list(array.shape), array.dtype.name]}
    return value


def _array_specs(value: Any, specs: dict[str, tuple]) -> None:
    """Index -> (shape, dtype) of every array noted in `value`."""
    if isinstance(value, dict) and _ARRAY in value:
        index, shape, dtype = value[_ARRAY]
        specs[index] = (tuple(shape), jax.numpy.dtype(dtype))
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            _array_specs(item, specs)


def _put_arrays(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    """The inverse of `_take_arrays`."""
    if isinstance(value, dict):
        if _ARRAY in value:
            return arrays[value[_ARRAY][0]]
        return {key: _put_arrays(item, arrays) for key, item in value.items()}
    return [_put_arrays(item, arrays) for item in value] if isinstance(value, list) else value

"""Around the configuration tree: loading, clear errors for what a user typed, the record kept in a work directory."""

import difflib
import hashlib
import importlib.machinery
import importlib.util
import inspect
import json
import os
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags
from ml_collections import ConfigDict


def load_config(spec: str, overrides: Mapping[str, Any] | None = None) -> ConfigDict:
    """The configuration of "PATH" or "PATH:PRESET", with dotted keys of `overrides` set; locked against new keys.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not a configuration file, an unknown preset or key, or a value of another type.
    """
    path, _, preset = spec.partition(":")
    if not pathlib.Path(path).is_file():
        near = difflib.get_close_matches(
            pathlib.Path(path).name, [file.name for file in pathlib.Path(path).parent.glob("*.py")], n=1
        )
        hint = f"did you mean {pathlib.Path(path).parent / near[0]}?" if near else "give a file such as configs/*.py"
        raise FileNotFoundError(f"configuration file {path} does not exist: {hint}")
    loader = importlib.machinery.SourceFileLoader("_rspo_jax_config", path)  # whatever the name ends in
    module_spec = importlib.util.spec_from_loader(loader.name, loader)
    module = importlib.util.module_from_spec(module_spec)
    try:
        module_spec.loader.exec_module(module)
    except SyntaxError as error:
        reason = f"{error.msg}, line {error.lineno}"
        raise ValueError(f"{path} is not Python ({reason}): give a configuration file as in configs/") from None
    if not hasattr(module, "get_config"):
        raise ValueError(f"{path} has no function get_config: give a configuration file such as those in configs/")
    if preset and not inspect.signature(module.get_config).parameters:
        raise ValueError(f"{path} has no presets: give it without :{preset}, or one of the other files in configs/")
    config = module.get_config(preset) if preset else module.get_config()
    config.lock()
    for key, value in (overrides or {}).items():
        set_value(config, key, value)
    return config


def set_value(config: ConfigDict, key: str, value: Any) -> None:
    """Sets one dotted key in place.

    Raises:
        ValueError: unknown key (the nearest known one is named) or a value of another type.
    """
    check_key(config, key)
    *parents, name = key.split(".")
    node = config
    for parent in parents:
        node = node[parent]
    if isinstance(node[name], ConfigDict) and not isinstance(value, Mapping):
        inside = ", ".join(f"{key}.{child}" for child in list(node[name])[:3])
        raise ValueError(f"{key} is a group of keys and cannot be {value!r}: set one of them, such as {inside}")
    try:
        node[name] = value
    except TypeError:
        raise ValueError(
            f"{key} must be of type {node.get_type(name).__name__}, got {value!r} ({type(value).__name__})"
        ) from None


def check_key(config: ConfigDict, key: str) -> None:
    """Raises ValueError, naming the nearest known key, where the dotted `key` is not in the tree."""
    groups, values = _keys(config)
    if key in groups or key in values:
        return
    raise ValueError(f"unknown configuration key {key}: {_nearest(key, values)}")


def parse_preset(arg: str | None, allowed: Sequence[str]) -> str:
    """The preset named after ":" in --config; none given means the first of `allowed`.

    Raises:
        ValueError: a name that is not allowed.
    """
    if not arg:
        return allowed[0]
    if arg in allowed:
        return arg
    near = difflib.get_close_matches(arg, allowed, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise ValueError(f"unknown preset {arg}: {hint}known presets are {', '.join(allowed)}")


def parse_flags(argv: list[str]) -> list[str]:
    """absl's flag parsing with errors of one sentence: `app.run(main, flags_parser=configuration.parse_flags)`.

    Exits with status 2 and the sentence on standard error. Only a command line that fails is looked at again.
    """
    spec = _config_spec(argv)
    try:
        if spec and not pathlib.Path(spec.partition(":")[0]).is_file():
            load_config(spec)  # the flag itself would stay silent until its first use
        program, *rest = flags.FLAGS(argv)
        if rest:
            raise ValueError(f"unexpected argument {rest[0]}: write options as --NAME=VALUE")
        return [program]
    except (flags.Error, OSError, SyntaxError, ValueError, KeyError, AttributeError, TypeError) as error:
        print(f"error: {_explain(argv, spec, error)}", file=sys.stderr)
        sys.exit(2)


def require(condition: bool, key: str, value: Any, remedy: str) -> None:
    """Raises ValueError naming key, value and remedy unless the condition holds.

    >>> require(2 > 0, "batch.tasks", 2, "give at least 1")
    """
    if not condition:
        raise ValueError(f"{key} = {value!r}: {remedy}")


def require_one_of(key: str, value: Any, allowed: Sequence[Any]) -> None:
    """Raises ValueError, naming the nearest allowed value, unless `value` is one of `allowed`."""
    if value in allowed:
        return
    near = difflib.get_close_matches(str(value), [str(choice) for choice in allowed], n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise ValueError(f"{key} = {value!r}: {hint}choose one of {', '.join(str(choice) for choice in allowed)}")


def to_json(config: ConfigDict | Mapping[str, Any]) -> str:
    """Canonical JSON: sorted keys, tuples as lists, so that equal trees give equal text."""
    tree = config.to_dict() if isinstance(config, ConfigDict) else config
    return json.dumps(tree, sort_keys=True, indent=2)


def fingerprint(config: ConfigDict | Mapping[str, Any]) -> str:
    """16 hexadecimal digits that equal configurations share, in every process and on every machine."""
    return hashlib.sha256(to_json(config).encode()).hexdigest()[:16]


def save_config(workdir: str | os.PathLike, config: ConfigDict | Mapping[str, Any]) -> pathlib.Path:
    """Writes WORKDIR/config.json, whole or not at all; makes the directory. Returns the path."""
    path = pathlib.Path(workdir) / "config.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(to_json(config) + "\n")
    os.replace(temporary, path)
    return path


def check_same_config(
    workdir: str | os.PathLike, config: ConfigDict | Mapping[str, Any], may_differ: Sequence[str] = ()
) -> bool:
    """Whether the work directory already holds a run of this configuration; False where it holds none.

    Args:
        may_differ: dotted keys, or groups of them, that a resume may change ("train.steps", "eval").

    Raises:
        ValueError: the directory belongs to another configuration. The message lists every key with both values.
    """
    path = pathlib.Path(workdir) / "config.json"
    if not path.is_file():
        return False
    try:
        old = json.loads(path.read_text())
    except json.JSONDecodeError:
        raise ValueError(f"{path} is not JSON: give another --workdir or remove the file") from None
    lines = [f"  {key}: {before} -> {after}" for key, before, after in difference(old, config, may_differ)]
    if lines:
        raise ValueError(
            f"{workdir} belongs to another configuration: give another --workdir or undo (old -> new)\n"
            + "\n".join(lines)
        )
    return True


def difference(
    old: ConfigDict | Mapping[str, Any], new: ConfigDict | Mapping[str, Any], may_differ: Sequence[str] = ()
) -> list[tuple[str, str, str]]:
    """(key, old value, new value) as JSON of every differing key, sorted; "absent" where one side lacks it."""
    old, new = flatten(old), flatten(new)
    keys = (
        key for key in sorted({*old, *new}) if not any(key == may or key.startswith(may + ".") for may in may_differ)
    )
    pairs = ((key, old.get(key, "absent"), new.get(key, "absent")) for key in keys)
    return [(key, before, after) for key, before, after in pairs if before != after]


def flatten(tree: ConfigDict | Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Dotted key -> JSON of the value. Values go through JSON, so that a tuple equals the list it was saved as."""
    if isinstance(tree, ConfigDict):
        tree = tree.to_dict()
    flat = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = json.dumps(value, sort_keys=True)
    return flat


def _keys(config: ConfigDict, prefix: str = "") -> tuple[list[str], list[str]]:
    """Dotted names of all groups and of all values in the tree."""
    groups, values = [], []
    for name in config:
        value = config[name]
        if isinstance(value, ConfigDict):
            inner_groups, inner_values = _keys(value, f"{prefix}{name}.")
            groups += [prefix + name, *inner_groups]
            values += inner_values
        else:
            values.append(prefix + name)
    return groups, values


def _nearest(key: str, known: Sequence[str]) -> str:
    """What was probably meant; with the group's keys where nothing is really close."""
    group, _, name = key.rpartition(".")
    # By the last part too, for a key in the wrong group; a beginning of a key beats a similar spelling.
    last: dict[str, str] = {}
    for full in known:
        last.setdefault(full.rpartition(".")[2], full)
    begins = [full for full in known if full.startswith(key)]
    alike = difflib.get_close_matches(key, known, n=1, cutoff=0.75)
    elsewhere = [last[found] for found in difflib.get_close_matches(name, last, n=1, cutoff=0.75)]
    for found in (begins, alike, elsewhere):
        if found:
            return f"did you mean {found[0]}?"
    siblings = [full for full in known if group and full.rpartition(".")[0] == group]
    nearest = difflib.get_close_matches(key, siblings or known, n=1, cutoff=0.0)[0]
    listed = f" {group} has the keys {', '.join(full.rpartition('.')[2] for full in siblings)}" if siblings else ""
    return f"did you mean {nearest}?{listed}"


def _config_spec(argv: Sequence[str]) -> str | None:
    """PATH[:PRESET] of the last --config in a command line."""
    spec = None
    for position, arg in enumerate(argv):
        name, equals, value = arg.lstrip("-").partition("=")
        if arg.startswith("-") and name == "config":
            spec = value if equals else (argv[position + 1] if position + 1 < len(argv) else None)
    return spec


def _explain(argv: Sequence[str], spec: str | None, error: Exception) -> str:
    """One sentence on why a command line failed: the configuration's own words first, then absl's."""
    names = [arg.lstrip("-").partition("=")[0] for arg in argv[1:] if arg.startswith("-")]
    try:
        config = load_config(spec) if spec else None
        for name in names:
            if name.startswith("config.") and config is not None:
                check_key(config, name.removeprefix("config."))
    except (FileNotFoundError, ValueError) as better:
        return str(better)
    if isinstance(error, flags.UnrecognizedFlagError):
        near = difflib.get_close_matches(error.flagname, ["config", *flags.FLAGS], n=1)
        return f"unknown flag --{error.flagname}: " + (f"did you mean --{near[0]}?" if near else "see --help")
    text = str(error).splitlines()[0] if str(error) else repr(error)
    if isinstance(error, flags.IllegalFlagValueError) and ": " in text:
        flag, reason = text.removeprefix("flag ").split(": ", 1)
        key = flag.partition("=")[0].removeprefix("--config.")
        return f"{flag}: {_type_hint(config, key) or reason}"
    return text


def _type_hint(config: ConfigDict | None, key: str) -> str | None:
    """What kind of value a key takes, for the error about one that it does not take."""
    if config is None:
        return None
    groups, values = _keys(config)
    if key in groups:
        example = next(name for name in values if name.startswith(f"{key}."))
        return f"a group of keys, of which one can be set, such as {example}"
    if key not in values:
        return None
    *parents, name = key.split(".")
    node = config
    for parent in parents:
        node = node[parent]
    return f"the value must be of type {node.get_type(name).__name__}, such as {node[name]!r}"

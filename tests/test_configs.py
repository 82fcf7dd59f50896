"""The configuration tree: every preset loads and is consistent, every key is described and used."""

import io
import json
import math
import operator
import pathlib
import re
import tokenize

import pytest
from ml_collections import ConfigDict

from experiments import compare
from rspo_jax import algos
from rspo_jax.configuration import load_config, set_value, to_json
from rspo_jax.validation import validate

ROOT = pathlib.Path(__file__).resolve().parents[1]
FILES = sorted(p for p in (ROOT / "configs").glob("*_*.py") if p.stem != "__init__")
PRESETS = ("tiny", "sparse", "smoke", "paper-1.5b", "paper-7b")


def keys(config, prefix=""):
    for name, value in config.items():
        if isinstance(value, ConfigDict):
            yield from keys(value, f"{prefix}{name}.")
        else:
            yield prefix + name


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("file", FILES, ids=lambda p: p.stem)
def test_every_preset_of_every_file_is_consistent(file, preset):
    config = load_config(f"{file}:{preset}")
    validate(config)
    assert config.rspo.enabled
    assert to_json(config) == to_json(load_config(f"{file}:{preset}"))


def test_tiny_is_the_default_preset():
    for file in FILES:
        assert to_json(load_config(str(file))) == to_json(load_config(f"{file}:tiny"))


def test_paper_preset_has_the_published_numbers():
    config = load_config("configs/webshop_grpo.py:paper-1.5b")
    assert (config.batch.tasks, config.batch.group_size, config.rspo.k, config.rspo.collect_tasks) == (16, 8, 3, 28)
    assert (config.rspo.alpha, config.train.steps, config.env.max_turns, config.context.history) == (1 / 8, 150, 15, 2)
    assert (config.optim.lr, config.loss.kl_coef, config.loss.kl_kind, config.optim.minibatch_rows) == (
        1e-6,
        0.01,
        "k3",
        64,
    )
    alfworld = load_config("configs/alfworld_gigpo.py:paper-7b")
    assert (alfworld.env.max_turns, alfworld.context.max_prompt, alfworld.optim.minibatch_rows) == (50, 2048, 256)
    assert (alfworld.algo.gamma, alfworld.algo.omega, alfworld.algo.norm) == (0.95, 1.0, "std")
    assert load_config("configs/webshop_gigpo.py:paper-7b").algo.norm == "none"
    ppo = load_config("configs/webshop_ppo.py:paper-1.5b")
    assert (ppo.batch.tasks, ppo.batch.group_size, ppo.critic.lr) == (128, 1, 1e-5)


def test_every_key_of_the_tree_has_a_comment_on_its_line():
    """One comment a key, on the same line; groups and section functions need none."""
    source = (ROOT / "configs" / "default.py").read_text()
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    commented = {t.start[0] for t in tokens if t.type == tokenize.COMMENT}
    for number, line in enumerate(source.splitlines(), 1):
        match = re.match(r"\s+(\w+)=(?!dict\(|\w+\(\))", line)
        if match:
            assert number in commented, f"configs/default.py line {number}: {match[1]} has no comment"


def test_no_key_is_dead():
    """Every key is read somewhere in the package, by its own name."""
    files = set((ROOT / "rspo_jax").rglob("*.py")) - {ROOT / "rspo_jax" / "validation.py"}  # it names all it limits
    code = "\n".join(p.read_text() for p in files)
    for key in keys(load_config("configs/webshop_gigpo.py")):
        name = key.rpartition(".")[2]
        assert re.search(rf"\.{name}\b", code), f"config.{key} is not read anywhere"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("algo.name", "gigp"),
        ("context.mode", "appended"),
        ("rspo.sampling", "best"),
        ("decoding.temperature", 0.0),
        ("rspo.alpha", 1.0),
        ("loss.dual_clip", 0.5),
        ("optim.epochs", 0),
        ("context.format", "verl"),  # cannot be constrained
        ("context.max_tokens", 24),  # as long as one response
        ("context.max_prompt", 0),
        ("decoding.max_free", 0),
        ("algo.gamma", -1.0),
        ("algo.gamma", 1.5),
        ("algo.lam", math.nan),
        ("optim.b2", 1.0),
        ("optim.clip_norm", 0.0),
        ("reward_model.held_out", 1.0),
        ("env.timeout", 0.0),
        ("env.size", "large"),
        ("env.compat", "fix"),
        ("env.num_train", 0),
        ("eval.repeats", 0),
        ("eval.splits", ()),
        ("model.lora.targets", ("q",)),
        ("mesh.data", 0),
        ("mesh.tensor", 0),
        ("seed", -1),
        ("sft.rows", 100_000),  # more than there are demonstrations
        ("sft.width", 63),
    ],
)
def test_impossible_settings_are_refused_by_name(key, value):
    config = load_config("configs/webshop_gigpo.py", {key: value})
    with pytest.raises(ValueError, match=key.replace(".", r"\.") + "|decoding.constrain"):
        validate(config)


def documented_flags() -> list[str]:
    """The flags of every variant in docs/algorithms.md: what stands in one pair of back quotes."""
    text = (ROOT / "docs" / "algorithms.md").read_text()
    return re.findall(r"`(--config\.[^`]+)`", text)


@pytest.mark.parametrize("flags", documented_flags())
def test_the_variants_of_the_documentation_are_settings_that_work_together(flags):
    check_flags(flags.split())


@pytest.mark.parametrize("name", compare.VARIANTS)
def test_the_variants_of_the_comparison_are_settings_that_work_together(name):
    check_flags([flag.format(large=19, more=140) for flag in compare.VARIANTS[name]])


def check_flags(flags):
    config = load_config("configs/webshop_grpo.py")
    for flag in flags:
        key, value = flag.removeprefix("--config.").split("=")
        kind = type(operator.attrgetter(key)(config))
        set_value(config, key, value == "True" if kind is bool else kind(value))
    validate(config)


def test_the_comparison_counts_the_episodes_of_the_guide(tmp_path):
    rows = [{"phase": "eval", "step": 0, "episodes": 0, "eval/valid/success": 0.1}]
    for step in range(1, 11):
        rows.append({"phase": "guide", "step": step - 1, "episodes": 20 * step - 10, "success": 1.0})
        rows.append({"phase": "target", "step": step, "episodes": 20 * step, "success": step / 10})
    rows.append({"phase": "eval", "step": 10, "episodes": 200, "eval/valid/success": 0.75})
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))
    got = compare.result(tmp_path, 60)
    assert got["equal"] == pytest.approx(100 * (0.1 + 0.2 + 0.3) / 3)  # the rollouts within 60 episodes
    assert got["more"] == pytest.approx(100 * (0.2 + 0.3 + 0.4 + 0.5 + 0.6 + 0.7) / 6)  # the last six within 140
    assert (got["panel"], got["updates"], got["episodes"]) == (75.0, 10, 200)


def test_estimators_have_the_defaults_of_the_tree():
    algo, options = load_config("configs/webshop_grpo.py").algo, algos.Options()
    assert {name: getattr(options, name) for name in ("norm", "gamma", "lam", "omega")} == {
        name: algo[name] for name in ("norm", "gamma", "lam", "omega")
    }

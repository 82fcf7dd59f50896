"""What a user may type, what is refused and in which words, and when a work directory is refused."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ml_collections import ConfigDict

from rspo_jax import configuration

CONFIG = """
from ml_collections import ConfigDict
from rspo_jax import configuration
def get_config(arg=None):
    preset = configuration.parse_preset(arg, ("tiny", "paper-7b"))
    return ConfigDict(dict(
        preset=preset,
        train=dict(steps=3, lr=1e-3, name="x", live=True),
        rspo=dict(alpha=0.125, splits=("valid",)),
    ))
"""
PROGRAM = """
from absl import app, flags
from ml_collections import config_flags
from rspo_jax import configuration
CONFIG = config_flags.DEFINE_config_file("config")
WORKDIR = flags.DEFINE_string("workdir", None, "")
def main(_):
    print("steps", CONFIG.value.train.steps, CONFIG.value.preset)
app.run(main, flags_parser=configuration.parse_flags)
"""
ROOT = pathlib.Path(__file__).resolve().parents[1]


@pytest.fixture
def config_file(tmp_path):
    path = tmp_path / "webshop.py"
    path.write_text(CONFIG)
    return path


def tree(**changes):
    config = ConfigDict(dict(train=dict(steps=3, lr=1e-3), rspo=dict(alpha=0.125, splits=("valid",))))
    for key, value in changes.items():
        configuration.set_value(config, key.replace("__", "."), value)
    return config


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    """Runs the same absl program with a list of arguments; returns (exit status, stdout, stderr)."""
    directory = tmp_path_factory.mktemp("program")
    (directory / "webshop.py").write_text(CONFIG)
    (directory / "run.py").write_text(PROGRAM)
    (directory / "notes.md").write_text("It trains an agent.\n")
    (directory / "plain.py").write_text("def get_config():\n    return 1\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def run(*args):
        done = subprocess.run(
            [sys.executable, "run.py", *args], cwd=directory, env=environment, capture_output=True, text=True
        )
        return done.returncode, done.stdout, done.stderr

    return run


def test_flags_set_keys_and_presets(command):
    assert command("--config=webshop.py:paper-7b", "--config.train.steps=5")[:2] == (0, "steps 5 paper-7b\n")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--config=webshop.py", "--config.train.stps=4"], ["train.stps", "did you mean train.steps?"]),
        (["--config=webshop.py", "--config.trn.steps=4"], ["trn.steps", "did you mean train.steps?"]),
        (["--config=webshop.py", "--config.train.steps=abc"], ["train.steps=abc", "type int"]),
        (["--config=webshop.py", "--config.train.live=maybe"], ["train.live=maybe", "type bool"]),
        (["--config=webshop.py:paper-8b"], ["unknown preset paper-8b", "did you mean paper-7b?", "tiny"]),
        (["--config=webshp.py"], ["webshp.py does not exist", "did you mean webshop.py?"]),
        (["--config", "nothing/there.py"], ["nothing/there.py does not exist"]),
        (["--config=webshop.py", "--wrkdir=x"], ["unknown flag --wrkdir", "did you mean --workdir?"]),
        (["--config=webshop.py", "train.steps=5"], ["unexpected argument train.steps=5", "--NAME=VALUE"]),
        (["--config=webshop.py", "--config.train=5"], ["--config.train=5", "group of keys", "train.live"]),
        (["--config=notes.md"], ["notes.md is not Python", "configs/"]),
        (["--config=plain.py:tiny"], ["plain.py has no presets", "tiny"]),
    ],
)
def test_a_wrong_command_line_ends_with_one_sentence(command, args, words):
    status, _, stderr = command(*args)
    assert status == 2
    assert "Traceback" not in stderr
    (line,) = stderr.strip().splitlines()
    assert line.startswith("error: ")
    for word in words:
        assert word in line


def test_load_config_takes_preset_and_overrides(config_file):
    config = configuration.load_config(f"{config_file}:paper-7b", {"train.steps": 7, "rspo.splits": ("a", "b")})
    assert (config.preset, config.train.steps, config.rspo.splits) == ("paper-7b", 7, ("a", "b"))
    assert configuration.load_config(str(config_file)).preset == "tiny"
    with pytest.raises(AttributeError):
        config.new_key = 1


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("train.stesp", 1, "unknown configuration key train.stesp: did you mean train.steps"),
        ("alpha", 1.0, "did you mean rspo.alpha"),
        ("train.alpha", 1.0, "did you mean rspo.alpha"),
        ("train.st", 1, "did you mean train.steps"),
        ("train.zzzzz", 1, "did you mean train.* train has the keys live, lr, name, steps"),
        ("train.steps", "many", "train.steps must be of type int, got 'many'"),
        ("train.steps", 2.5, "train.steps must be of type int, got 2.5"),
        ("train", 3, "train is a group of keys"),
        ("train.steps.more", 3, "unknown configuration key train.steps.more"),
    ],
)
def test_a_wrong_key_or_type_is_named(config_file, key, value, message):
    with pytest.raises(ValueError, match=message):
        configuration.load_config(str(config_file), {key: value})


def test_a_file_without_get_config_is_refused(tmp_path):
    path = tmp_path / "other.py"
    path.write_text("x = 1\n")
    with pytest.raises(ValueError, match="no function get_config"):
        configuration.load_config(str(path))


def test_the_first_preset_is_the_default():
    assert configuration.parse_preset(None, ("tiny", "smoke")) == "tiny"
    assert configuration.parse_preset("smoke", ("tiny", "smoke")) == "smoke"
    with pytest.raises(ValueError, match="unknown preset smok: did you mean smoke.*tiny, smoke"):
        configuration.parse_preset("smok", ("tiny", "smoke"))


def test_require_names_key_value_and_remedy():
    configuration.require(True, "batch.tasks", 1, "give at least 1")
    with pytest.raises(ValueError, match="batch.tasks = 0: give at least 1"):
        configuration.require(False, "batch.tasks", 0, "give at least 1")
    configuration.require_one_of("loss.kl_kind", "k3", ("k1", "k2", "k3"))
    with pytest.raises(ValueError, match="algo.name = 'gipo': did you mean gigpo.*one of grpo, gigpo"):
        configuration.require_one_of("algo.name", "gipo", ("grpo", "gigpo"))


def test_the_fingerprint_ignores_order_and_sees_every_value():
    assert configuration.fingerprint({"a": 1, "b": (1, 2)}) == configuration.fingerprint({"b": [1, 2], "a": 1})
    assert configuration.fingerprint(tree()) == configuration.fingerprint(tree())
    assert configuration.fingerprint(tree()) != configuration.fingerprint(tree(rspo__alpha=0.25))
    assert len(configuration.fingerprint(tree())) == 16


def test_a_new_directory_holds_no_run_and_the_same_configuration_resumes(tmp_path):
    assert not configuration.check_same_config(tmp_path / "new", tree())
    configuration.save_config(tmp_path / "new", tree())
    assert configuration.check_same_config(tmp_path / "new", tree())
    assert json.loads((tmp_path / "new" / "config.json").read_text())["rspo"]["splits"] == ["valid"]


def test_another_configuration_is_refused_with_every_difference(tmp_path):
    configuration.save_config(tmp_path, tree())
    with pytest.raises(ValueError) as caught:
        configuration.check_same_config(
            tmp_path, tree(rspo__alpha=0.25, rspo__splits=("valid", "test"), train__steps=9)
        )
    text = str(caught.value)
    assert "another configuration" in text and "--workdir" in text
    assert "  rspo.alpha: 0.125 -> 0.25" in text
    assert '  rspo.splits: ["valid"] -> ["valid", "test"]' in text
    assert "  train.steps: 3 -> 9" in text
    assert "train.lr" not in text


def test_listed_keys_and_groups_may_differ(tmp_path):
    configuration.save_config(tmp_path, tree())
    assert configuration.check_same_config(tmp_path, tree(train__steps=9), ("train.steps",))
    assert configuration.check_same_config(tmp_path, tree(train__steps=9, train__lr=0.5), ("train",))
    with pytest.raises(ValueError, match="train.lr"):
        configuration.check_same_config(tmp_path, tree(train__steps=9, train__lr=0.5), ("train.steps", "train.l"))


def test_added_and_removed_keys_are_differences(tmp_path):
    assert configuration.difference({"a": {"b": 1}}, {"a": {"c": 1}}) == [
        ("a.b", "1", "absent"),
        ("a.c", "absent", "1"),
    ]


def test_a_damaged_record_is_named(tmp_path):
    (tmp_path / "config.json").write_text('{"train":')
    with pytest.raises(ValueError, match="config.json is not JSON"):
        configuration.check_same_config(tmp_path, tree())


values = st.one_of(st.integers(), st.booleans(), st.text(), st.floats(allow_nan=False), st.none())
trees = st.recursive(
    st.dictionaries(st.text("abc", min_size=1), values),
    lambda inner: st.dictionaries(st.text("abc", min_size=1), st.one_of(values, inner)),
    max_leaves=12,
)


@given(trees, trees)
def test_the_difference_is_empty_exactly_for_equal_fingerprints(old, new):
    assert configuration.difference(old, old) == []
    assert (configuration.difference(old, new) == []) == (
        configuration.fingerprint(old) == configuration.fingerprint(new)
    )

"""The command line as a user meets it: every mode on the smallest preset, and errors of one sentence."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]


def run(*args, cwd=ROOT):
    command = [sys.executable, str(ROOT / "run.py"), *args]
    return subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, env=os.environ | {"JAX_PLATFORMS": "cpu"}, timeout=900
    )


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--config=configs/webshop_gigpo.py", "--config.batch.task=3"], ["batch.task", "batch.tasks"]),
        (["--config=configs/webshop_gigpo.py:tinny"], ["tinny", "tiny"]),
        (["--config=configs/webshop_gigp.py"], ["configs/webshop_gigp.py", "webshop_gigpo.py"]),
        (["--config=configs/webshop_gigpo.py", "--config.env.data=/nowhere"], ["env.data", "/nowhere"]),
        (["--config=configs/alfworld_gigpo.py", "--config.env.data=/nowhere"], ["env.data", "/nowhere"]),
        (
            ["--config=configs/webshop_gigpo.py", "--config.model.path=configs"],
            ["model.path", "config.json"],
        ),
        (
            ["--config=configs/webshop_gigpo.py", "--config.model.path=/nowhere"],
            ["model.path", "/nowhere"],
        ),
        (["--config=configs/webshop_gigpo.py", "--config.batch.tasks=0"], ["batch.tasks", "0"]),
        (["--config=configs/webshop_gigpo.py", "--config.batch.tasks=7"], ["rspo.alpha", "whole number"]),
        (["--config=configs/webshop_gigpo.py", "--config.algo.name=gigp"], ["algo.name", "gigpo"]),
        (["--config=configs/webshop_gigpo.py", "--config.eval.splits=('validd',)"], ["eval.splits", "valid"]),
        (["--config=configs/webshop_gigpo.py", "--config.mesh.tensor=3"], ["mesh", "devices"]),
        (["--config=configs/webshop_gigpo.py", "--config.optim.lr=fast"], ["optim.lr", "float"]),
        (["--config=configs/webshop_gigpo.py", "--config.env.id=no_such_pkg:Env-v0"], ["env.id", "no_such_pkg"]),
        (["--config=configs/webshop_gigpo.py:paper-1.5b"], ["env.data", "official data"]),
        (
            ["--config=configs/webshop_gigpo.py", f"--workdir={ROOT / 'README.md'}"],
            ["README.md", "check that the path"],
        ),
    ],
)
def test_bad_input_is_one_sentence_that_names_key_value_and_remedy(tmp_path, args, words):
    done = run(f"--workdir={tmp_path / 'run'}", *args)
    assert done.returncode == 2, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1 and "Traceback" not in done.stderr, done.stderr
    for word in words:
        assert word in lines[0]


def test_malformed_data_is_one_sentence_that_names_the_file(tmp_path):
    (tmp_path / "items_shuffle_1000.json").write_text("[{]")
    (tmp_path / "items_ins_v2_1000.json").write_text("{}")
    args = ["--config=configs/webshop_gigpo.py", f"--config.env.data={tmp_path}", "--config.env.human_goals=False"]
    done = run(*args, f"--workdir={tmp_path / 'run'}")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "items_shuffle_1000.json" in done.stderr.splitlines()[-1]


def test_smoke_run_leaves_what_the_readme_promises_and_resumes(tmp_path):
    work = tmp_path / "run"
    first = run("--config=configs/webshop_gigpo.py:smoke", f"--workdir={work}")
    assert first.returncode == 0, first.stderr
    assert "success rate" in first.stdout and "valid" in first.stdout
    for name in ("config.json", "metrics.jsonl", "report.html", "agent/model.safetensors", "agent/tokenizer.json"):
        assert (work / name).is_file(), name
    assert any((work / "episodes").iterdir()) and any((work / "tensorboard").iterdir())
    rows = [json.loads(line) for line in (work / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if row["phase"] == "target"] == [1, 2]
    assert {"guide", "collect", "eval"} <= {row["phase"] for row in rows}

    again = run("--config=configs/webshop_gigpo.py:smoke", f"--workdir={work}")
    assert again.returncode == 0, again.stderr
    assert [json.loads(line) for line in (work / "metrics.jsonl").read_text().splitlines()] == rows

    other = run("--config=configs/webshop_gigpo.py:smoke", "--config.optim.lr=0.5", f"--workdir={work}")
    assert other.returncode == 2 and "optim.lr" in other.stderr and "Traceback" not in other.stderr

    evaluated = run("--config=configs/webshop_gigpo.py:smoke", "--mode=eval", f"--workdir={work}")
    assert evaluated.returncode == 0 and "success rate" in evaluated.stdout
    assert f"agent: {work / 'agent'}" in evaluated.stdout
    imitation = run("--config=configs/webshop_gigpo.py:smoke", "--mode=sft", f"--workdir={work}")
    assert imitation.returncode == 2 and "belongs to a training run" in imitation.stderr
    assert run("--config=configs/webshop_gigpo.py:smoke", "--mode=report", f"--workdir={work}").returncode == 0


@pytest.mark.parametrize("config", ["webshop_grpo", "webshop_ppo", "alfworld_grpo", "alfworld_ppo", "alfworld_gigpo"])
def test_every_config_runs_every_phase(tmp_path, config):
    done = run(f"--config=configs/{config}.py:smoke", f"--workdir={tmp_path / 'run'}")
    assert done.returncode == 0, done.stderr
    assert "success rate" in done.stdout


def test_sft_makes_an_agent_that_can_be_trained(tmp_path):
    done = run("--config=configs/alfworld_grpo.py:smoke", "--mode=sft", f"--workdir={tmp_path / 'base'}")
    assert done.returncode == 0, done.stderr
    trained = run(
        "--config=configs/alfworld_grpo.py:smoke",
        f"--config.model.path={tmp_path / 'base' / 'agent'}",
        "--config.rspo.enabled=False",
        f"--workdir={tmp_path / 'run'}",
    )
    assert trained.returncode == 0, trained.stderr

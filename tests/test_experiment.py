"""A run survives every interrupt: what comes after it is what would have come without it."""

import os
import signal

import jax
import numpy as np
import pytest
import tiny

from rspo_jax import phases, train
from rspo_jax.experiment import Experiment

CASES = {
    "gigpo": dict(train__eval_every=1, loss__kl_coef=0.1),
    "ppo": dict(
        algo__name="ppo",
        algo__gamma=1.0,
        batch__tasks=8,
        batch__group_size=1,
        rspo__k=1,
        rspo__alpha=0.25,
        rspo__guide_reset="until_success",
        rspo__min_successes=100,
        train__steps=2,
        optim__minibatch_rows=4,
    ),
    "history": dict(rspo__source="history", train__steps=4, loss__kl_coef=0.1, loss__kl_target=0.01),
    "recycled": dict(rspo__guide_data="recycled", rspo__guide_reset="never"),
    "reuse": dict(rspo__collect="reuse", train__steps=2, process_reward__noise_std=0.1),
}


def interrupted(config, path, monkeypatch) -> dict:
    """Trains with a request to stop after every single tick; returns what the last session returned."""

    def one_tick(run, tick=train.tick):
        tick(run)
        run.stop_requested = True

    sessions = 0
    with monkeypatch.context() as patch:
        patch.setattr(train, "tick", one_tick)
        while not (result := train.train(config, path)):
            sessions += 1
            assert sessions < 40
    assert sessions >= config.train.steps
    return result


@pytest.mark.parametrize("case", CASES)
def test_a_run_stopped_after_every_tick_is_the_run_that_never_stopped(tmp_path, monkeypatch, case):
    config = tiny.config(**CASES[case])
    whole = train.train(config, tmp_path / "whole")
    cut = interrupted(config, tmp_path / "cut", monkeypatch)
    rows = [tiny.rows_of(tmp_path / name) for name in ("whole", "cut")]
    assert len(rows[0]) == len(rows[1])
    for a, b in zip(*rows, strict=True):
        assert a == b
    assert {k: v for k, v in whole.items() if "second" not in k} == {k: v for k, v in cut.items() if "second" not in k}
    states = []
    for name in ("whole", "cut"):
        with Experiment(config, tmp_path / name) as run:
            states.append(jax.device_get((run.target, run.critics, run.guide)))
    assert tiny.same(*states)
    files = [(tmp_path / name / "agent" / "model.safetensors").read_bytes() for name in ("whole", "cut")]
    assert files[0] == files[1]


def test_a_signal_stops_after_the_tick_and_a_second_run_finishes(tmp_path, monkeypatch):
    config = tiny.config(train__steps=2)

    def killed(run, collect=phases.collect):
        os.kill(os.getpid(), signal.SIGTERM)
        return collect(run)

    with monkeypatch.context() as patch:
        patch.setattr(phases, "collect", killed)
        assert train.train(config, tmp_path) == {}
    assert [row["phase"] for row in tiny.rows_of(tmp_path)] == ["eval", "guide", "guide", "collect"]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL  # as it was
    assert train.train(config, tmp_path)["step"] == 2
    assert [row["phase"] for row in tiny.rows_of(tmp_path)][4:] == ["target", "target", "eval"]


def test_a_crash_goes_back_to_the_last_checkpoint_and_repeats_no_row(tmp_path, monkeypatch):
    config = tiny.config(train__steps=2, train__checkpoint_every=2)

    def crash(run):
        raise RuntimeError("power cut")

    with monkeypatch.context() as patch:
        patch.setattr(phases, "update_target", crash)
        with pytest.raises(RuntimeError, match="power cut"):
            train.train(config, tmp_path / "crashed")
    train.train(config, tmp_path / "crashed")
    train.train(config, tmp_path / "whole")
    assert tiny.rows_of(tmp_path / "crashed") == tiny.rows_of(tmp_path / "whole")


def test_running_a_finished_run_again_changes_nothing(tmp_path):
    config = tiny.config(train__steps=2)
    first = train.train(config, tmp_path)
    rows, agent = tiny.rows_of(tmp_path), (tmp_path / "agent" / "model.safetensors").read_bytes()
    again = train.train(config, tmp_path)
    assert again == first and tiny.rows_of(tmp_path) == rows
    assert (tmp_path / "agent" / "model.safetensors").read_bytes() == agent
    assert (tmp_path / "report.html").is_file()
    assert [row["phase"] for row in rows].count("eval") == 2


def test_another_configuration_is_refused_but_harmless_keys_may_change(tmp_path):
    train.train(tiny.config(train__steps=1, rspo__k=1), tmp_path)
    with pytest.raises(ValueError, match="optim.lr"):
        Experiment(tiny.config(train__steps=1, rspo__k=1, optim__lr=0.5), tmp_path)
    with Experiment(tiny.config(train__steps=1, rspo__k=1, train__transcripts=1), tmp_path) as run:
        assert run.progress.step == 1


def test_evaluations_come_at_the_start_every_n_steps_and_at_the_end(tmp_path):
    train.train(tiny.config(rspo__enabled=False, train__steps=5, train__eval_every=2), tmp_path)
    rows = [row for row in tiny.rows_of(tmp_path) if row["phase"] == "eval"]
    assert [row["step"] for row in rows] == [0, 2, 4, 5]
    assert sorted(p.name for p in (tmp_path / "episodes").iterdir())[0] == "eval-000000.jsonl"


def test_evaluation_does_not_change_training(tmp_path):
    states = []
    for every in (0, 1):
        path = tmp_path / str(every)
        config = tiny.config(train__steps=2, train__eval_every=every)
        train.train(config, path)
        with Experiment(config, path) as run:
            states.append(tiny.state_of(run))
    assert tiny.same(*states)


def test_the_best_checkpoint_holds_the_parameters_that_were_evaluated(tmp_path):
    config = tiny.config(rspo__enabled=False, train__steps=3, train__eval_every=1)
    train.train(config, tmp_path)
    rows = [row for row in tiny.rows_of(tmp_path) if row["phase"] == "eval"]
    best = max(row["eval/valid/success"] for row in rows)
    with Experiment(config, tmp_path) as run:
        restored = run.checkpointer.restore_best(run._saved_structure)
    step = restored.host["progress"]["step"]
    assert [row["eval/valid/success"] for row in rows if row["step"] == step] == [best]


def test_a_guide_of_its_own_tasks_and_keys_never_moves_the_targets(tmp_path):
    with Experiment(tiny.config(), tmp_path) as run:
        run.progress.phase = "target"
        before = run.key(0)
        run.progress.tick += 3
        assert np.array_equal(jax.random.key_data(before), jax.random.key_data(run.key(0)))
        run.progress.phase = "guide"
        guide = run.key(0)
        run.progress.tick += 1
        assert not np.array_equal(jax.random.key_data(guide), jax.random.key_data(run.key(0)))


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(loss__kl_target=0.1), "loss.kl_coef = 0.0: loss.kl_target multiplies it"),
        (dict(algo__dynamic_sampling=2, batch__group_size=1), "algo.dynamic_sampling = 2: .* batch.group_size"),
        (dict(algo__name="grpo", batch__group_size=1), "batch.group_size = 1: grpo .* learns nothing from one"),
        (dict(rspo__guide_data="recycled", rspo__collect="reuse"), "rspo.guide_data = 'recycled': .* rspo.collect"),
        (dict(rspo__source="self_imitate"), "rspo.source = .self_imitate.: did you mean self_imitation"),
    ],
)
def test_options_that_need_others_say_so(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        Experiment(tiny.config(**changes), tmp_path)


def test_a_directory_with_an_agent_of_another_mode_is_refused(tmp_path):
    config = tiny.config()
    (tmp_path / "agent").mkdir()
    with pytest.raises(ValueError, match="holds an agent of another mode; give another --workdir"):
        train.train(config, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["agent"]

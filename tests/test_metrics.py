"""Sinks of the metrics: what is on disk, after which call, and after a resume."""

import io
import json
import logging

import jax.numpy as jnp
import numpy as np
import pytest
from absl import logging as absl_logging
from hypothesis import given
from hypothesis import strategies as st
from tensorboardX.proto import event_pb2

from rspo_jax import metrics


def lines(workdir):
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def write(workdir, steps, **options):
    with metrics.MetricsWriter(workdir, progress=False, **options) as writer:
        for step in steps:
            writer.write({"step": step, "phase": "target", "loss": jnp.float32(step) / 4})


def scalars(workdir):
    """(tag, step, value) of every scalar in the TensorBoard files: length u64, crc u32, event, crc u32."""
    for path in sorted((workdir / "tensorboard").glob("events*")):
        data = path.read_bytes()
        while data:
            length = int.from_bytes(data[:8], "little")
            event = event_pb2.Event.FromString(data[12 : 12 + length])
            data = data[16 + length :]
            for value in event.summary.value:
                yield value.tag, event.step, value.simple_value


def test_rows_are_written_in_order_with_their_types(tmp_path):
    row = {"step": 1, "phase": "target", "loss": jnp.bfloat16(0.5), "episodes": np.int64(7), "kl": jnp.ones((1,))}
    with metrics.MetricsWriter(tmp_path, progress=False) as writer:
        writer.write(row)
        writer.write({"step": 2, "phase": "guide", "success": 0.25})
    assert lines(tmp_path) == [
        {"step": 1, "phase": "target", "loss": 0.5, "episodes": 7, "kl": 1.0},
        {"step": 2, "phase": "guide", "success": 0.25},
    ]
    assert ("loss", 1, 0.5) in list(scalars(tmp_path))
    assert ("guide/success", 2, 0.25) in list(scalars(tmp_path))


def test_a_row_is_on_disk_after_the_next_write_or_flush(tmp_path):
    writer = metrics.MetricsWriter(tmp_path, progress=False)
    writer.write({"step": 1, "phase": "target"})
    assert lines(tmp_path) == []
    writer.write({"step": 2, "phase": "target"})
    assert [row["step"] for row in lines(tmp_path)] == [1]
    assert writer.lines == 2
    assert [row["step"] for row in lines(tmp_path)] == [1, 2]
    writer.close()


@given(written=st.integers(0, 8), resume=st.integers(0, 8), cut=st.booleans())
def test_a_resume_neither_repeats_nor_skips_a_step(tmp_path_factory, written, resume, cut):
    workdir = tmp_path_factory.mktemp("run")
    write(workdir, range(1, written + 1))
    if cut:
        with (workdir / "metrics.jsonl").open("a") as file:
            file.write('{"step": 9, "pha')
    resume = min(resume, written)
    write(workdir, range(resume + 1, 10), resume_step=resume)
    assert [row["step"] for row in lines(workdir)] == list(range(1, 10))


def test_a_resume_by_lines_keeps_guide_rows_before_the_checkpoint(tmp_path):
    with metrics.MetricsWriter(tmp_path, progress=False) as writer:
        writer.write({"step": 3, "phase": "target"})
        writer.write({"step": 4, "phase": "guide", "loss": 1.0})
        position = writer.lines
        writer.write({"step": 4, "phase": "guide", "loss": 2.0})
    with metrics.MetricsWriter(tmp_path, progress=False, resume_lines=position) as writer:
        writer.write({"step": 4, "phase": "guide", "loss": 3.0})
    assert [row.get("loss") for row in lines(tmp_path)] == [None, 1.0, 3.0]


def test_tensorboard_purges_the_steps_that_a_resume_repeats(tmp_path):
    write(tmp_path, [1, 2, 3])
    write(tmp_path, [3], resume_step=2)
    newest = max((tmp_path / "tensorboard").glob("events*"), key=lambda path: path.stat().st_mtime_ns).read_bytes()
    starts = []
    while newest:
        length = int.from_bytes(newest[:8], "little")
        event = event_pb2.Event.FromString(newest[12 : 12 + length])
        newest = newest[16 + length :]
        if event.HasField("session_log"):
            starts.append(event.step)
    assert starts == [3]


def test_without_a_resume_point_earlier_rows_stay(tmp_path):
    write(tmp_path, [1, 2])
    write(tmp_path, [3])
    assert [row["step"] for row in lines(tmp_path)] == [1, 2, 3]


@pytest.mark.parametrize("value", [jnp.nan, -np.inf])
def test_a_value_that_is_not_finite_is_null_and_warned_of(tmp_path, caplog, value):
    absl_logging.get_absl_logger().addHandler(caplog.handler)
    try:
        with caplog.at_level(logging.WARNING, "absl"), metrics.MetricsWriter(tmp_path, progress=False) as writer:
            writer.write({"step": 5, "phase": "target", "policy_loss": jnp.float32(value), "kl": 0.1})
    finally:
        absl_logging.get_absl_logger().removeHandler(caplog.handler)
    assert lines(tmp_path)[0]["policy_loss"] is None
    warnings = {record.getMessage() for record in caplog.records}
    assert len(warnings) == 1
    assert "step 5" in warnings.pop() and "policy_loss" in caplog.text


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"phase": "target"}, "int step"),
        ({"step": 2, "phase": "targt"}, "phase of target"),
        ({"step": 0, "phase": "target"}, "cannot go back"),
        ({"step": 1, "phase": "target"}, "written twice"),
    ],
)
def test_a_row_without_its_place_is_refused(tmp_path, row, message):
    with metrics.MetricsWriter(tmp_path, progress=False) as writer:
        writer.write({"step": 1, "phase": "target"})
        with pytest.raises(ValueError, match=message):
            writer.write(row)


def test_an_array_is_refused_with_its_name(tmp_path):
    with metrics.MetricsWriter(tmp_path, progress=False) as writer:
        writer.write({"step": 1, "phase": "target", "kl": jnp.zeros((2, 3))})
        with pytest.raises(ValueError, match=r"metric kl has shape \(2, 3\)"):
            writer.flush()


def test_rows_after_a_broken_line_are_not_silently_lost(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\nbroken\n{"step": 2}\n')
    with pytest.raises(ValueError, match="line 2"):
        metrics.read_rows(tmp_path)


def test_metrics_of_a_directory_without_a_run_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="metrics.jsonl does not exist"):
        metrics.read_rows(tmp_path)


def test_a_log_file_gets_plain_lines(tmp_path):
    stream = io.StringIO()
    with metrics.MetricsWriter(tmp_path, total_steps=10, stream=stream) as writer:
        writer.phase("target: rollout")
        writer.write(
            {"step": 5, "phase": "target", "success": 0.5, "return": 5.0, "loss": 0.1, "tokens_per_second": 1234.4}
        )
        writer.write({"step": 5, "phase": "eval", "eval/valid/success": 0.25})
    first, second = stream.getvalue().splitlines()
    assert first.startswith("step 5/10  target  success 50.0%  return 5.00  loss 0.1000  1,234 tokens/s  eta 0:0")
    assert "valid success 25.0%" in second
    assert "\x1b" not in stream.getvalue()


def test_a_terminal_gets_a_bar(tmp_path):
    stream = io.StringIO()
    stream.isatty = lambda: True
    with metrics.MetricsWriter(tmp_path, total_steps=10, stream=stream) as writer:
        writer.phase("guide: rollout")
        writer.write({"step": 5, "phase": "target", "success": 0.5})
    assert "5/10" in stream.getvalue() and "success 50.0%" in stream.getvalue()


def test_transcripts_are_one_object_a_line(tmp_path):
    episode = {"task": "buy <b>", "success": True, "return": 10.0, "turns": [{"observation": "o\n", "action": "a"}]}
    with metrics.MetricsWriter(tmp_path, progress=False) as writer:
        path = writer.transcripts(3, "eval", [episode, episode])
    assert path == tmp_path / "episodes" / "eval-000003.jsonl"
    assert [json.loads(line) for line in path.read_text().splitlines()] == [{"step": 3, "phase": "eval", **episode}] * 2


def test_names_with_split_and_task_type_are_described():
    assert metrics.describe("eval/valid_seen/success/pick-two") == metrics.METRICS["eval/{split}/success/{type}"]
    assert metrics.describe("eval/valid/success") == metrics.METRICS["eval/{split}/success"]
    assert metrics.describe("loss") == metrics.METRICS["loss"]
    assert metrics.describe("losses") is None
    assert metrics.describe("eval/valid/succes") is None

"""Metric names and where metrics go: metrics.jsonl, TensorBoard, the terminal and sampled transcripts."""

import json
import math
import os
import pathlib
import re
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import rich.console
import rich.progress
import tensorboardX
from absl import logging

# Phases of the loop that a row can come from. Only `target` rows are steps (updates of the target agent A).
PHASES = {
    "target": "update of the target agent A",
    "guide": "update of the guide B",
    "collect": "the guide B fills the buffer D",
    "eval": "evaluation of A on the fixed panels",
    "sft": "imitation update",
    "reward_model": "fit of the process reward model",
}

# Every metric, in the words of the report. {split} is a panel, {type} a task type; both are lower-case words.
METRICS = {
    "step": "updates of the target agent A",
    "phase": "part of the loop the row comes from",
    "loop": "loops of guide, collection and target so far",
    "tick": "rollout-and-update ticks so far, of guide, collection and target",
    "episodes": "episodes sampled so far, by A and B together",
    "tokens": "tokens sampled so far, by A and B together",
    "seconds": "wall time of this run so far",
    "success": "share of the batch's episodes that succeeded",
    "return": "mean outcome return of an episode",
    "dense_return": "mean dense return of an episode",
    "score": "mean task score of an episode",
    "turns": "mean turns of an episode",
    "response_tokens": "mean sampled tokens of a turn",
    "valid_actions": "share of responses that keep the format",
    "truncated": "share of episodes cut at the turn or token limit",
    "env_errors": "episodes that ended because their environment failed; they teach nothing",
    "resampled_groups": "tasks played in place of groups whose returns did not vary",
    "repeated_states": "turns whose state another turn of the same group had already reached",
    "loss": "whole policy objective, minimised",
    "policy_loss": "clipped surrogate, on- and off-policy together",
    "policy_loss_on": "clipped surrogate over on-policy tokens",
    "policy_loss_off": "clipped surrogate over stored tokens",
    "kl": "estimated KL from the reference model per token",
    "kl_coef": "weight of the KL term",
    "entropy": "mean entropy of the sampling distribution per token, in nats",
    "approx_kl": "KL of the step, from the old to the new policy, over on-policy tokens",
    "clip_fraction_on": "share of on-policy tokens whose gradient the clip removed",
    "clip_fraction_off": "share of stored tokens whose gradient the clip removed",
    "ratio_mean": "mean probability ratio new / behaviour",
    "ratio_max": "largest probability ratio new / behaviour",
    "clip_centre_mean": "mean clip centre pi_old / pi_B over stored tokens",
    "clip_centre_max": "largest clip centre pi_old / pi_B over stored tokens",
    "effective_sample_size": "effective share of the stored tokens: 1 when all their ratios are equal",
    "sampler_gap": "largest difference between the sampler's and the trainer's log-prob of one token",
    "advantage_mean": "mean advantage over turns",
    "advantage_std": "standard deviation of the advantage over turns",
    "groups_all_fail": "share of groups in which every episode fails",
    "groups_all_success": "share of groups in which every episode succeeds",
    "groups_mixed": "share of groups with successes and failures",
    "grad_norm": "global gradient norm before clipping",
    "learning_rate": "learning rate of the policy",
    "value_loss": "loss of the value network",
    "value_clip_fraction": "share of values that are clipped",
    "value_grad_norm": "global gradient norm of the value network before clipping",
    "explained_variance": "share of the returns' variance that the value network explains",
    "value_mean": "mean value that the network predicts",
    "alpha": "share of stored trajectories in the objective",
    "buffer_episodes": "episodes in the buffer D",
    "buffer_successes": "successful episodes in the buffer D",
    "buffer_drawn": "episodes drawn from the buffer D in this step",
    "buffer_used_successes": "successful ones among them",
    "kl_guide": "KL(B || A) per token on what the guide B sampled",
    "buffer_missing": "draws that the buffer D could not serve",
    "token_accuracy": "imitation: share of tokens predicted right",
    "reward_model_loss": "process reward model: squared error of the predicted outcome while fitting",
    "reward_model_error": "process reward model: mean squared error of the predicted outcome, held-out tasks",
    "reward_model_correlation": "process reward model: correlation of predicted and true outcome, held-out tasks",
    "reward_model_auc": "process reward model: chance that a success is given more than a failure, held-out tasks",
    "tokens_per_second": "sampled tokens per second of wall time, updates included",
    "rollout_seconds": "wall time of the rollout",
    "update_seconds": "wall time of the update",
    "compilations": "programs compiled so far",
    "eval/{split}/success": "success rate on the fixed panel",
    "eval/{split}/episodes": "episodes of the fixed panel",
    "eval/{split}/return": "mean outcome return on the fixed panel",
    "eval/{split}/score": "mean task score on the fixed panel",
    "eval/{split}/turns": "mean turns on the fixed panel",
    "eval/{split}/success/{type}": "success rate on the panel's tasks of one type",
    "eval/{split}/episodes/{type}": "episodes of the panel's tasks of one type",
}

_TEMPLATES = [
    (re.compile(re.sub(r"\\{\w+\\}", r"[\\w.-]+", re.escape(name)) + r"\Z"), text) for name, text in METRICS.items()
]


def describe(name: str) -> str | None:
    """One line on what a metric is, or None for a name that METRICS does not know."""
    return next((text for template, text in _TEMPLATES if template.match(name)), None)


def read_rows(workdir: str | os.PathLike) -> list[dict]:
    """The rows of WORKDIR/metrics.jsonl; a last line that a crash cut short is left out.

    Raises:
        FileNotFoundError: there is no metrics.jsonl.
        ValueError: a line other than the last is not a JSON object.
    """
    path = pathlib.Path(workdir) / "metrics.jsonl"
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist: give the work directory of a run that has begun")
    lines = path.read_text().split("\n")
    rows = []
    for number, line in enumerate(lines[:-1], 1):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise ValueError(f"{path} line {number} is not JSON ({error}): remove that line") from None
    return rows


class MetricsWriter:
    """Writes one row per update or evaluation to every sink.

    `write` takes arrays that may still be computing: a row is fetched when the next one is written, or by `flush`, so
    that the device never waits for a print. A row is on disk as soon as it has been fetched.

    Args:
        workdir: directory of the run, made if absent.
        resume_step: rows of later steps are dropped from metrics.jsonl, so that no step is there twice. None keeps all.
        resume_lines: the same by number of rows (`lines` at the checkpoint), for checkpoints between two steps.
        total_steps: steps of the whole run, for bar and time left.
        progress: False keeps the terminal quiet.
        stream: where progress goes; a bar on a terminal, else one plain line per row.
    """

    def __init__(
        self,
        workdir: str | os.PathLike,
        *,
        resume_step: int | None = None,
        resume_lines: int | None = None,
        total_steps: int | None = None,
        progress: bool = True,
        stream=None,
    ):
        self._workdir = pathlib.Path(workdir)
        self._workdir.mkdir(parents=True, exist_ok=True)
        kept = _rewind(self._workdir / "metrics.jsonl", resume_step, resume_lines)
        self._lines = len(kept)
        self._last = max((row["step"] for row in kept), default=-1)
        self._last_target = max((row["step"] for row in kept if row.get("phase") in ("target", "sft")), default=-1)
        self._file = (self._workdir / "metrics.jsonl").open("a")
        resumes = resume_step is not None or resume_lines is not None
        self._board = tensorboardX.SummaryWriter(
            str(self._workdir / "tensorboard"), purge_step=self._last + 1 if resumes else None
        )
        self._progress = Progress(total_steps, max(self._last, 0), stream or sys.stderr) if progress else None
        self._pending: dict | None = None

    @property
    def lines(self) -> int:
        """Rows written so far, this session's and earlier ones; writes what is pending."""
        self.flush()
        return self._lines

    def phase(self, text: str) -> None:
        """Shows what the run is doing now ("guide: rollout 2/3")."""
        if self._progress:
            self._progress.phase(text)

    def write(self, row: Mapping[str, Any]) -> None:
        """Queues a row: `step` (int), `phase` (a key of PHASES) and metrics (numbers or arrays of size one).

        Raises:
            ValueError: no step, an unknown phase, a step that goes back, or a target step written twice.
        """
        step, phase = row.get("step"), row.get("phase")
        if not isinstance(step, int) or phase not in PHASES:
            raise ValueError(f"a metrics row needs an int step and a phase of {', '.join(PHASES)}, got {step}, {phase}")
        if step < self._last:
            raise ValueError(f"metrics of step {step} come after those of step {self._last}: steps cannot go back")
        if phase in ("target", "sft"):
            if step == self._last_target:
                raise ValueError(f"metrics of step {step}, phase {phase}, are written twice")
            self._last_target = step
        self._last = step
        self._write_pending()
        self._pending = dict(row)

    def transcripts(self, step: int, phase: str, episodes: Iterable[Mapping[str, Any]]) -> pathlib.Path:
        """Writes sampled episodes to episodes/PHASE-STEP.jsonl, one JSON object a line; returns the path.

        An episode has `task`, `success`, `return`, optionally `task_type`, `split` and `score`, and `turns`: a list of
        {observation, response, action, valid, reward}.
        """
        path = self._workdir / "episodes" / f"{phase}-{step:06d}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(json.dumps({"step": step, "phase": phase, **episode}) + "\n" for episode in episodes))
        return path

    def flush(self) -> None:
        """Fetches and writes what is pending: call it before a checkpoint."""
        self._write_pending()
        self._board.flush()

    def close(self) -> None:
        try:
            self.flush()
        finally:
            self._file.close()
            self._board.close()
            if self._progress:
                self._progress.close()

    def __enter__(self) -> "MetricsWriter":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def _write_pending(self) -> None:
        if self._pending is None:
            return
        pending, self._pending = self._pending, None
        row = {name: _scalar(name, value) for name, value in pending.items()}
        bad = [name for name, value in row.items() if isinstance(value, float) and not math.isfinite(value)]
        for name in bad:
            logging.warning("step %d, phase %s: %s is %s", row["step"], row["phase"], name, row[name])
        # JSON has no NaN: null in the file, a gap in TensorBoard.
        self._file.write(json.dumps({name: None if name in bad else value for name, value in row.items()}) + "\n")
        self._file.flush()
        self._lines += 1
        prefix = "" if row["phase"] in ("target", "eval") else f"{row['phase']}/"
        for name, value in row.items():
            if name not in ("step", "phase", *bad) and isinstance(value, int | float):
                self._board.add_scalar(prefix + name, value, row["step"])
        if self._progress:
            self._progress.row(row)


class Progress:
    """Live progress: a bar on a terminal, plain lines elsewhere (a log file, a pipe)."""

    def __init__(self, total: int | None, first: int, stream):
        self._total, self._first, self._stream = total, first, stream
        self._start = time.monotonic()
        self._bar = None
        if stream.isatty():
            # Few columns and one refresh a second: the bar shares its cores with the training.
            self._bar = rich.progress.Progress(
                rich.progress.TextColumn("{task.fields[phase]:<18}"),
                rich.progress.BarColumn(bar_width=24),
                rich.progress.MofNCompleteColumn(),
                rich.progress.TextColumn("{task.fields[text]}"),
                console=rich.console.Console(file=stream),
                refresh_per_second=1,
            )
            self._task = self._bar.add_task("", total=total, completed=first, phase="starting", text="")
            self._bar.start()

    def phase(self, text: str) -> None:
        if self._bar:
            self._bar.update(self._task, phase=text)

    def row(self, row: Mapping[str, Any]) -> None:
        """Shows a fetched row. Bar and time left count steps, so only `target` and `sft` rows move them."""
        text = progress_text(row, self._left(row["step"]))
        if not self._bar:
            of = f"/{self._total}" if self._total else ""
            print(f"step {row['step']}{of}  {row['phase']:<6}  {text}", file=self._stream, flush=True)
        elif row["phase"] in ("target", "sft"):
            self._bar.update(self._task, completed=row["step"], phase=row["phase"], text=text)
        else:
            self._bar.update(self._task, phase=row["phase"], text=text)

    def close(self) -> None:
        if self._bar:
            self._bar.stop()

    def _left(self, step: int) -> float | None:
        """Seconds until the last step at the mean pace of this session, or None where unknown."""
        done = step - self._first
        if not self._total or done <= 0 or step >= self._total:
            return None
        return (time.monotonic() - self._start) / done * (self._total - step)


def progress_text(row: Mapping[str, Any], seconds_left: float | None = None) -> str:
    """One short line on a row: success, return, loss, tokens per second, time left; what the row lacks is left out."""
    formats = {"success": "success {:.1%}", "return": "return {:.2f}", "loss": "loss {:.4f}"}
    parts = [form.format(row[name]) for name, form in formats.items() if row.get(name) is not None]
    for name, value in row.items():
        match = re.fullmatch(r"eval/([\w.-]+)/success", name)
        if match and value is not None:
            parts.append(f"{match[1]} success {value:.1%}")
    if row.get("tokens_per_second"):
        parts.append(f"{row['tokens_per_second']:,.0f} tokens/s")
    if seconds_left is not None:
        minutes, seconds = divmod(int(seconds_left), 60)
        hours, minutes = divmod(minutes, 60)
        parts.append(f"eta {hours}:{minutes:02d}:{seconds:02d}" if hours else f"eta {minutes}:{seconds:02d}")
    return "  ".join(parts)


def _scalar(name: str, value: Any) -> str | bool | int | float | None:
    """A JSON value of a Python, NumPy or JAX scalar; waits for the device if it must."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    array = np.asarray(value)
    if array.size != 1:
        raise ValueError(f"metric {name} has shape {array.shape}: give its mean, or another single number")
    if array.dtype == bool:
        return bool(array.reshape(()))
    return int(array.reshape(())) if np.issubdtype(array.dtype, np.integer) else float(array.reshape(()))


def _rewind(path: pathlib.Path, step: int | None, lines: int | None) -> list[dict]:
    """Drops the rows after a resume point, and a line that a crash cut short; returns the rows kept."""
    if not path.exists():
        return []
    rows = read_rows(path.parent)[:lines]
    if step is not None:
        rows = [row for row in rows if row["step"] <= step]
    # Written beside and moved: a crash in the middle loses nothing.
    temporary = path.with_suffix(".tmp")
    temporary.write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.replace(temporary, path)
    return rows

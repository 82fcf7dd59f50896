"""A run: its parts, its state, and how both survive an interrupt. The algorithm itself is in train.py and phases.py."""

import dataclasses
import pathlib
import signal
import time

import jax
import numpy as np
from absl import logging

from rspo_jax import algos, build, evaluate, process_reward, rollout
from rspo_jax.buffer import Buffer
from rspo_jax.checkpoint import Checkpointer, abstract
from rspo_jax.configuration import check_same_config, save_config
from rspo_jax.critic import Critic, turn_values
from rspo_jax.learner import Learner, check_micro_rows
from rspo_jax.metrics import MetricsWriter
from rspo_jax.models import hf
from rspo_jax.packing import Shapes, from_arrays, to_arrays
from rspo_jax.phases import first_phase
from rspo_jax.tasks import TaskStream
from rspo_jax.trajectory import Trajectory
from rspo_jax.validation import validate

# Keys that a resume may change: they do not change what a step computes.
MAY_DIFFER = ("train.progress", "train.checkpoint_every", "train.transcripts", "env.workers", "env.timeout")

_GUIDE_KEYS = 1 << 20  # offset of the keys of ticks that belong to no update of the target


@dataclasses.dataclass
class Progress:
    """Where a run stands; plain numbers, saved with every checkpoint.

    step: updates of the target; phase and inner: the next tick of the loop; tick: rollout-and-update ticks so far;
    tasks: positions in the two task streams; successes: the target's in this loop; buffer_successes: those in the last
    D; evaluated: step of the last evaluation; saves: checkpoints so far.
    """

    phase: str
    kl_coef: float
    step: int = 0
    loop: int = 0
    inner: int = 0
    tick: int = 0
    episodes: int = 0
    tokens: int = 0
    tasks: dict[str, int] = dataclasses.field(default_factory=lambda: {"target": 0, "guide": 0})
    successes: int = 0
    buffer_successes: int = 0
    loops_kept: int = 0
    evaluated: int = -1
    saves: int = 0
    seconds: float = 0.0


class Experiment:
    """Everything a training run needs, restored from its work directory where that holds a checkpoint."""

    def __init__(self, config, workdir: str | pathlib.Path):
        validate(config)
        self.config, self.workdir = config, pathlib.Path(workdir)
        self.suite = build.make_suite(config)
        evaluate.check_splits(self.suite, [*config.eval.splits, *config.eval.final_splits])
        resuming = check_same_config(self.workdir, config, MAY_DIFFER)
        if (self.workdir / "agent").is_dir() and not (self.workdir / "checkpoints").is_dir():
            raise ValueError(f"{self.workdir} holds an agent of another mode; give another --workdir")
        self.mesh = build.make_mesh(config)
        check_micro_rows(config, self.mesh)  # before minutes are spent on reading a large model
        self._make_agents(config)
        train = self.suite.splits["train"]
        self.streams = {name: TaskStream(train, config.seed, stream=i) for i, name in enumerate(("target", "guide"))}
        self.settings = build.rollout_settings(config)
        self.eval_settings = build.rollout_settings(config, evaluation=True)
        self.scorer = process_reward.make_scorer(config, self.policy)
        self.options = algos.Options(
            norm=config.algo.norm, gamma=config.algo.gamma, lam=config.algo.lam, omega=config.algo.omega
        )
        self._advantage = jax.jit(algos.ADVANTAGES[config.algo.name], static_argnums=1)

        self.progress = Progress(phase=first_phase(config), kl_coef=config.loss.kl_coef)
        # One set of sizes for each use: what the guide needs never changes the arrays that the target's sums run over.
        self.shapes = {name: Shapes() for name in ("target", "target_old", "guide", "guide_old", "stored")}
        self.buffer: Buffer | None = None  # D
        self.recent: list[Trajectory] = []  # the target's last rollouts, where the coming loop reads them
        self.guide_rollouts: list[Trajectory] = []  # the guide's rollouts of this loop, where D is made of them
        self.last_metric: float | None = None  # of the parameters as they are now
        self.stop_requested = False

        save_config(self.workdir, config)
        self.checkpointer = Checkpointer(self.workdir / "checkpoints")
        lines = self._restore() if resuming else None
        self.pool = build.make_pool(config, self.suite, self.settings.rows)
        self.writer = MetricsWriter(
            self.workdir, resume_lines=lines, total_steps=config.train.steps, progress=config.train.progress
        )
        self._started = time.monotonic() - self.progress.seconds
        self._logged_tokens = self.progress.tokens
        self._previous_handlers = {}

    def _make_agents(self, config) -> None:
        """Policy, target, reference and critic; the guide is born in the loop."""
        self.policy, params = build.make_policy(config, self.mesh)
        self.learner = Learner(self.policy, config, build.loss_options(config), self.mesh)
        self.target, self.guide = self.learner.init(params), None
        self.critic = Critic(self.policy, self.learner, config) if config.algo.name == "ppo" else None
        self.critics = {"target": self.critic.init(self.target.params)} if self.critic else {}
        self.uses_reference = config.loss.kl_coef > 0 or config.loss.kl_target > 0
        # Under adapters the reference is the bare base, which `None` stands for.
        self.reference = params if self.uses_reference and self.policy.base is None else None

    # What the phases ask for.

    def key(self, purpose: int) -> jax.Array:
        """The key of one purpose at this tick. The target's keys depend on its own step only, so that no phase of the
        guide changes what the target samples."""
        progress = self.progress
        position = progress.step if progress.phase == "target" else _GUIDE_KEYS + progress.tick
        return jax.random.fold_in(jax.random.fold_in(jax.random.key(self.config.seed), position), purpose)

    def assemble(self, episodes) -> Trajectory:
        """A Trajectory with process rewards and anchor states, as the configuration has them."""
        config = self.config
        trajectory = rollout.assemble(
            episodes,
            None,
            turns=config.env.max_turns,
            invalid_penalty=config.algo.invalid_penalty,
            similarity=config.algo.similarity if config.algo.similarity < 1 else None,
        )
        return trajectory.replace(dense_reward=np.asarray(self.scorer(episodes, trajectory), np.float32))

    def advantage(self, trajectory: Trajectory, values) -> np.ndarray:
        """f32[B, T] of the configured algorithm; `rows` plays no part in it."""
        return np.asarray(self._advantage(trajectory.replace(rows=None), self.options, values))

    def critic_values(self, name: str, trajectory: Trajectory, actions) -> np.ndarray | None:
        """Values f32[B, T] of an agent's critic, or None where the algorithm has none."""
        if self.critic is None:
            return None
        values = self.critic.values(self.critics[name], getattr(self, name).params, actions, self.shapes["stored"])
        return turn_values(values, actions, trajectory.reward.shape)

    @staticmethod
    def on_host(trajectory: Trajectory) -> Trajectory:
        return jax.tree.map(np.asarray, trajectory)

    # Life of the guide and of D.

    def reset_guide(self) -> None:
        """B <- copy of A with its optimizer state and critic, unless the reset rule keeps the old guide."""
        rspo, progress = self.config.rspo, self.progress
        keep = self.guide is not None and algos.should_keep_guide(
            rspo.guide_reset,
            progress.buffer_successes,
            progress.successes,
            rspo.min_successes,
            progress.loops_kept,
            rspo.guide_max_loops,
        )
        progress.loops_kept = progress.loops_kept + 1 if keep else 0
        progress.successes = 0
        if not keep:
            self.guide = self.learner.copy(self.target)
            if self.critic:
                self.critics["guide"] = self.learner.copy(self.critics["target"])

    def end_loop(self) -> None:
        """D <- empty; a guide that will not be kept is dropped with its optimizer state and critic."""
        self.progress.loop += 1
        self.buffer, self.guide_rollouts = None, []
        if self.config.rspo.guide_reset == "always":
            self.guide = None
            self.critics.pop("guide", None)

    # Rows, evaluation, checkpoints.

    def log(self, phase: str, metrics: dict) -> None:
        progress = self.progress
        progress.seconds = time.monotonic() - self._started
        row = {
            "step": progress.step,
            "phase": phase,
            "loop": progress.loop,
            "tick": progress.tick,
            "episodes": progress.episodes,
            "tokens": progress.tokens,
            "seconds": progress.seconds,
        }
        if "rollout_seconds" in metrics:
            spent = metrics["rollout_seconds"] + metrics.get("update_seconds", 0.0)
            new_tokens, self._logged_tokens = progress.tokens - self._logged_tokens, progress.tokens
            metrics = metrics | {"tokens_per_second": new_tokens / max(spent, 1e-9)}
        self.writer.write(row | metrics)

    def evaluation_due(self) -> bool:
        """At the start, every config.train.eval_every steps and at the end; once per step."""
        train, progress = self.config.train, self.progress
        if progress.evaluated == progress.step:
            return False
        last = progress.step >= train.steps
        return progress.evaluated < 0 or last or bool(train.eval_every and progress.step % train.eval_every == 0)

    def evaluate(self) -> None:
        """Plays the fixed panels with the target; writes the row and some transcripts."""
        config, progress = self.config, self.progress
        self.writer.phase("evaluation")
        ends = progress.step in (0, config.train.steps)
        splits = [*config.eval.splits, *(config.eval.final_splits if ends else ())]
        params = self.policy.merged(self.target.params)
        metrics, played = evaluate.evaluate(
            self.policy,
            params,
            self.pool,
            self.suite,
            splits,
            config.eval.episodes,
            self.eval_settings,
            repeats=config.eval.repeats,
        )
        progress.evaluated = progress.step
        self.log("eval", metrics)
        episodes = played[splits[0]][: config.train.transcripts]
        self.writer.transcripts(progress.step, "eval", [rollout.transcript(e, splits[0]) for e in episodes])
        self.last_metric = metrics[f"eval/{splits[0]}/success"]

    def checkpoint_due(self) -> bool:
        """After so many ticks, and before stopping; an evaluation that follows at once is worth waiting for."""
        regular = self.progress.tick % self.config.train.checkpoint_every == 0
        return self.stop_requested or (regular and not self.evaluation_due())

    def checkpoint(self) -> None:
        """Saves everything that a resume in this very phase needs."""
        self.progress.saves += 1
        state = {"target": self.target, "critics": self.critics}
        if self.guide is not None:
            state["guide"] = self.guide
        host = {
            "progress": dataclasses.asdict(self.progress),
            "shapes": {name: dict(shapes) for name, shapes in self.shapes.items()},
            "lines": self.writer.lines,
            "has_guide": self.guide is not None,
            "buffer": None if self.buffer is None else self.buffer.to_arrays(),
            "recent": [to_arrays(t) for t in self.recent],
            "guide_rollouts": [to_arrays(t) for t in self.guide_rollouts],
            "scorer": self.scorer.state,
        }
        self.checkpointer.save(self.progress.saves, state, host, metric=self.last_metric)
        self.last_metric = None

    def _restore(self) -> int:
        """Reads the last checkpoint, if any; returns the number of metrics rows that belong to it."""
        restored = self.checkpointer.restore_latest(self._saved_structure)
        if restored is None:
            return 0
        state, host = restored.state, restored.host
        self.target, self.critics, self.guide = state["target"], state["critics"], state.get("guide")
        self.progress = Progress(**host["progress"])
        self.shapes = {name: Shapes(sizes) for name, sizes in host["shapes"].items()}
        self.buffer = None if host["buffer"] is None else Buffer.from_arrays(host["buffer"])
        self.recent = [from_arrays(t) for t in host["recent"]]
        self.guide_rollouts = [from_arrays(t) for t in host["guide_rollouts"]]
        self.scorer.state = host["scorer"]
        logging.info("resuming at step %d, phase %s", self.progress.step, self.progress.phase)
        return host["lines"]

    def _saved_structure(self, host: dict):
        """Shapes and shardings of the saved state; the guide and its critic are as the target and its own."""
        like = {"target": self.target, "critics": dict(self.critics)}
        if host["has_guide"]:
            like["guide"] = self.target
            if self.critic:
                like["critics"]["guide"] = self.critics["target"]
        return abstract(like)

    def save_agent(self, name: str = "agent") -> pathlib.Path:
        """Writes the target as a Hugging Face directory, adapters merged."""
        path = self.workdir / name
        policy = self.policy
        params = policy.merged(self.target.params)
        hf.save_hf(path, policy.config, params, policy.tokenizer, end_token=policy.chat.end_token)
        return path

    # A signal stops the run after the tick in progress.

    def __enter__(self) -> "Experiment":
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._previous_handlers[number] = signal.signal(number, self._request_stop)
            except ValueError:  # not the main thread: interrupts arrive elsewhere
                break
        return self

    def _request_stop(self, number, frame) -> None:
        del frame
        if self.stop_requested:
            raise KeyboardInterrupt
        logging.warning("signal %d: stopping after this tick; a second signal stops at once", number)
        self.stop_requested = True

    def __exit__(self, *_) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)
        self.writer.close()
        self.checkpointer.close()
        self.pool.close()

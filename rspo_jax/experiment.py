"""A run: its parts, its state, and how both survive an interrupt. The algorithm itself is in train.py and phases.py."""

import dataclasses
import pathlib
import signal
import time

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from rspo_jax import algos, build, evaluate, process_reward, rollout
from rspo_jax.checkpoint import Checkpointer, abstract
from rspo_jax.configuration import check_same_config, save_config
from rspo_jax.critic import Critic, turn_values
from rspo_jax.learner import Learner
from rspo_jax.metrics import MetricsWriter
from rspo_jax.models import hf
from rspo_jax.packing import Shapes, gather_actions
from rspo_jax.tasks import TaskStream
from rspo_jax.trajectory import TokenRows, Trajectory

# Keys that a resume may change: they do not change what a step computes.
MAY_DIFFER = ("train.progress", "train.checkpoint_every", "train.transcripts", "env.workers", "env.timeout")


@dataclasses.dataclass
class Progress:
    """Where a run stands; plain numbers, saved with every checkpoint.

    step: updates of the target; phase and inner: the next tick of the loop; tick: rollout-and-update ticks so far;
    target_tasks, guide_tasks: positions in the two task streams; successes: the target's in this loop.
    """

    step: int = 0
    loop: int = 0
    phase: str = "guide"
    inner: int = 0
    tick: int = 0
    episodes: int = 0
    tokens: int = 0
    target_tasks: int = 0
    guide_tasks: int = 0
    successes: int = 0
    loops_kept: int = 0
    kl_coef: float = 0.0
    evaluated: int = -1
    seconds: float = 0.0


class Experiment:
    """Everything a training run needs, restored from its work directory where that holds a checkpoint."""

    def __init__(self, config, workdir: str | pathlib.Path):
        build.validate(config)
        self.config, self.workdir = config, pathlib.Path(workdir)
        self.suite = build.make_suite(config)
        evaluate.check_splits(self.suite, [*config.eval.splits, *config.eval.final_splits], config.eval.episodes)
        resuming = check_same_config(self.workdir, config, MAY_DIFFER)
        self.mesh = build.make_mesh(config)
        self.policy, params = build.make_policy(config, self.mesh)
        self.settings = build.rollout_settings(config)
        self.eval_settings = build.rollout_settings(config, evaluation=True)
        self.learner = Learner(self.policy, config, build.loss_options(config), self.mesh)
        self.scorer = process_reward.make_scorer(config, self.policy)
        self.options = algos.Options(
            norm=config.algo.norm, gamma=config.algo.gamma, lam=config.algo.lam, omega=config.algo.omega
        )
        self._advantage = jax.jit(algos.ADVANTAGES[config.algo.name], static_argnums=1)
        train = self.suite.splits["train"]
        self.target_tasks = TaskStream(train, config.seed, stream=0)
        self.guide_tasks = TaskStream(train, config.seed, stream=1)

        self.progress = Progress(kl_coef=config.loss.kl_coef, phase="guide" if config.rspo.enabled else "target")
        self.shapes = Shapes()
        # Under LoRA the reference is the base without an adapter; else a copy, because the target's buffers are donated.
        self.reference = None if self.policy.base is not None else jax.tree.map(jnp.copy, params)
        self.target, self.guide = self.learner.init(params), None
        self.critic = Critic(self.policy, self.learner, config) if config.algo.name == "ppo" else None
        self.critics = {"target": self.critic.init(params)} if self.critic else {}
        self.buffer: tuple[Trajectory, np.ndarray] | None = None  # D: trajectories and their advantages
        self.draws: np.ndarray | None = None  # which of D each coming target update draws
        self.recent: list[Trajectory] = []  # the target's last episodes
        self.last_guide: Trajectory | None = None
        self.buffer_successes = 0
        self.transcripts: list[rollout.Episode] = []
        self.stop_requested = False

        save_config(self.workdir, config)
        self.checkpointer = Checkpointer(self.workdir / "checkpoints")
        lines = self._restore() if resuming else None
        self.pool = build.make_pool(config, self.suite, self.settings.rows)
        self.writer = MetricsWriter(
            self.workdir, resume_lines=lines, total_steps=config.train.steps, progress=config.train.progress
        )
        self._started = time.monotonic() - self.progress.seconds
        self._previous_handlers = {}

    # What the phases ask for.

    @property
    def kl_coef(self) -> float:
        return self.progress.kl_coef

    def key(self, purpose: int) -> jax.Array:
        """The key of one purpose at this tick. The target's keys depend on its own step only, so that no phase of the
        guide changes what the target samples."""
        position = self.progress.step if self.progress.phase == "target" else (1 << 20) + self.progress.tick
        key = jax.random.fold_in(jax.random.key(self.config.seed), position)
        return jax.random.fold_in(key, purpose)

    def assemble(self, episodes) -> Trajectory:
        """A Trajectory with process rewards and anchor states, as the configuration has them."""
        algo = self.config.algo
        states = None
        if algo.name == "gigpo" and algo.similarity < 1:
            states = algos.state_ids(
                [[t.anchor for t in e.turns] for e in episodes], [e.group for e in episodes], algo.similarity
            )
        trajectory = rollout.assemble(episodes, None, invalid_penalty=algo.invalid_penalty, states=states)
        return trajectory.replace(dense_reward=self.scorer(episodes, trajectory))

    def advantage(self, trajectory: Trajectory, values) -> np.ndarray:
        """f32[B, T] of the configured algorithm; `rows` plays no part in it."""
        return np.asarray(self._advantage(trajectory.replace(rows=None), self.options, values))

    def critic_values(self, name: str, trajectory: Trajectory, actions=None) -> np.ndarray | None:
        """Values f32[B, T] of an agent's critic, or None where the algorithm has none."""
        if self.critic is None:
            return None
        actions = gather_actions(trajectory.rows) if actions is None else actions
        values = self.critic.values(self.critics[name], getattr(self, name).params, actions)
        return turn_values(values, actions, trajectory.reward.shape)

    @staticmethod
    def on_host(trajectory: Trajectory) -> Trajectory:
        return jax.tree.map(np.asarray, trajectory)

    # Life of the guide.

    def reset_guide(self) -> None:
        """B <- copy of A with its optimizer state and critic, unless the reset rule keeps the old guide."""
        rspo, progress = self.config.rspo, self.progress
        keep = self.guide is not None and algos.should_keep_guide(
            rspo.guide_reset,
            self.buffer_successes,
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
            metrics = metrics | {"tokens_per_second": self._new_tokens() / max(spent, 1e-9)}
        self.writer.write(row | metrics)

    def _new_tokens(self) -> int:
        before, self._logged_tokens = getattr(self, "_logged_tokens", 0), self.progress.tokens
        return self.progress.tokens - before

    def evaluate(self, *, final: bool = False) -> dict:
        """Plays the fixed panels with the target, once per step at most; writes the row and some transcripts."""
        config, progress = self.config, self.progress
        if progress.evaluated == progress.step:
            return {}
        progress.evaluated = progress.step
        splits = [*config.eval.splits, *(config.eval.final_splits if final else ())]
        metrics, played = evaluate.evaluate(
            self.policy,
            self.policy.merged(self.target.params),
            self.pool,
            self.suite,
            splits,
            config.eval.episodes,
            self.eval_settings,
        )
        self.log("eval", metrics)
        episodes = played[splits[0]][: config.train.transcripts]
        self.writer.transcripts(progress.step, "eval", [transcript(e, splits[0]) for e in episodes])
        self.last_metric = metrics[f"eval/{splits[0]}/success"]
        return metrics

    last_metric: float | None = None

    def checkpoint(self) -> None:
        """Saves everything that a resume in this very phase needs."""
        state = {"target": self.target, "critics": self.critics}
        if self.guide is not None:
            state["guide"] = self.guide
        host = {
            "progress": dataclasses.asdict(self.progress),
            "shapes": dict(self.shapes),
            "lines": self.writer.lines,
            "has_guide": self.guide is not None,
            "buffer_successes": self.buffer_successes,
            "draws": self.draws,
            "buffer": None
            if self.buffer is None
            else {"trajectory": pack(self.buffer[0]), "advantage": self.buffer[1]},
            "recent": [pack(t) for t in self.recent],
            "last_guide": None if self.last_guide is None else pack(self.last_guide),
        }
        self.checkpointer.save(self.progress.tick, state, host, metric=self.last_metric)
        self.last_metric = None

    def _restore(self) -> int | None:
        """Reads the last checkpoint, if any; returns the metrics rows to keep (None: all, there was none)."""
        like = {"target": self.target, "critics": dict(self.critics)}
        with_guide = like | {"guide": self.target}
        if self.critic:
            with_guide["critics"] = like["critics"] | {"guide": self.critics["target"]}
        restored = None
        for candidate in (with_guide, like):
            try:
                restored = self.checkpointer.restore_latest(abstract(candidate))
                break
            except ValueError:
                if candidate is like:
                    raise
        if restored is None:
            return 0
        state, host = restored.state, restored.host
        self.target, self.critics, self.guide = state["target"], state["critics"], state.get("guide")
        self.progress = Progress(**host["progress"])
        self.shapes = Shapes(host["shapes"])
        self.buffer_successes, self.draws = host["buffer_successes"], host["draws"]
        if host["buffer"] is not None:
            self.buffer = (unpack(host["buffer"]["trajectory"]), host["buffer"]["advantage"])
        self.recent = [unpack(t) for t in host["recent"]]
        self.last_guide = None if host["last_guide"] is None else unpack(host["last_guide"])
        logging.info("resuming at step %d, phase %s", self.progress.step, self.progress.phase)
        return host["lines"]

    def save_agent(self, name: str = "agent") -> pathlib.Path:
        """Writes the target as a Hugging Face directory, adapters merged."""
        path = self.workdir / name
        hf.save_hf(path, self.policy.config, self.policy.merged(self.target.params), self.policy.tokenizer)
        return path

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


def transcript(episode: rollout.Episode, split: str) -> dict:
    """One episode as a JSON object for people."""
    return {
        "task": episode.task_text,
        "task_type": episode.task_type,
        "split": split,
        "success": episode.won,
        "return": episode.reward,
        "score": episode.score,
        "turns": [
            {
                "observation": t.observation,
                "response": t.response,
                "action": t.action,
                "valid": t.valid,
                "reward": t.reward,
            }
            for t in episode.turns
        ],
    }


def pack(trajectory: Trajectory) -> dict:
    """A trajectory as a dict of NumPy arrays, for a checkpoint."""
    level = {
        f.name: np.asarray(getattr(trajectory, f.name)) for f in dataclasses.fields(trajectory) if f.name != "rows"
    }
    rows = {f.name: np.asarray(getattr(trajectory.rows, f.name)) for f in dataclasses.fields(trajectory.rows)}
    return {"level": level, "rows": rows}


def unpack(stored: dict) -> Trajectory:
    """The inverse of `pack`."""
    return Trajectory(**stored["level"], rows=TokenRows(**stored["rows"]))

"""A whole agent small enough for tests, and a text environment that it can learn: nothing is read from disk."""

import functools
import pathlib
import tempfile

import gymnasium
import jax
import numpy as np
import optax

from configs import default
from rspo_jax import algos, build, envs, models, packing, rollout
from rspo_jax.configuration import set_value
from rspo_jax.envs.base import TextSpace
from rspo_jax.envs.pool import EnvPool
from rspo_jax.learner import Learner
from rspo_jax.metrics import read_rows
from rspo_jax.models.hf import save_hf
from rspo_jax.models.tokenizer import train_tokenizer
from rspo_jax.train import tick
from rspo_jax.update import LossBatch

COLOURS = ("red", "blue", "green")

# Compiling costs more than anything else in these tests; programs are kept from one to the next.
jax.config.update("jax_compilation_cache_dir", str(pathlib.Path(tempfile.gettempdir()) / "rspo_jax_test_programs"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)


class Buttons(gymnasium.Env):
    """Press the button of the task's colour, then open the door, in three turns at most. The seed is the task.

    A wrong button does nothing; `look` shows another page and helps nothing either.
    """

    observation_space = action_space = TextSpace()

    def reset(self, *, seed=None, options=None):
        self.goal = COLOURS[(seed or 0) % 3]
        self.turns, self.pressed, self.looks = 0, False, 0
        return self._page(), self._info(False)

    def step(self, action):
        self.turns += 1
        won = self.pressed and action == "open"
        self.pressed |= action == self.goal
        self.looks += action == "look"
        return self._page(), 10.0 * won, won, self.turns >= 3, self._info(won)

    def _page(self):
        return ("door" if self.pressed else "buttons") + " again" * (self.looks % 2)

    def _info(self, won):
        return {
            "task": f"press {self.goal}",
            "admissible_actions": ["open", "look"] if self.pressed else [*COLOURS, "look"],
            "won": won,
            "score": float(won),
            "progress": (self.pressed + won) / 2,
            "anchor": self._page(),
            "task_type": self.goal,
        }


class Broken(Buttons):
    """Raises in the first step of tasks with an even seed."""

    def reset(self, *, seed=None, options=None):
        self.broken = (seed or 0) % 2 == 0
        return super().reset(seed=seed)

    def step(self, action):
        if self.broken:
            raise OSError("the wire is cut")
        return super().step(action)


class Dead(Buttons):
    """Never starts."""

    def reset(self, *, seed=None, options=None):
        if seed:  # the first task is what the suite looks at
            raise OSError("no power")
        return super().reset(seed=seed)


class Unlisted(Buttons):
    """Lists no admissible actions."""

    def _info(self, won):
        return {key: value for key, value in super()._info(won).items() if key != "admissible_actions"}


gymnasium.register("Unlisted-v0", entry_point="tiny:Unlisted")
gymnasium.register("Dead-v0", entry_point="tiny:Dead")
gymnasium.register("Buttons-v0", entry_point="tiny:Buttons")
gymnasium.register("Broken-v0", entry_point="tiny:Broken")


@functools.cache
def tokenizer():
    texts = ["press red\nbuttons again", "press blue\ndoor again", "press green\nsame page"]
    return train_tokenizer(texts, [*COLOURS, "press", "buttons", "door", "again", "open", "look", "same page"], 300)


def model_config() -> models.ModelConfig:
    return models.ModelConfig(
        vocab_size=len(tokenizer()),
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=512,
        model_type="qwen3",
        qkv_bias=False,
        qk_norm=True,
    )


def params(seed: int = 0):
    """Parameters far enough from 0 that actions have very different probabilities."""
    return jax.tree.map(lambda x: 3.0 * x, models.init(jax.random.key(seed), model_config()))


@functools.cache
def agent_directory() -> pathlib.Path:
    path = pathlib.Path(tempfile.mkdtemp(prefix="rspo_jax_tiny_"))
    save_hf(path, model_config(), params(), tokenizer())
    return path


def config(**changes):
    """The default tree at this scale; keys of `changes` have two underscores for a dot (rspo__alpha=0.5)."""
    tree = default.get_config()
    values = {
        "env__id": "tiny:Buttons-v0",
        "env__max_turns": 3,
        "env__num_train": 64,
        "env__num_valid": 12,
        "context__max_tokens": 64,
        "context__max_prompt": 48,
        "decoding__constrain": True,
        "decoding__max_response": 6,
        "decoding__eval_temperature": 1.0,
        "batch__tasks": 4,
        "batch__group_size": 2,
        "algo__norm": "std",
        "optim__lr": 1e-2,
        "optim__weight_decay": 0.0,
        "critic__lr": 1e-2,
        "loss__kl_coef": 0.0,
        "rspo__alpha": 0.5,
        "rspo__k": 2,
        "rspo__collect_tasks": 4,
        "train__steps": 4,
        "train__eval_every": 0,
        "train__checkpoint_every": 100,
        "train__progress": False,
        "eval__episodes": 8,
    } | changes
    for key, value in values.items():
        set_value(tree, key.replace("__", "."), value)
    if not tree.model.path:
        tree.model.path = str(agent_directory())
    return tree


def pool(rows: int = 8, workers: int = 0, env_id: str = "tiny:Buttons-v0") -> EnvPool:
    """So many environments."""
    return EnvPool(envs.gym_suite(env_id, num_train=4, num_valid=4).make_env, rows, workers)


def policy(tree=None, seed: int = 0):
    """(Policy, parameters)."""
    tree = tree or config()
    weights = jax.tree.map(lambda x: x.astype(tree.model.dtype), params(seed))
    return build.assemble_policy(tree, build.make_mesh(tree), model_config(), tokenizer(), weights)


def learner(tree=None) -> Learner:
    tree = tree or config()
    own, _ = policy(tree)
    return Learner(own, tree, build.loss_options(tree), own.mesh)


def play(tree, parts=None, tasks: int = 4, group: int = 2, seed: int = 5, rows: int = 8, workers: int = 0):
    """Episodes of tasks 0, 1, ... under the tree's settings. parts: (Policy, parameters), else those of `policy`."""
    own, weights = parts or policy(tree)
    settings = build.rollout_settings(tree)
    with pool(rows, workers, tree.env.id) as environments:
        todo = [{"seed": s} for s in range(tasks)]
        return rollout.play(own, weights, environments, todo, jax.random.key(seed), group, settings)


def loss_batch(tree, parts=None, off_policy: int = 3, alpha: float = 0.25, seed: int = 0, tasks: int = 4) -> LossBatch:
    """A batch of real rows with random advantages; the last `off_policy` rows pass for another policy's."""
    trajectory = rollout.assemble(play(tree, parts, tasks), None)
    actions = packing.gather_actions(trajectory.rows)
    N, M = actions.target.shape
    off = np.arange(N) >= N - off_policy
    rng = np.random.default_rng(seed)
    noise = np.where(actions.action_mask, rng.normal(0, 0.3, (4, N, M)), 0).astype(np.float32)
    off_B = np.zeros(len(trajectory.success), bool)
    off_B[actions.episode[off]] = True
    behaviour = np.where(off[:, None], actions.logp + noise[0], actions.logp)
    return LossBatch(
        actions=actions.replace(logp=behaviour),
        advantage=noise[1] * 3,
        weight=np.asarray(algos.token_weights(actions, off_B, alpha=alpha)),
        logp_old=actions.logp,
        logp_behaviour=behaviour,
        logp_ref=actions.logp + noise[3],
        off_policy=off,
    )


def gradient_of(state):
    """The first moment of AdamW: after one step from fresh, a tenth of the (clipped) gradient."""
    return jax.device_get(optax.tree_utils.tree_get(state.opt_state, "mu"))


def state_of(run, name: str = "target"):
    """An agent of a run on the host: parameters, optimizer and counter."""
    return jax.device_get(getattr(run, name))


def same(a, b) -> bool:
    """Whether two trees of arrays are equal bit for bit."""
    return jax.tree.all(jax.tree.map(lambda x, y: np.array_equal(x, y), a, b))


def ticks(run, count: int) -> None:
    """So many ticks of the loop."""
    for _ in range(count):
        tick(run)


WALL_TIME = ("seconds", "tokens_per_second", "rollout_seconds", "update_seconds")


def rows_of(workdir) -> list[dict]:
    """The metrics rows without what depends on the clock."""
    return [{k: v for k, v in row.items() if k not in WALL_TIME} for row in read_rows(workdir)]

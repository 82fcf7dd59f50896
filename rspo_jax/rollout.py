"""The Python-side environment loop: a policy plays tasks, and the result is a Trajectory.

Randomness is one key per episode, folded with the turn; so an episode does not depend on which others are played beside
it, in how many chunks, or with how many environment workers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import jax
import numpy as np

from rspo_jax import algos
from rspo_jax.decoder import Decoder, Policy, Response, for_decoding
from rspo_jax.envs.base import FREE_TEXT
from rspo_jax.envs.pool import EnvPool
from rspo_jax.envs.prompts import PromptFormat
from rspo_jax.packing import Row, pack_rows
from rspo_jax.trajectory import Trajectory


@dataclass(frozen=True)
class RolloutSettings:
    """What does not change between rollouts of a run.

    context: "append" or "window"; history: turns shown in window context; rows: episodes played together;
    max_tokens: longest row in append context; max_prompt: longest prompt in window context.
    """

    format: PromptFormat
    context: str
    history: int
    max_turns: int
    max_tokens: int
    max_prompt: int
    max_response: int
    temperature: float
    rows: int
    constrain: bool = False
    greedy: bool = False


@dataclass
class Turn:
    """One step of an episode: what was seen, said and done, and what came of it."""

    observation: str
    anchor: str
    response: str
    action: str
    valid: bool
    reward: float = 0.0
    progress: float = 0.0
    changed: bool = False


@dataclass
class Episode:
    """One episode with its token rows (`rows`: one in append context, one per turn in window context)."""

    task: dict
    group: int
    turns: list[Turn] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    won: bool = False
    truncated: bool = False
    score: float = 0.0
    task_text: str = ""
    task_type: str = ""
    error: str = ""

    @property
    def reward(self) -> float:
        return float(sum(turn.reward for turn in self.turns))


class _Player:
    """One running episode: keeps the observation, builds prompts and applies responses."""

    def __init__(self, episode: Episode, observation: str, info: dict, policy: Policy, settings: RolloutSettings):
        self.episode, self.policy, self.settings = episode, policy, settings
        self.observation, self.info, self.previous = observation, info, None
        self.progress = float(info["progress"])
        self.done = bool(info.get("error"))  # an environment that could not even start
        self.history: list[tuple[str, str]] = []
        self.unfed: list[int] = []  # ids of the last response that the cache has not seen
        episode.task_text, episode.task_type = info["task"], info.get("task_type", "")
        episode.error, episode.truncated = str(info.get("error", "")), self.done

    def prompt(self) -> list[int]:
        """Ids to feed before the next response: a whole prompt in window context, else only what is new."""
        s, policy, turn = self.settings, self.policy, len(self.episode.turns)
        if s.context == "window":
            recent = self.history[-s.history :] if s.history > 0 else []
            text = s.format.window(self.observation, self.info, self.episode.task_text, recent, turn)
            return policy.first(text)[-s.max_prompt :]
        if turn == 0:
            return policy.first(s.format.first(self.observation, self.info))
        return policy.next(s.format.next(self.observation, self.info, self.previous))

    def fits(self, ids: list[int]) -> bool:
        """Whether the row can take this prompt and a longest response."""
        used = len(self.episode.rows[0]) if self.settings.context == "append" and self.episode.rows else 0
        return used + len(ids) + self.settings.max_response + 1 <= self.settings.max_tokens

    def respond(self, ids: list[int], response: Response) -> str:
        """Stores prompt and response in the episode's rows; returns the action for the environment."""
        episode, turn = self.episode, len(self.episode.turns)
        if self.settings.context == "window" or not episode.rows:
            episode.rows.append(Row(episode=-1))
        row = episode.rows[-1]
        row.add_prompt(ids, turn)
        self.unfed = response.unfed if self.settings.context == "append" else []
        row.add_response(response.tokens, response.logp, response.sampled, response.constraint, response.allowed, turn)
        text = self.policy.decode(response.tokens)
        action, valid = self.settings.format.parse(text)
        episode.turns.append(Turn(self.observation, self.info["anchor"], text, action, valid))
        return action

    def observe(self, observation: str, reward: float, terminated: bool, truncated: bool, info: dict) -> None:
        turn = self.episode.turns[-1]
        turn.reward = float(reward)
        turn.changed = observation != self.observation
        turn.progress = float(info["progress"]) - self.progress
        self.progress = float(info["progress"])
        self.history.append((self.observation, turn.action))
        self.previous, self.observation, self.info = self.observation, observation, info
        episode = self.episode
        episode.won, episode.score = bool(info["won"]), float(info.get("score", 0.0))
        episode.error = str(info.get("error", ""))
        out_of_turns = len(episode.turns) >= self.settings.max_turns
        self.done = bool(terminated or truncated or out_of_turns)
        episode.truncated = self.done and not terminated

    def abandon(self) -> None:
        """Ends an episode that does not fit into its row."""
        self.done = self.episode.truncated = True


def episode_keys(key: jax.Array, first: int, count: int) -> jax.Array:
    """One PRNG key per episode, by its index in the whole rollout."""
    return _fold_in_each(key, np.arange(first, first + count))


_fold_in_each = jax.jit(jax.vmap(jax.random.fold_in, (None, 0)))


def _admissible(info: dict) -> Sequence[str]:
    """Actions that a constraint lets through; an environment that lists none takes free text."""
    actions = info.get("admissible_actions")
    return (FREE_TEXT,) if actions is None else actions


def _play(policy, params, pool: EnvPool, episodes: Sequence[Episode], keys, settings: RolloutSettings) -> None:
    """Plays one chunk of episodes in lockstep turns."""
    slots = list(range(len(episodes)))
    starts = pool.reset(slots, [e.task for e in episodes])
    players = [_Player(e, obs, info, policy, settings) for e, (obs, info) in zip(episodes, starts, strict=True)]
    decoder = Decoder(policy, params, settings, keys)
    for turn in range(settings.max_turns):
        prompts = {}
        for slot, player in enumerate(players):
            if not player.done:
                ids = player.prompt()
                if player.fits(ids) or settings.context == "window":
                    prompts[slot] = ids
                else:
                    player.abandon()
        if not prompts:
            break
        live = list(prompts)
        admissible = [_admissible(players[s].info) for s in live] if settings.constrain else None
        chunks = [[*players[s].unfed, *prompts[s]] for s in live]
        responses = decoder.respond(live, chunks, admissible, turn)
        actions = []
        for slot, response in zip(live, responses, strict=True):
            actions.append(players[slot].respond(prompts[slot], response))
        for slot, result in zip(live, pool.step(live, actions), strict=True):
            players[slot].observe(*result)


def play(
    policy: Policy,
    params,
    pool: EnvPool,
    tasks: Sequence[dict],
    key,
    group_size: int,
    settings: RolloutSettings,
    *,
    keep_rows: bool = True,
) -> list[Episode]:
    """Plays every task `group_size` times; episodes of a task are neighbours and share `group`.

    keep_rows: False forgets the token rows of finished episodes, for long evaluations.
    """
    episodes = [Episode(task=t, group=g) for g, t in enumerate(tasks) for _ in range(group_size)]
    params = for_decoding(policy, params)
    for first in range(0, len(episodes), settings.rows):
        chunk = episodes[first : first + settings.rows]
        _play(policy, params, pool, chunk, episode_keys(key, first, len(chunk)), settings)
        if not keep_rows:
            for episode in chunk:
                episode.rows.clear()
    return episodes


def assemble(
    episodes: Sequence[Episode],
    dense: np.ndarray | None,
    *,
    turns: int | None = None,
    invalid_penalty=0.0,
    similarity: float | None = None,
) -> Trajectory:
    """Turns finished episodes into a Trajectory (NumPy leaves).

    An episode that its environment broke belongs to no group (-1): it enters no statistic and teaches nothing.

    Args:
      dense: f32[B, T] process rewards or None for zeros.
      turns: T; None is the longest episode's number of turns.
      invalid_penalty: penalty of each response that breaks the format.
      similarity: threshold at which two observations are one anchor state; None: only identical texts are.
    """
    B = len(episodes)
    T = turns or max(1, max((len(e.turns) for e in episodes), default=1))
    states = algos.state_ids(
        [[t.anchor for t in e.turns] for e in episodes], [e.group for e in episodes], T, threshold=similarity
    )

    def turn_array(values, dtype):
        out = np.zeros((B, T), dtype)
        for b, row in enumerate(values):
            out[b, : len(row)] = row
        return out

    outcome = turn_array([[t.reward for t in e.turns] for e in episodes], np.float32)
    rows = []
    for b, episode in enumerate(episodes):
        for row in episode.rows:
            row.episode = b
            rows.append(row)
    return Trajectory(
        reward=outcome,
        outcome_reward=outcome,
        dense_reward=np.zeros((B, T), np.float32) if dense is None else np.asarray(dense, np.float32),
        penalty=turn_array([[invalid_penalty * (not t.valid) for t in e.turns] for e in episodes], np.float32),
        mask=turn_array([[True] * len(e.turns) for e in episodes], bool),
        state=states,
        group=np.asarray([-1 if e.error else e.group for e in episodes], np.int32),
        success=np.asarray([e.won for e in episodes], bool),
        rows=pack_rows(rows),
    )


def transcript(episode: Episode, split: str) -> dict:
    """One episode as a JSON object for people."""
    shown = ("observation", "response", "action", "valid", "reward")
    return {
        "task": episode.task_text,
        "task_type": episode.task_type,
        "split": split,
        "success": episode.won,
        "return": episode.reward,
        "score": episode.score,
        "turns": [{name: getattr(turn, name) for name in shown} for turn in episode.turns],
    }


__all__ = ["Episode", "RolloutSettings", "Turn", "assemble", "play", "transcript"]

"""From Python lists of token ids to fixed-shape arrays: token rows, and the batch that a policy update reads."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import flax.struct
import jax
import numpy as np

from rspo_jax.trajectory import UNCONSTRAINED, TokenRows, Trajectory

Array = np.ndarray

_ROWS_TO_GROUP = 16  # fewer are computed in one piece
_TURN_ARRAYS = ("reward", "outcome_reward", "dense_reward", "mask", "state", "penalty")


@dataclass
class Row:
    """A token row under construction: ids exactly as they were fed to or sampled from the model, piece by piece."""

    episode: int
    pieces: list["Piece"] = field(default_factory=list)
    length: int = 0

    def __len__(self) -> int:
        return self.length

    @property
    def tokens(self) -> list[int]:
        return [i for p in self.pieces for i in p.tokens.tolist()]

    @property
    def action(self) -> list[bool]:
        """Which tokens were sampled."""
        return [x for p in self.pieces for x in (p.tokens < 0 if p.sampled is None else p.sampled).tolist()]

    def add_prompt(self, ids: Sequence[int], turn: int) -> None:
        """Appends ids that nobody sampled: prompts, observations, template tokens."""
        self._add(Piece(turn, np.asarray(ids, np.int32)))

    def add_response(self, ids, logp, sampled, constraint, allowed, turn: int) -> None:
        """Appends a response of n tokens; `sampled` is False on tokens that were forced, which no loss may see.

        allowed: i32[n, K] with -1 as padding behind, or n lists of ids.
        """
        sampled = np.asarray(sampled, bool)
        logp = np.where(sampled, np.asarray(logp, np.float32), np.float32(0))
        if not isinstance(allowed, np.ndarray):
            allowed = _ragged(allowed)
        self._add(Piece(turn, np.asarray(ids, np.int32), sampled, logp, np.asarray(constraint, np.int8), allowed))

    def _add(self, piece: "Piece") -> None:
        self.pieces.append(piece)
        self.length += len(piece.tokens)


class Piece(NamedTuple):
    """A prompt (tokens alone) or a response of one turn: arrays of its length, as in TokenRows."""

    turn: int
    tokens: Array
    sampled: Array | None = None
    logp: Array | None = None
    constraint: Array | None = None
    allowed: Array | None = None


def _ragged(lists: Sequence[Sequence[int]]) -> Array:
    out = np.full((len(lists), max((len(ids) for ids in lists), default=0)), -1, np.int32)
    for position, ids in enumerate(lists):
        out[position, : len(ids)] = ids
    return out


def bucket(n: int, multiple: int) -> int:
    """Smallest multiple of `multiple` that holds n (at least one multiple)."""
    return max(1, -(-n // multiple)) * multiple


def pack_rows(rows: Sequence[Row], *, length_multiple: int = 64, row_multiple: int = 1) -> TokenRows:
    """Packs rows left-aligned into arrays `[N, L]`; N and L are rounded up so that few shapes are ever compiled."""
    N = bucket(len(rows), row_multiple)
    L = bucket(max((len(r) for r in rows), default=1), length_multiple)
    responses = [p for r in rows for p in r.pieces if p.sampled is not None and p.allowed.size]
    widest = max((int((p.allowed >= 0).sum(axis=1).max()) for p in responses), default=0)
    K = bucket(widest, 8) if widest else 0
    out = TokenRows(
        tokens=np.zeros((N, L), np.int32),
        mask=np.zeros((N, L), bool),
        action_mask=np.zeros((N, L), bool),
        turn=np.zeros((N, L), np.int32),
        episode=np.full((N,), -1, np.int32),
        logp=np.zeros((N, L), np.float32),
        constraint=np.zeros((N, L), np.int8),
        allowed=np.full((N, L, K), -1, np.int32),
    )
    for n, row in enumerate(rows):
        out.episode[n] = row.episode
        out.mask[n, : len(row)] = True
        start = 0
        for piece in row.pieces:
            here = slice(start, start + len(piece.tokens))
            start = here.stop
            out.tokens[n, here], out.turn[n, here] = piece.tokens, piece.turn
            if piece.sampled is None:
                continue
            out.action_mask[n, here], out.logp[n, here] = piece.sampled, piece.logp
            out.constraint[n, here] = piece.constraint
            listed = piece.allowed[:, :K]
            out.allowed[n, here, : listed.shape[1]] = listed
    return out


@flax.struct.dataclass
class ActionBatch:
    """Rows with their sampled tokens gathered: the head runs on M action positions, not on L.

    tokens:        i32[N, L]         whole rows, left-aligned.
    position:      i32[N, M]         index in the row of each sampled token (0 on padding).
    action_mask:   bool[N, M]        False on padding.
    target:        i32[N, M]         the sampled id.
    constraint:    i8[N, M], allowed: i32[N, M, K]   how it was constrained.
    turn:          i32[N, M]         its turn.
    episode:       i32[N]            its episode.
    logp:          f32[N, M]         the sampler's log-prob.

    Where a function of `algos` takes token rows, this serves as well: `action_mask`, `turn`, `episode` and `logp` mean
    the same as in TokenRows, only that the columns are action tokens.
    """

    tokens: Array
    position: Array
    action_mask: Array
    target: Array
    constraint: Array
    allowed: Array
    turn: Array
    episode: Array
    logp: Array


def gather_actions(rows: TokenRows, *, multiple: int = 32) -> ActionBatch:
    """Gathers the sampled tokens of each row (in order) into `[N, M]` arrays."""
    action = np.asarray(rows.action_mask)
    N = action.shape[0]
    count = action.sum(axis=1)
    M = bucket(int(count.max(initial=0)), multiple)
    row, column = np.nonzero(action)
    rank = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    position = np.zeros((N, M), np.int32)
    valid = np.zeros((N, M), bool)
    position[row, rank], valid[row, rank] = column, True

    def take(x):
        picked = np.take_along_axis(np.asarray(x), position.reshape(N, M, *[1] * (x.ndim - 2)), axis=1)
        return np.where(valid.reshape(N, M, *[1] * (x.ndim - 2)), picked, np.zeros((), picked.dtype))

    constraint = take(rows.constraint)
    allowed = np.where((constraint != UNCONSTRAINED)[..., None] & valid[..., None], take(rows.allowed), -1)
    return ActionBatch(
        tokens=np.asarray(rows.tokens),
        position=position,
        action_mask=valid,
        target=take(rows.tokens),
        constraint=constraint,
        allowed=allowed,
        turn=take(rows.turn),
        episode=np.asarray(rows.episode),
        logp=take(rows.logp),
    )


class Shapes(dict):
    """Largest array sizes so far, by axis letter, or "letter_use". Batches are padded to them, so that few programs are
    compiled; they belong to a checkpoint, because the size of a sum can change its last bit."""

    MULTIPLES = {"B": 8, "N": 8, "L": 64, "M": 32, "K": 8}

    def fit(self, axis: str, size: int) -> int:
        """The size to pad this axis to."""
        self[axis] = max(self.get(axis, 0), bucket(size, self.MULTIPLES[axis[0]]))
        return self[axis]


def pad_actions(actions: ActionBatch, shapes: Shapes) -> ActionBatch:
    """Pads rows, tokens, action positions and allowed ids to the run's sizes; the new entries are padding."""
    N = shapes.fit("N", actions.tokens.shape[0])
    L = shapes.fit("L", actions.tokens.shape[1])
    M = shapes.fit("M", actions.target.shape[1])
    K = shapes.fit("K", actions.allowed.shape[2]) if actions.allowed.shape[2] or "K" in shapes else 0
    return ActionBatch(
        tokens=_pad(actions.tokens, (N, L)),
        allowed=_pad(actions.allowed, (N, M, K), -1),
        episode=_pad(actions.episode, (N,), -1),
        **{
            name: _pad(getattr(actions, name), (N, M))
            for name in ("position", "action_mask", "target", "constraint", "turn", "logp")
        },
    )


def groups_by_length(actions: ActionBatch) -> list[tuple[str, np.ndarray]]:
    """[(name, row indices)]: the quarter of the rows that needs most tokens apart from the others, where there are
    enough. Lengths are skewed, so most rows would otherwise be computed at several times their own length."""
    N = len(actions.episode)
    if N < _ROWS_TO_GROUP:
        return [("whole", np.arange(N))]
    order = np.argsort(actions.position.max(axis=1), kind="stable")
    short = N - bucket(N // 4, 8)
    return [("short", np.sort(order[:short])), ("long", np.sort(order[short:]))]


def cut_rows(batch, rows: np.ndarray, name: str, shapes: Shapes):
    """These rows of a batch (a pytree with `actions`), as long as their sampled tokens need, by the run's sizes.

    What follows a row's last sampled token is not read by any loss.
    """
    picked = jax.tree.map(lambda x: np.asarray(x)[rows], batch)
    actions = picked.actions
    L = min(shapes.fit(f"L_{name}", int(actions.position.max(initial=0))), actions.tokens.shape[1])
    M = min(shapes.fit(f"M_{name}", int(actions.action_mask.sum(axis=1).max(initial=0))), actions.target.shape[1])
    tokens = actions.tokens[:, :L]
    short = jax.tree.map(lambda x: x[:, :M] if x.ndim > 1 else x, picked)
    return short.replace(actions=short.actions.replace(tokens=tokens))


def pad_episodes(trajectory: Trajectory, episodes: int) -> Trajectory:
    """Pads to so many episodes; the new ones have no turn and belong to no group (-1). Token rows stay as they are."""
    extra = episodes - len(trajectory.success)
    level = {name: _pad(getattr(trajectory, name), (episodes, None)) for name in _TURN_ARRAYS}
    group = np.pad(np.asarray(trajectory.group), (0, extra), constant_values=-1)
    return Trajectory(
        **level, group=group, success=np.pad(np.asarray(trajectory.success), (0, extra)), rows=trajectory.rows
    )


def take_episodes(trajectory: Trajectory, episodes: Sequence[int]) -> Trajectory:
    """The given episodes (in the given order) with their token rows, as NumPy arrays; -1 entries are dropped."""
    index = np.asarray([e for e in episodes if e >= 0], np.int64)
    level = {name: np.asarray(getattr(trajectory, name))[index] for name in (*_TURN_ARRAYS, "group", "success")}
    rows = trajectory.rows
    owner = np.asarray(rows.episode)
    pick = [np.flatnonzero(owner == e) for e in index]
    flat = np.concatenate(pick) if len(pick) else np.zeros(0, np.int64)
    taken = {f: np.asarray(getattr(rows, f))[flat] for f in TokenRows.__dataclass_fields__}
    taken["episode"] = np.repeat(np.arange(len(index)), [len(p) for p in pick]).astype(np.int32)
    return Trajectory(**level, rows=TokenRows(**taken))


def concatenate(trajectories: Sequence[Trajectory]) -> Trajectory:
    """Joins trajectories episode-wise, padding turns, tokens and allowed ids to the widest.

    Groups are renumbered so that those of different trajectories never mix (-1, no group, stays); padding rows are
    dropped.
    """
    T = max(t.reward.shape[1] for t in trajectories)
    L = max(t.rows.tokens.shape[1] for t in trajectories)
    K = max(t.rows.allowed.shape[2] for t in trajectories)
    level: dict[str, list] = {}
    rows: dict[str, list] = {}
    first_episode = first_group = 0
    for t in trajectories:
        group = _dense(np.asarray(t.group))
        for name in _TURN_ARRAYS:
            level.setdefault(name, []).append(_pad(getattr(t, name), (None, T)))
        level.setdefault("group", []).append(np.where(group < 0, group, group + first_group))
        level.setdefault("success", []).append(np.asarray(t.success))
        keep = np.asarray(t.rows.episode) >= 0
        for name in TokenRows.__dataclass_fields__:
            value = np.asarray(getattr(t.rows, name))[keep]
            if name == "episode":
                value = value + first_episode
            elif name == "allowed":
                value = _pad(value, (None, L, K), -1)
            else:
                value = _pad(value, (None, L))
            rows.setdefault(name, []).append(value)
        first_episode += len(group)
        first_group += int(group.max(initial=-1)) + 1
    joined = {name: np.concatenate(values) for name, values in rows.items()}
    return Trajectory(**{n: np.concatenate(v) for n, v in level.items()}, rows=TokenRows(**joined))


def _dense(group: np.ndarray) -> np.ndarray:
    """Groups numbered 0, 1, ... in the order of their ids; -1 stays."""
    known = np.unique(group[group >= 0])
    return np.where(group < 0, -1, np.searchsorted(known, group)).astype(np.int32)


def _pad(x, shape: Sequence[int | None], value=0) -> np.ndarray:
    """Pads at the end of each axis to `shape` (None keeps the axis)."""
    x = np.asarray(x)
    width = [(0, 0 if want is None else want - have) for have, want in zip(x.shape, shape, strict=True)]
    return np.pad(x, width, constant_values=value)


def to_arrays(trajectory: Trajectory) -> dict:
    """A trajectory as a dict of NumPy arrays, for a checkpoint."""
    level = {name: np.asarray(getattr(trajectory, name)) for name in (*_TURN_ARRAYS, "group", "success")}
    rows = {name: np.asarray(getattr(trajectory.rows, name)) for name in TokenRows.__dataclass_fields__}
    return {"level": level, "rows": rows}


def from_arrays(stored: dict) -> Trajectory:
    """The inverse of `to_arrays`."""
    return Trajectory(**stored["level"], rows=TokenRows(**stored["rows"]))

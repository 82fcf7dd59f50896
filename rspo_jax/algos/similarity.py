"""Anchor states from observation texts, on the host: the `state` array that GiGPO compares."""

import difflib
from collections import defaultdict
from collections.abc import Sequence

import numpy as np


def state_ids(
    observations: Sequence[Sequence[str]], group: Sequence[int], turns: int, *, threshold: float | None = None
) -> np.ndarray:
    """Anchor-state id of every turn.

    Without threshold two turns share a state where their texts are identical. With one, a text joins the first state of
    its group whose first member is at least that similar (difflib ratio), in order of episode and turn: the
    similarity option of GiGPO, arXiv 2505.10978.

    Args:
      observations: for each of B episodes, the texts its turns acted on, at most `turns`.
      group: B task ids; states are compared within a group only.
      turns: T.
      threshold: similarity in (0, 1], or None.

    Returns:
      i32[B, T], small ids counted from 0 in each group; -1 where no turn happened.
    """
    if threshold is not None and not 0.0 < threshold <= 1.0:
        raise ValueError(f"The similarity threshold must lie in (0, 1], got {threshold}; use None for exact matching.")
    ids = np.full((len(observations), turns), -1, np.int32)
    seen: dict[int, dict[str, int]] = defaultdict(dict)  # group -> text -> state
    first: dict[int, list[str]] = defaultdict(list)  # group -> first member of each state
    for episode, texts in enumerate(observations):
        task = int(group[episode])
        for turn, text in enumerate(texts):
            if text not in seen[task]:
                state = _similar(text, first[task], threshold)
                if state == len(first[task]):
                    first[task].append(text)
                seen[task][text] = state
            ids[episode, turn] = seen[task][text]
    return ids


def _similar(text: str, members: list[str], threshold: float | None) -> int:
    """Index of the first member that is similar enough, or len(members)."""
    if threshold is not None:
        for index, member in enumerate(members):
            matcher = difflib.SequenceMatcher(None, text, member)
            # The quick ratios are upper bounds and spare the quadratic comparison of clearly different texts.
            if min(matcher.real_quick_ratio(), matcher.quick_ratio()) >= threshold and matcher.ratio() >= threshold:
                return index
    return len(members)

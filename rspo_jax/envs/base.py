"""What all environments share: the free-text slot of an action, the space of texts, and a set of tasks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium

FREE_TEXT = "<your query>"
"""The slot inside an admissible action that the agent fills with words of its own, as in ``search[<your query>]``."""


@dataclass(frozen=True)
class TaskSuite:
    """Environments and the tasks to run in them.

    Attributes:
      make_env: makes one environment; picklable (a ``functools.partial`` of a module-level function with plain
        arguments), so that worker processes can call it. Instances made in one process share heavy data.
      splits: split name -> tasks. A task is the keyword arguments of ``env.reset``, such as
        ``{"options": {"goal": 17}}`` or ``{"seed": 5}``. A sequence may be lazy: ``len`` and indexing are enough.
      phrases: strings worth one token each in a small tokenizer (entities, verbs, page labels), lower-case.
    """

    make_env: Callable[[], gymnasium.Env]
    splits: Mapping[str, Sequence[dict[str, Any]]]
    phrases: tuple[str, ...] = ()


class TextSpace(gymnasium.Space[str]):
    """Observations and actions of text environments: any string."""

    def __init__(self) -> None:
        super().__init__(shape=None, dtype=None)

    def contains(self, x: Any) -> bool:
        return isinstance(x, str)

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> str:
        """A short string of random letters; only good for checking an interface."""
        return "".join(chr(97 + number) for number in self.np_random.integers(0, 26, size=8))

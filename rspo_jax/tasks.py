"""Which task comes next: seeded permutations of a split, and fixed evaluation panels."""

from collections.abc import Sequence

import numpy as np


class TaskStream:
    """Endless pass over a split in a new seeded order each epoch; a position is one integer, so resume is exact.

    `stream` separates streams of one seed (the target's tasks from the guide's), so that what one agent consumes never
    changes what the other sees.
    """

    def __init__(self, tasks: Sequence[dict], seed: int, stream: int):
        if not len(tasks):
            raise ValueError("the training split has no tasks; check config.env")
        self.tasks, self.seed, self.stream = tasks, seed, stream
        self._epoch, self._order = -1, None

    def take(self, position: int, count: int) -> list[dict]:
        """Tasks `position .. position + count` of the stream."""
        return [self.tasks[self._index(position + i)] for i in range(count)]

    def _index(self, position: int) -> int:
        epoch, offset = divmod(position, len(self.tasks))
        if epoch != self._epoch:
            self._order = np.random.default_rng([self.seed, self.stream, epoch]).permutation(len(self.tasks))
            self._epoch = epoch
        return int(self._order[offset])


def panel(tasks: Sequence[dict], count: int, seed: int = 0) -> list[dict]:
    """A fixed evaluation panel: the same `count` tasks every time, whatever the step or the number of workers."""
    order = np.random.default_rng([seed, len(tasks)]).permutation(len(tasks))[:count]
    return [tasks[int(i)] for i in order]

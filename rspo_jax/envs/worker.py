"""What a worker process of `EnvPool` runs: environments behind three messages. Imports neither JAX nor transformers."""

import pickle
import signal
import sys
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import gymnasium


class Slots:
    """The environments of some slots, made when first used.

    A failure inside one environment becomes its own result (a string that starts with the exception's name) and never
    touches its neighbours; the environment is thrown away and made anew at the slot's next reset.
    """

    def __init__(self, make_env: Callable[[], gymnasium.Env]):
        self._make_env = make_env
        self._envs: dict[int, gymnasium.Env] = {}

    def reset(self, slots: Sequence[int], tasks: Sequence[dict[str, Any]]) -> list[tuple | str]:
        """Starts `tasks[i]` in `slots[i]`: (observation, info) or an error string each, in the order given."""
        return [self._guard(slot, self._reset, task) for slot, task in zip(slots, tasks, strict=True)]

    def step(self, slots: Sequence[int], actions: Sequence[str]) -> list[tuple | str]:
        """(observation, reward, terminated, truncated, info) or an error string each, in the order given."""
        return [self._guard(slot, self._step, action) for slot, action in zip(slots, actions, strict=True)]

    def close(self) -> None:
        for env in self._envs.values():
            env.close()
        self._envs.clear()

    def _reset(self, slot: int, task: dict[str, Any]) -> tuple:
        if slot not in self._envs:
            self._envs[slot] = self._make_env()
        return self._envs[slot].reset(**task)

    def _step(self, slot: int, action: str) -> tuple:
        return self._envs[slot].step(action)

    def _guard(self, slot: int, call: Callable, argument: Any) -> tuple | str:
        try:
            return call(slot, argument)
        except Exception as error:  # a user's environment may raise anything; the other episodes go on
            self._envs.pop(slot, None)
            return f"{type(error).__name__}: {error}"


def serve(connection: Connection) -> None:
    """Answers messages until `("close",)` or until the other end is gone."""
    payload = connection.recv_bytes()
    # Unpickled when an environment is made, so that a failing import is reported like any other failing reset.
    slots = Slots(lambda: pickle.loads(payload)())
    while True:
        try:
            name, *arguments = connection.recv()
        except EOFError:
            break
        if name == "close":
            break
        connection.send(getattr(slots, name)(*arguments))
    slots.close()


def main() -> None:
    """Entry point of the process: the file descriptor of the connection is the only argument."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the main process's to handle
    serve(Connection(int(sys.argv[1])))

"""A pool of environments, in this process or in worker processes, that no single environment can stop."""

import os
import pickle
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

import gymnasium

from rspo_jax.envs.worker import Slots

Task = dict[str, Any]
"""The keyword arguments of `env.reset`."""

_BLANK = {"task": "", "won": False, "score": 0.0, "progress": 0.0, "anchor": "", "task_type": ""}


class EnvPool:
    """Runs `size` environments, one a slot, behind three calls: `reset`, `step`, `close`.

    With `workers = 0` they run in this process; otherwise slot `s` lives in worker process `s % workers`, a fresh
    interpreter (nothing is forked, so threads and device handles of this process are not inherited; the main script is
    not imported either). Results come in the order of the slots given, whatever finishes first, and do not depend on
    `workers`.

    Failures are results. An environment that raises, a worker that dies, and a worker that does not answer in time end
    their episodes as truncated: observation and info are the last ones seen, `reward` is 0 and `info["error"]` is one
    line. A lost worker is replaced at once; its slots work again after their next reset. Only workers can be lost: what
    hangs or dies in this process (`workers = 0`) takes the run with it.

    Args:
      make_env: makes one environment; picklable (module-level function or `functools.partial` of one) if `workers > 0`.
      size: number of slots.
      workers: number of processes; at most `size` are started.
      timeout: seconds that one step of a worker may take.
      start_timeout: seconds that a reset may take: the first one also imports and loads data.
    """

    def __init__(
        self,
        make_env: Callable[[], gymnasium.Env],
        size: int,
        workers: int = 0,
        *,
        timeout: float = 60.0,
        start_timeout: float = 600.0,
    ):
        if size < 1 or workers < 0:
            raise ValueError(f"EnvPool needs size >= 1 and workers >= 0, not size = {size} and workers = {workers}.")
        self._size, self._timeout, self._start_timeout = size, timeout, start_timeout
        self._last: list[tuple[str, dict[str, Any]]] = [("", dict(_BLANK))] * size
        self._live = [False] * size
        self._lost: dict[int, str] = {}  # live slots whose worker went away between two of their own steps
        self._ever_started = False
        if workers == 0:
            self._workers: list[_Local | _Worker] = [_Local(make_env)]
        else:
            payload = _pickled(make_env)
            self._workers = [_Worker(payload) for _ in range(min(workers, size))]

    def reset(self, slots: Sequence[int], tasks: Sequence[Task]) -> list[tuple[str, dict[str, Any]]]:
        """Starts an episode in each slot: [(observation, info)].

        A reset that fails is tried once more. If it fails again, `info["error"]` says why, and the slot has no episode.

        Raises:
          ValueError: no environment of this pool has ever started, so no run can come of it.
        """
        self._check(slots, len(tasks))
        task_of = dict(zip(slots, tasks, strict=True))
        results = self._call("reset", slots, tasks, self._start_timeout)
        failed = [slot for slot in slots if isinstance(results[slot], str)]
        if failed:
            results |= self._call("reset", failed, [task_of[slot] for slot in failed], self._start_timeout)
        errors = [results[slot] for slot in slots if isinstance(results[slot], str)]
        if len(errors) < len(slots):
            self._ever_started = True
        elif slots and not self._ever_started:
            raise ValueError(f"no environment could be started; check config.env; the first error was: {errors[0]}")
        return [self._started(slot, results[slot]) for slot in slots]

    def step(self, slots: Sequence[int], actions: Sequence[str]) -> list[tuple[str, float, bool, bool, dict[str, Any]]]:
        """Acts in each slot: [(observation, reward, terminated, truncated, info)].

        Raises:
          ValueError: a slot has no running episode (never reset, ended, or failed).
        """
        self._check(slots, len(actions))
        idle = [slot for slot in slots if not self._live[slot]]
        if idle:
            raise ValueError(f"slots {idle} have no running episode: call reset on them before step.")
        present = [(slot, action) for slot, action in zip(slots, actions, strict=True) if slot not in self._lost]
        results = self._call("step", [slot for slot, _ in present], [act for _, act in present], self._timeout)
        return [self._stepped(slot, results.get(slot) or self._lost.pop(slot)) for slot in slots]

    def close(self) -> None:
        """Ends every environment and worker. Safe to call twice."""
        for worker in self._workers:
            worker.close()
        self._workers, self._live = [], [False] * self._size

    def __enter__(self) -> "EnvPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check(self, slots: Sequence[int], count: int) -> None:
        if not self._workers:
            raise ValueError("This EnvPool is closed: make a new one.")
        bad = [slot for slot in slots if not 0 <= slot < self._size]
        if bad or len(set(slots)) < len(slots) or len(slots) != count:
            raise ValueError(
                f"slots = {list(slots)} must be distinct, in 0 .. {self._size - 1}, and as many as tasks or actions."
            )

    def _call(
        self, name: str, slots: Sequence[int], arguments: Sequence[Any], timeout: float
    ) -> dict[int, tuple | str]:
        """Sends one message to each worker concerned and gathers slot -> result."""
        jobs: dict[int, list[tuple[int, Any]]] = {}
        for slot, argument in zip(slots, arguments, strict=True):
            jobs.setdefault(slot % len(self._workers), []).append((slot, argument))
        for index, job in jobs.items():
            self._workers[index].send((name, [slot for slot, _ in job], [argument for _, argument in job]))
        answers = _gather({index: self._workers[index] for index in jobs}, timeout)
        results: dict[int, tuple | str] = {}
        for index, job in jobs.items():
            answer = answers[index]
            if isinstance(answer, str):
                self._replace(index, answer)
                answer = [answer] * len(job)
            results |= {slot: result for (slot, _), result in zip(job, answer, strict=True)}
        return results

    def _replace(self, index: int, error: str) -> None:
        self._workers[index] = self._workers[index].successor()
        for slot in range(index, self._size, len(self._workers)):
            if self._live[slot]:
                self._lost[slot] = error

    def _started(self, slot: int, result: tuple | str) -> tuple[str, dict[str, Any]]:
        self._lost.pop(slot, None)
        self._live[slot] = not isinstance(result, str)
        self._last[slot] = result if self._live[slot] else ("", {**_BLANK, "error": result})
        return self._last[slot]

    def _stepped(self, slot: int, result: tuple | str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if isinstance(result, str):
            self._lost.pop(slot, None)
            observation, info = self._last[slot]
            result = (observation, 0.0, False, True, {**info, "won": False, "error": result})
        observation, _, terminated, truncated, info = result
        self._live[slot] = not (terminated or truncated)
        self._last[slot] = (observation, info)
        return result


def _pickled(make_env: Callable[[], gymnasium.Env]) -> bytes:
    remedy = "use a function of an importable module, or functools.partial of one, or workers = 0"
    function = getattr(make_env, "func", make_env)
    if getattr(function, "__module__", None) == "__main__":
        raise ValueError(
            f"make_env = {make_env!r} is defined in the main script, which workers do not import; {remedy}."
        )
    try:
        return pickle.dumps(make_env)
    except Exception as error:  # pickle raises PicklingError, AttributeError or TypeError, by the object
        raise ValueError(f"make_env = {make_env!r} cannot be sent to a worker process ({error}); {remedy}.") from None


def _gather(workers: dict[int, "_Local | _Worker"], timeout: float) -> dict[int, list | str]:
    """Waits for every worker's answer; a worker that is late or gone gives an error string."""
    answers: dict[int, list | str] = {i: w.answer() for i, w in workers.items() if isinstance(w, _Local)}
    waiting = {w.connection: i for i, w in workers.items() if isinstance(w, _Worker)}
    deadline = time.monotonic() + timeout
    while waiting:
        ready = wait(waiting, timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            late = f"the environment worker did not answer within {timeout:g} s and was replaced"
            return answers | dict.fromkeys(waiting.values(), late)
        for connection in ready:
            index = waiting.pop(connection)
            answers[index] = workers[index].answer()
    return answers


class _Local:
    """The interface of `_Worker` without a process."""

    def __init__(self, make_env: Callable[[], gymnasium.Env]):
        self._slots = Slots(make_env)

    def send(self, message: tuple) -> None:
        self._message = message

    def answer(self) -> list:
        name, *arguments = self._message
        return getattr(self._slots, name)(*arguments)

    def close(self) -> None:
        self._slots.close()


class _Worker:
    """One process and the connection to it."""

    def __init__(self, payload: bytes):
        self._payload = payload
        ours, theirs = socket.socketpair()
        # A fresh interpreter instead of multiprocessing's spawn, which would import the main script (and with it JAX).
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from rspo_jax.envs.worker import main; main()", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(_absolute(sys.path))},
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        weakref.finalize(self, self._process.kill)  # a hung worker must not outlive this process
        self.connection = Connection(ours.detach())
        self._send_quietly(self.connection.send_bytes, payload)

    def send(self, message: tuple) -> None:
        self._send_quietly(self.connection.send, message)

    def answer(self) -> list | str:
        try:
            return self.connection.recv()
        except Exception as error:  # EOFError when it is gone; anything when it sent what cannot be unpickled here
            return f"the environment worker died ({type(error).__name__}) and was replaced"

    def successor(self) -> "_Worker":
        self._kill()
        return _Worker(self._payload)

    def close(self) -> None:
        self._send_quietly(self.connection.send, ("close",))
        try:
            self._process.wait(timeout=5.0)
        except subprocess.TimeoutExpired:
            pass
        self._kill()

    def _kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self.connection.close()

    @staticmethod
    def _send_quietly(send: Callable[[Any], None], message: Any) -> None:
        try:
            send(message)
        except OSError:
            pass  # the worker is gone: the next `answer` reports it


def _absolute(paths: Iterable[str]) -> list[str]:
    return [os.path.abspath(path) for path in paths]

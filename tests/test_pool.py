"""The pool: order, independence of the number of workers, and episodes that outlive broken environments."""

import functools
import os
import subprocess
import sys
import time

import gymnasium
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rspo_jax.envs.pool import EnvPool


class Counter(gymnasium.Env):
    """Counts its steps; some actions break it in a way a user's environment might."""

    def __init__(self, length: int = 5):
        self._length = length

    def reset(self, *, seed=None, options=None):
        if options and options.get("broken"):
            raise KeyError("no such level")
        self._seed, self._count = seed, 0
        return f"start {seed}", self._info()

    def step(self, action):
        if action == "raise":
            raise OSError("disk full")
        if action == "hang":
            time.sleep(60)
        if action == "die":
            os._exit(3)
        if action == "modules":
            return " ".join(sorted(set(sys.modules) & {"jax", "transformers", "flax"})), 0.0, True, False, self._info()
        self._count += 1
        return f"{self._seed}: {action} {self._count}", 1.0, self._count == self._length, False, self._info()

    def _info(self):
        return {
            "task": f"task {self._seed}",
            "won": False,
            "score": 0.0,
            "progress": 0.0,
            "anchor": "",
            "task_type": "",
        }


def tasks(*seeds):
    return [{"seed": seed} for seed in seeds]


def transcript(pool, size):
    """Everything that a fixed sequence of calls returns, some slots resting now and then."""
    slots = list(range(size))
    record = [pool.reset(slots, tasks(*(10 * slot for slot in slots)))]
    record.append(pool.step(slots, [f"a{slot}" for slot in slots]))
    record.append(pool.step(slots[::-2], [f"b{slot}" for slot in slots[::-2]]))
    record.append(pool.reset(slots[-1:], tasks(99)))
    record.append(pool.step(slots, ["c"] * size))
    return record


@pytest.mark.parametrize("workers", [1, 2, 7])
def test_results_do_not_depend_on_the_number_of_workers(workers):
    with EnvPool(Counter, 5) as local, EnvPool(Counter, 5, workers=workers) as pool:
        assert transcript(pool, 5) == transcript(local, 5)


@settings(max_examples=30, deadline=None)
@given(order=st.permutations(range(4)))
def test_results_come_in_the_order_of_the_slots_given(order):
    with EnvPool(Counter, 4) as pool:
        observations = [obs for obs, _ in pool.reset(order, tasks(*order))]
        assert observations == [f"start {slot}" for slot in order]
        assert [result[0] for result in pool.step(order, ["x"] * 4)] == [f"{slot}: x 1" for slot in order]


def test_workers_import_neither_jax_nor_transformers():
    import jax  # noqa: F401  the main process has it, the worker must not

    with EnvPool(Counter, 1, workers=1) as pool:
        pool.reset([0], tasks(1))
        assert pool.step([0], ["modules"])[0][0] == ""


def test_importing_the_environments_does_not_import_jax():
    code = "import sys, rspo_jax.envs; assert not {'jax', 'transformers'} & set(sys.modules), 'imported'"
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_an_environment_that_raises_ends_its_own_episode_only(workers):
    with EnvPool(Counter, 3, workers=workers) as pool:
        pool.reset([0, 1, 2], tasks(0, 1, 2))
        first, broken, third = pool.step([0, 1, 2], ["x", "raise", "x"])
        assert first[0] == "0: x 1" and third[0] == "2: x 1"
        observation, reward, terminated, truncated, info = broken
        assert (observation, reward, terminated, truncated) == ("start 1", 0.0, False, True)
        assert info["error"] == "OSError: disk full" and info["task"] == "task 1" and info["won"] is False
        assert pool.reset([1], tasks(8))[0][0] == "start 8"
        assert [result[0] for result in pool.step([0, 1], ["y", "y"])] == ["0: y 2", "8: y 1"]


@pytest.mark.parametrize("action, sentence", [("die", "died"), ("hang", "did not answer within 1 s")])
def test_a_lost_worker_is_replaced_and_its_episodes_are_truncated(action, sentence):
    with EnvPool(Counter, 4, workers=2, timeout=1.0) as pool:
        pool.reset([0, 1, 2, 3], tasks(0, 1, 2, 3))
        lost, well = pool.step([0, 1], [action, "x"])
        assert well[0] == "1: x 1" and "error" not in well[4]
        assert lost[2:4] == (False, True) and sentence in lost[4]["error"]
        # Slot 2 lived in the same process and hears of it at its next step; slot 3 did not.
        neighbour, other = pool.step([2, 3], ["x", "x"])
        assert neighbour[3] and sentence in neighbour[4]["error"] and other[0] == "3: x 1"
        assert [obs for obs, _ in pool.reset([0, 2], tasks(5, 6))] == ["start 5", "start 6"]
        assert [result[0] for result in pool.step([0, 2], ["x", "x"])] == ["5: x 1", "6: x 1"]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_reset_that_fails_is_an_episode_with_an_error(workers):
    with EnvPool(Counter, 2, workers=workers) as pool:
        good, bad = pool.reset([0, 1], [{"seed": 1}, {"options": {"broken": True}}])
        assert good[0] == "start 1" and "KeyError: 'no such level'" in bad[1]["error"]
        with pytest.raises(ValueError, match=r"slots \[1\] have no running episode"):
            pool.step([0, 1], ["x", "x"])


def test_a_pool_that_never_starts_an_environment_stops_with_the_reason():
    with EnvPool(functools.partial(Counter, no_such_argument=1), 2) as pool:
        with pytest.raises(ValueError, match="no environment could be started.*no_such_argument"):
            pool.reset([0, 1], tasks(1, 2))


def test_only_running_episodes_can_be_stepped():
    with EnvPool(functools.partial(Counter, length=1), 2) as pool:
        pool.reset([0], tasks(1))
        assert pool.step([0], ["x"])[0][2]
        with pytest.raises(ValueError, match=r"slots \[0\] have no running episode"):
            pool.step([0], ["x"])
        with pytest.raises(ValueError, match=r"slots \[1\]"):
            pool.step([1], ["x"])


@pytest.mark.parametrize("slots", [[0, 0], [5], [-1], [0]])
def test_impossible_slots_are_refused(slots):
    with EnvPool(Counter, 2) as pool, pytest.raises(ValueError, match="must be distinct"):
        pool.reset(slots, tasks(1, 2))


def test_bad_construction_and_a_closed_pool_give_one_clear_sentence():
    with pytest.raises(ValueError, match="size = 0"):
        EnvPool(Counter, 0)
    with pytest.raises(ValueError, match="cannot be sent to a worker process"):
        EnvPool(lambda: Counter(), 1, workers=1)
    pool = EnvPool(Counter, 1, workers=1)
    pool.close()
    pool.close()
    with pytest.raises(ValueError, match="closed"):
        pool.reset([0], tasks(1))

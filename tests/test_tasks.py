"""Task streams and evaluation panels."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rspo_jax.tasks import TaskStream, panel

TASKS = [{"seed": s} for s in range(7)]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 9), max_size=6))
def test_a_stream_is_the_same_however_it_is_cut(counts):
    whole = TaskStream(TASKS, seed=1, stream=0).take(0, sum(counts))
    position, pieces = 0, []
    for count in counts:
        pieces += TaskStream(TASKS, seed=1, stream=0).take(position, count)
        position += count
    assert pieces == whole


def test_every_epoch_has_every_task_once_in_a_new_order():
    stream = TaskStream(TASKS, seed=3, stream=0)
    epochs = [[t["seed"] for t in stream.take(7 * e, 7)] for e in range(3)]
    assert all(sorted(e) == list(range(7)) for e in epochs)
    assert len({tuple(e) for e in epochs}) == 3


def test_streams_of_one_seed_differ():
    a, b = (TaskStream([{"seed": s} for s in range(100)], seed=3, stream=i).take(0, 100) for i in range(2))
    assert a != b


def test_no_tasks_is_an_error():
    with pytest.raises(ValueError, match="no tasks"):
        TaskStream([], seed=0, stream=0)


def test_a_panel_is_fixed_and_has_no_task_twice():
    first = panel(TASKS, 5)
    assert first == panel(TASKS, 5) and len({t["seed"] for t in first}) == 5

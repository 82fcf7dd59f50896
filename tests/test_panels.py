"""Success on the fixed panels: what a table says, and with which intervals."""

import re

from hypothesis import given
from hypothesis import strategies as st

from rspo_jax import panels


def evaluation(step, successes, episodes=200, **more):
    rates = {"eval/valid/success": successes / episodes, "eval/valid/episodes": episodes}
    return {"step": step, "phase": "eval", **rates, **more}


def test_the_table_in_the_terminal_has_both_intervals():
    rows = [evaluation(0, 40), evaluation(5, 80), evaluation(10, 120)]
    line = panels.summary_table(rows).splitlines()[3]
    assert re.split(" {2,}", line) == [
        "valid",
        "200",
        "20.0 % [15.0, 26.1]",
        "60.0 % [53.1, 66.5]",
        "+40.0 points [+30.8, +48.2]",
    ]
    assert panels.summary_table([]) == "no evaluation on a fixed panel yet"


def test_a_panel_without_its_size_claims_no_interval():
    table = panels.summary_table([{"step": 0, "phase": "eval", "eval/valid/success": 0.5}])
    assert "unknown" in table and "[" not in table


@given(st.lists(st.integers(0, 200), min_size=1, max_size=6))
def test_before_is_the_first_and_after_the_last_evaluation(successes):
    (panel,) = panels.panels([evaluation(step, count) for step, count in enumerate(successes)])
    assert (panel.before, panel.after) == ((successes[0], 200), (successes[-1], 200))

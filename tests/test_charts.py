"""Charts are well-formed, draw what they are given, and stay readable for odd input."""

import math
import re
import xml.etree.ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rspo_jax import charts

numbers = st.floats(-1e12, 1e12, allow_subnormal=False)


def parse(text):
    return xml.etree.ElementTree.fromstring(f"<root>{text}</root>")


def coordinates(path):
    return [tuple(map(float, point.split())) for point in re.split("[ML]", path.get("d"))[1:]]


@given(
    st.lists(st.tuples(numbers, st.one_of(numbers, st.just(math.nan))), max_size=80),
    st.booleans(),
    st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"])),
)
def test_any_series_gives_well_formed_svg_inside_the_frame(points, percent, name):
    xs, ys = [x for x, _ in points], [y for _, y in points]
    text = charts.line_chart([charts.Series(name, xs, ys)], "x", percent=percent)
    if not any(math.isfinite(y) for y in ys):
        assert text == ""
        return
    root = parse(text)
    lines = [path for path in root.iter("path") if path.get("class") != "grid"]
    assert lines
    for x, y in [point for path in lines for point in coordinates(path)]:
        assert -0.1 <= x <= charts.WIDTH + 0.1 and -0.1 <= y <= charts.HEIGHT + 0.1


@given(numbers, st.floats(1e-6, 1e12))
def test_ticks_are_round_cover_the_top_and_are_few(low, width):
    high = low + max(width, abs(low) * 1e-6)
    marks = charts.ticks(low, high)
    steps = {round((b - a) / (marks[1] - marks[0]), 3) for a, b in zip(marks, marks[1:], strict=False)}
    assert 2 <= len(marks) <= 8
    assert steps == {1.0}
    assert marks[-1] >= high - 1e-6 * (marks[1] - marks[0])


def test_ticks_of_a_rate_are_tenths():
    assert charts.ticks(0.0, 0.5) == [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]


@pytest.mark.parametrize(
    ("value", "percent", "text"),
    [
        (0.125, True, "12.5 %"),
        (31_400, False, "31.4k"),
        (2.4e6, False, "2.4M"),
        (1e-6, False, "1.0e-06"),
        (0, False, "0"),
    ],
)
def test_numbers_are_short(value, percent, text):
    assert charts.number(value, percent) == text


def test_rising_values_rise_on_the_screen():
    root = parse(charts.line_chart([charts.Series("a", [0, 1, 2], [0.1, 0.2, 0.4])], "x"))
    (line,) = [path for path in root.iter("path") if path.get("class") != "grid"]
    xs, ys = zip(*coordinates(line), strict=True)
    assert list(xs) == sorted(xs) and list(ys) == sorted(ys, reverse=True)


def test_one_spike_does_not_flatten_the_curve():
    values = [math.sin(i / 5) for i in range(200)]
    values[100] = 1e6
    root = parse(charts.line_chart([charts.Series("a", range(200), values)], "x"))
    line = [path for path in root.iter("path") if path.get("class") != "grid"][-1]
    heights = [y for _, y in coordinates(line)][20:60]
    assert max(heights) - min(heights) > 15


def test_band_dashes_marks_and_last_value_are_drawn():
    series = charts.Series("A & B", [0, 1], [0.2, 0.4], dashed=True, marks=True, low=[0.1, 0.3], high=[0.3, 0.5])
    text = charts.line_chart([series], "x", percent=True)
    root = parse(text)
    assert len(list(root.iter("polygon"))) == 1 and len(list(root.iter("circle"))) == 2
    assert "stroke-dasharray" in text and "<b>40.0 %</b>" in text and "A &amp; B" in text


def test_long_lines_are_thinned():
    root = parse(charts.line_chart([charts.Series("a", range(5000), [i % 7 for i in range(5000)])], "x"))
    assert all(len(coordinates(p)) <= charts.MAX_POINTS for p in root.iter("path") if p.get("class") != "grid")

"""Line charts as inline SVG: text in, text out, so that a report is one file that needs no network and no script."""

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

# Okabe and Ito's palette: told apart by people with any colour vision.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#7f7f7f")

WIDTH, HEIGHT = 440, 240
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 12, 34
MAX_POINTS = 300  # per line: finer than the pixels of the chart


@dataclass(frozen=True)
class Series:
    """One line. `low` and `high` give a band around it; `marks` puts a dot with a tooltip on every point."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: str = COLOURS[0]
    dashed: bool = False
    marks: bool = False
    low: Sequence[float] = field(default=())
    high: Sequence[float] = field(default=())


def line_chart(series: Sequence[Series], x_label: str, *, percent: bool = False) -> str:
    """An SVG element with axes, grid and a legend that gives each line's last value; "" where nothing can be drawn.

    Points that are not finite are left out. A noisy line (more than 50 points) is drawn faint, with its running mean
    over a 25th of the points to both sides on top.
    """
    series = [clean for clean in map(_finite, series) if len(clean.x)]
    if not series:
        return ""
    values = np.concatenate([np.asarray([*s.y, *s.low, *s.high], float) for s in series])
    xs = np.concatenate([np.asarray(s.x, float) for s in series])
    x_low, x_high = _widened(xs.min(), xs.max())
    y_low, y_high = (0.0, max(0.05, values.max())) if percent else _widened(*_core_range(values))
    y_ticks, x_ticks = ticks(y_low, y_high), ticks(x_low, x_high)
    y_low, y_high = min(y_low, y_ticks[0]), max(y_high, y_ticks[-1])

    def px(x):
        return LEFT + (np.asarray(x, float) - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT)

    def py(y):
        y = np.clip(np.asarray(y, float), y_low, y_high)
        return HEIGHT - BOTTOM - (y - y_low) / (y_high - y_low) * (HEIGHT - TOP - BOTTOM)

    parts = [f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">', _axes(px, py, x_ticks, y_ticks, percent)]
    parts.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 4}" class="label">{html.escape(x_label)}</text>')
    parts += [_line(s, px, py, percent) for s in series]
    parts.append("</svg>")
    return "".join(parts) + _legend(series, percent)


def number(value: float, percent: bool = False) -> str:
    """A short number for people: 12.5 %, 3.1k, 2.40M, 1.0e-06."""
    if percent:
        return f"{100 * value:.1f} %"
    size = abs(value)
    for scale, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= scale:
            scale = 1e3 if suffix == "k" else scale
            return f"{value / scale:.3g}{suffix}"
    if size and size < 1e-3:
        return f"{value:.1e}"
    return f"{value:.4g}"


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers (1, 2 or 5 times a power of ten apart) that cover [low, high]."""
    step = 10 ** math.floor(math.log10((high - low) / count))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= count)
    first, last = math.ceil(low / step - 1e-9), math.ceil(high / step - 1e-9)
    # Rounded: 3 * 0.1 would be labelled 0.30000000000000004.
    return [round(i * step, 12 - math.floor(math.log10(step))) for i in range(first, last + 1)]


def _finite(s: Series) -> Series:
    keep = np.isfinite(np.asarray(s.x, float)) & np.isfinite(np.asarray(s.y, float))
    columns = {name: np.asarray(getattr(s, name), float) for name in ("x", "y", "low", "high")}
    return Series(
        s.name,
        colour=s.colour,
        dashed=s.dashed,
        marks=s.marks,
        **{name: column[keep] if column.size else column for name, column in columns.items()},
    )


def _core_range(values: np.ndarray) -> tuple[float, float]:
    """The range to show: all values, unless a few spikes would flatten the rest to a line."""
    low, high = values.min(), values.max()
    inner_low, inner_high = np.quantile(values, [0.02, 0.98])
    spread = inner_high - inner_low
    if spread > 0:
        low, high = max(low, inner_low - 2 * spread), min(high, inner_high + 2 * spread)
    return float(low), float(high)


def _widened(low: float, high: float) -> tuple[float, float]:
    """The same range, or one around a single value."""
    if high - low > 1e-12 * max(abs(low), abs(high), 1e-300):
        return low, high
    half = 0.5 * abs(low) or 0.5
    return low - half, high + half


def _axes(px, py, x_ticks, y_ticks, percent: bool) -> str:
    parts = []
    for tick in y_ticks:
        y = float(py(tick))
        label = f"{100 * tick:.3g}%" if percent else number(tick)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" class="grid"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" class="y">{label}</text>')
    for tick in x_ticks:
        x = float(px(tick))
        if LEFT <= x <= WIDTH - RIGHT + 1:
            parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 15}" class="x">{number(tick)}</text>')
    return "".join(parts)


def _line(s: Series, px, py, percent: bool) -> str:
    x, y = px(s.x), py(s.y)
    parts = []
    if len(s.low):
        edge = [f"{a:.1f},{b:.1f}" for a, b in zip(x, py(s.high), strict=True)]
        edge += [f"{a:.1f},{b:.1f}" for a, b in zip(x[::-1], py(s.low)[::-1], strict=True)]
        parts.append(f'<polygon points="{" ".join(edge)}" fill="{s.colour}" opacity="0.15"/>')
    noisy = len(x) > 50
    dash = ' stroke-dasharray="5 3"' if s.dashed else ""
    if noisy:
        parts.append(_path(x, y, f'stroke="{s.colour}" opacity="0.25" stroke-width="1"'))
        y = _running_mean(y, len(y) // 25)
    parts.append(_path(x, y, f'stroke="{s.colour}" stroke-width="1.8"{dash}'))
    if s.marks or len(x) == 1:
        parts += [
            f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{s.colour}"><title>{html.escape(s.name)}: '
            f"{number(value, percent)} at {number(at)}</title></circle>"
            for a, b, value, at in zip(x, y, s.y, s.x, strict=True)
        ]
    return "".join(parts)


def _path(x: np.ndarray, y: np.ndarray, style: str) -> str:
    if len(x) > MAX_POINTS:
        keep = np.unique(np.linspace(0, len(x) - 1, MAX_POINTS).round().astype(int))
        x, y = x[keep], y[keep]
    points = "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(x, y, strict=True))
    return f'<path d="M{points}" fill="none" stroke-linejoin="round" {style}/>'


def _running_mean(y: np.ndarray, window: int) -> np.ndarray:
    """Centred mean over `window` points to both sides, fewer at the ends."""
    total = np.concatenate([[0.0], np.cumsum(y)])
    index = np.arange(len(y))
    low, high = np.maximum(index - window, 0), np.minimum(index + window + 1, len(y))
    return (total[high] - total[low]) / (high - low)


def _legend(series: Sequence[Series], percent: bool) -> str:
    items = "".join(
        f'<span><i style="border-top:3px {"dashed" if s.dashed else "solid"} {s.colour}"></i>{html.escape(s.name)} '
        f"<b>{number(float(s.y[-1]), percent)}</b></span>"
        for s in series
    )
    return f'<div class="legend">{items}</div>'

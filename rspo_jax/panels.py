"""Success on the fixed panels with its intervals, from the rows of a run: what reports and tables show."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rspo_jax.statistics import difference_interval, wilson_interval


@dataclass(frozen=True)
class Panel:
    """Results on one fixed panel, or on its tasks of one type: (successes, episodes) at two evaluations."""

    split: str
    task_type: str
    before: tuple[int, int]
    after: tuple[int, int]

    @property
    def name(self) -> str:
        return f"{self.split} / {self.task_type}" if self.task_type else self.split


def panels(rows: Iterable[Mapping]) -> list[Panel]:
    """First and last evaluation of every panel, and of every task type in it, in order of appearance."""
    seen: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for row in rows:
        for name, rate in row.items():
            match = re.fullmatch(r"eval/([\w.-]+)/success(?:/(.+))?", name)
            if match and rate is not None:
                split, task_type = match[1], match[2] or ""
                episodes = row.get(f"eval/{split}/episodes" + (f"/{task_type}" if task_type else "")) or 0
                seen.setdefault((split, task_type), []).append((round(rate * episodes), int(episodes)))
    order = list(dict.fromkeys(split for split, _ in seen))
    keys = sorted(seen, key=lambda key: (order.index(key[0]), key[1]))
    return [Panel(*key, seen[key][0], seen[key][-1]) for key in keys]


def summary_table(rows: Sequence[Mapping]) -> str:
    """Success on the fixed panels as plain text with 95 % intervals: before, after and change, or one evaluation."""
    found = panels(rows)
    if not found:
        return "no evaluation on a fixed panel yet"
    once = sum(any(name.startswith("eval/") for name in row) for row in rows) == 1
    if once:
        table = [("panel", "episodes", "success")]
        table += [(panel.name, str(panel.after[1]), rate_text(panel.after)) for panel in found]
    else:
        table = [("panel", "episodes", "before", "after", "difference")]
        table += [
            (p.name, str(p.after[1]), rate_text(p.before), rate_text(p.after), change_text(p.before, p.after))
            for p in found
        ]
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in table]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "success rate, 95 % intervals\n" + "\n".join(lines)


def rate_text(count: tuple[int, int]) -> str:
    """(successes, episodes) in percent with the interval."""
    successes, n = count
    if n == 0:
        return "unknown"
    low, high = wilson_interval(successes, n)
    return f"{100 * successes / n:.1f} % [{100 * low:.1f}, {100 * high:.1f}]"


def change_text(before: tuple[int, int], after: tuple[int, int]) -> str:
    """The difference in points with its interval."""
    if before[1] == 0 or after[1] == 0:
        return "unknown"
    low, high = difference_interval(*before, *after)
    points = after[0] / after[1] - before[0] / before[1]
    return f"{100 * points:+.1f} points [{100 * low:+.1f}, {100 * high:+.1f}]"

"""The report of one run, or of several side by side: an HTML file made from files of work directories."""

import html
import json
import os
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rspo_jax import charts, configuration, metrics
from rspo_jax.panels import Panel, change_text, panels, rate_text
from rspo_jax.statistics import wilson_interval

AXES = {"step": "updates of A", "episodes": "episodes sampled (A and B)", "tokens": "tokens sampled (A and B)"}
# Rows of these phases are about agent A, and about the guide B.
AGENTS = {"A": ("target", "sft", "reward_model"), "B": ("guide", "collect")}
# Charts shown first, in this order; what else a run recorded follows in a folded part.
MAIN_CHARTS = (
    "success",
    "return",
    "loss",
    "kl",
    "entropy",
    "clip_fraction_on",
    "clip_fraction_off",
    "tokens_per_second",
)
# Metrics between 0 and 1, shown in percent.
SHARES = re.compile(r"success|valid_actions|truncated|token_accuracy|(value_)?clip_fraction\w*|groups_\w+")
TRANSCRIPTS = 4  # episodes shown from the first and from the last file


@dataclass(frozen=True)
class Run:
    """What a report needs of one work directory."""

    name: str
    workdir: pathlib.Path
    rows: list[dict]
    config: dict


def build_report(
    workdirs: str | os.PathLike | Sequence[str | os.PathLike], output: str | os.PathLike | None = None
) -> pathlib.Path:
    """Writes a self-contained HTML page about one run, or an overlay of several; returns its path.

    Args:
        workdirs: one work directory or several; the first is the one that the others are compared with.
        output: path of the page; default report.html in the first work directory.

    Raises:
        FileNotFoundError: a work directory has no metrics.jsonl.
        ValueError: a file of a work directory is damaged.
    """
    workdirs = [workdirs] if isinstance(workdirs, str | os.PathLike) else list(workdirs)
    runs = load_runs(workdirs)
    title = "RSPO report: " + ", ".join(run.name for run in runs)
    sections = [_header(title, runs), _axis_inputs(), "<main>"]
    sections += [_summary(runs), _curves(runs), _phases(runs), _configuration(runs), _transcripts(runs), "</main>"]
    page = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>{"".join(sections)}'
        "</body></html>\n"
    )
    path = pathlib.Path(output) if output else pathlib.Path(workdirs[0]) / "report.html"
    temporary = path.with_suffix(".tmp")
    temporary.write_text(page, encoding="utf-8")
    os.replace(temporary, path)
    return path


def load_runs(workdirs: Sequence[str | os.PathLike]) -> list[Run]:
    """Runs under names that tell them apart: the directory's name, with its parents where two are equal."""
    paths = [pathlib.Path(workdir).absolute() for workdir in workdirs]
    depth = 1
    while len({path.parts[-depth:] for path in paths}) < len(set(paths)):
        depth += 1
    runs = []
    for path in paths:
        rows = carry_forward(metrics.read_rows(path))
        config = path / "config.json"
        try:
            settings = json.loads(config.read_text()) if config.is_file() else {}
        except json.JSONDecodeError:
            raise ValueError(f"{config} is not JSON: remove it to have a report without it") from None
        runs.append(Run("/".join(path.parts[-depth:]), path, rows, settings))
    return runs


def carry_forward(rows: Iterable[Mapping]) -> list[dict]:
    """Rows in which every axis has a value: an evaluation counts no samples, so it stands where the run is."""
    last = dict.fromkeys(AXES, 0)
    result = []
    for row in rows:
        last |= {axis: row[axis] for axis in AXES if row.get(axis) is not None}
        result.append({**row, **last})
    return result


def _table(head: Sequence[str], lines: Iterable[Sequence[str]], css: str = "") -> str:
    """An HTML table; every cell is escaped."""
    body = "".join("<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in line) + "</tr>" for line in lines)
    top = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    return f'<div class="scroll"><table class="{css}"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _header(title: str, runs: Sequence[Run]) -> str:
    lines = []
    for run in runs:
        last = run.rows[-1] if run.rows else dict.fromkeys(AXES, 0)
        text = f"{last['step']:,} updates of A · {last['episodes']:,} episodes · {last['tokens']:,} tokens"
        seconds = [row["seconds"] for row in run.rows if row.get("seconds") is not None]
        if seconds:
            text += f" · {seconds[-1] / 60:.1f} minutes"
        if run.config:
            text += f" · configuration {configuration.fingerprint(run.config)}"
        lines.append(f"<p><b>{html.escape(run.name)}</b> {html.escape(text)}</p>")
    return f"<header><h1>{html.escape(title)}</h1>{''.join(lines)}</header>"


def _summary(runs: Sequence[Run]) -> str:
    cards, lines, by_type = [], [], []
    first = {panel.name: panel for panel in panels(runs[0].rows)}
    for run in runs:
        for panel in panels(run.rows):
            line = [run.name, panel.name, str(panel.after[1]), rate_text(panel.before), rate_text(panel.after)]
            line.append(change_text(panel.before, panel.after))
            if len(runs) > 1:
                base = first.get(panel.name)
                line.append("" if run is runs[0] or not base else change_text(base.after, panel.after))
            (by_type if panel.task_type else lines).append(line if len(runs) > 1 else line[1:])
            if not panel.task_type:
                cards.append(_card(panel, run.name if len(runs) > 1 else ""))
    if not lines:
        return "<section><h2>Success on the fixed panels</h2><p>No evaluation yet.</p></section>"
    head = ["panel", "episodes", "before", "after", "difference"]
    if len(runs) > 1:
        head = ["run", *head, f"after, against {runs[0].name}"]
    text = (
        f'<section><h2>Success on the fixed panels</h2><div class="cards">{"".join(cards)}</div>{_table(head, lines)}'
    )
    if by_type:
        text += f"<h3>By task type</h3>{_table(head, by_type)}"
    note = "Intervals cover 95 %: Wilson's for a rate, Newcombe's for a difference."
    return text + f'<p class="note">{note} Before and after are the first and the last evaluation.</p></section>'


def _card(panel: Panel, run: str) -> str:
    before, after = (100 * count[0] / max(count[1], 1) for count in (panel.before, panel.after))
    name = html.escape(f"{run}: {panel.name}" if run else panel.name)
    return (
        f'<div class="card"><span>{name}</span><strong>{before:.1f} % → {after:.1f} %</strong>'
        f"<em>{html.escape(change_text(panel.before, panel.after))}</em></div>"
    )


def _axis_inputs() -> str:
    """Radio buttons that choose the horizontal axis of all charts, without a script."""
    text = '<span class="axis">Curves against</span>'
    for axis, label in AXES.items():
        checked = " checked" if axis == "step" else ""
        text += f'<input type="radio" name="axis" id="axis-{axis}"{checked}><label for="axis-{axis}">{label}</label>'
    return text


def _curves(runs: Sequence[Run]) -> str:
    names = {name for run in runs for row in run.rows for name, value in row.items() if isinstance(value, int | float)}
    names -= {*AXES, "loop", "seconds"}
    splits = sorted({m[1] for m in (re.fullmatch(r"eval/([\w.-]+)/success", name) for name in names) if m})
    main = [
        _figure(f"success on panel {split}", lambda axis, s=split: _panel_series(runs, s, axis)) for split in splits
    ]
    others = sorted(name for name in names if not name.startswith("eval/") and name not in MAIN_CHARTS)
    main += [_metric_figure(runs, name) for name in MAIN_CHARTS if name in names]
    folded = "".join(_metric_figure(runs, name) for name in others)
    if folded:
        folded = (
            f"<details><summary>All other metrics ({len(others)})</summary><div class='grid'>{folded}</div></details>"
        )
    note = "A is the target agent, B the guide. Long curves are faint, with their running mean on top."
    return (
        f'<section><h2>Curves</h2><p class="note">{note}</p><div class="grid">{"".join(main)}</div>{folded}</section>'
    )


def _metric_figure(runs: Sequence[Run], name: str) -> str:
    percent = bool(SHARES.fullmatch(name))
    return _figure(name, lambda axis: _metric_series(runs, name, axis), metrics.describe(name) or "", percent)


def _figure(title: str, series, description: str = "", percent: bool = True) -> str:
    """A figure with one chart for every axis, of which the page shows the chosen one."""
    drawn = {axis: charts.line_chart(series(axis), label, percent=percent) for axis, label in AXES.items()}
    if not any(drawn.values()):
        return ""
    body = "".join(f'<div class="by-{axis}">{chart}</div>' for axis, chart in drawn.items())
    caption = f"<b>{html.escape(title)}</b> {html.escape(description)}"
    return f"<figure><figcaption>{caption}</figcaption>{body}</figure>"


def _panel_series(runs: Sequence[Run], split: str, axis: str) -> list[charts.Series]:
    result = []
    for index, run in enumerate(runs):
        rows = [row for row in run.rows if row.get(f"eval/{split}/success") is not None]
        rates = [row[f"eval/{split}/success"] for row in rows]
        sizes = [int(row.get(f"eval/{split}/episodes") or 0) for row in rows]
        bands = [
            wilson_interval(round(rate * n), n) if n else (rate, rate) for rate, n in zip(rates, sizes, strict=True)
        ]
        low, high = zip(*bands, strict=True) if bands else ((), ())
        name = run.name if len(runs) > 1 else "A"
        xs = [row[axis] for row in rows]
        result.append(charts.Series(name, xs, rates, _colour(index), marks=True, low=low, high=high))
    return result


def _metric_series(runs: Sequence[Run], name: str, axis: str) -> list[charts.Series]:
    result = []
    for index, run in enumerate(runs):
        for position, (agent, phases) in enumerate(AGENTS.items()):
            points: dict[float, list[float]] = {}
            for row in run.rows:
                if row.get("phase") in phases and isinstance(row.get(name), int | float):
                    points.setdefault(row[axis], []).append(row[name])
            label = f"{run.name} {agent}" if len(runs) > 1 else agent
            # Several updates of B lie between two of A: on that axis they are one point, their mean.
            ys = [sum(values) / len(values) for values in points.values()]
            colour = _colour(index if len(runs) > 1 else position)
            result.append(charts.Series(label, list(points), ys, colour, dashed=agent == "B"))
    return result


def _colour(index: int) -> str:
    return charts.COLOURS[index % len(charts.COLOURS)]


def _phases(runs: Sequence[Run]) -> str:
    """Where episodes, tokens and time went."""
    lines = []
    for run in runs:
        totals: dict[str, list[float]] = {}
        previous = {"episodes": 0, "tokens": 0, "seconds": 0.0}
        for row in run.rows:
            total = totals.setdefault(row.get("phase", ""), [0, 0, 0, 0.0])
            total[0] += 1
            for position, (key, before) in enumerate(list(previous.items()), 1):
                now = row.get(key)
                if now is not None:
                    # A resumed run counts its seconds anew.
                    total[position] += max(now - before, 0)
                    previous[key] = now
        for phase, (count, episodes, tokens, seconds) in totals.items():
            meaning = metrics.PHASES.get(phase, "")
            numbers = [f"{count:,}", f"{episodes:,}", f"{tokens:,}", f"{seconds:,.0f}"]
            lines.append([*([run.name] if len(runs) > 1 else []), phase, meaning, *numbers])
    head = ["phase", "what happens", "rows", "episodes", "tokens", "seconds"]
    table = _table(["run", *head] if len(runs) > 1 else head, lines)
    return f"<section><h2>Phases</h2>{table}</section>"


def _configuration(runs: Sequence[Run]) -> str:
    flat = [configuration.flatten(run.config) for run in runs]
    keys = sorted({key for one in flat for key in one})
    lines = [[key, *(one.get(key, "absent") for one in flat)] for key in keys]
    head = ["key", *(run.name for run in runs)]
    text = ""
    if len(runs) > 1:
        differing = [line for line in lines if len(set(line[1:])) > 1]
        text = (
            f"<h3>Differences</h3>{_table(head, differing)}" if differing else "<p>All runs have one configuration.</p>"
        )
    text += f"<details><summary>All {len(keys)} keys</summary>{_table(head, lines, 'keys')}</details>"
    return f"<section><h2>Configuration</h2>{text}</section>"


def _transcripts(runs: Sequence[Run]) -> str:
    parts = []
    for run in runs:
        files = sorted((run.workdir / "episodes").glob("*.jsonl"), key=_transcript_step)
        for path in dict.fromkeys(files[:1] + files[-1:]):
            shown = "".join(map(_episode, _read_episodes(path)[:TRANSCRIPTS]))
            parts.append(f"<h3>{html.escape(f'{run.name}: {path.name}')}</h3>{shown}")
    return f"<section><h2>Sampled episodes</h2>{''.join(parts) or '<p>None recorded.</p>'}</section>"


def _read_episodes(path: pathlib.Path) -> list[dict]:
    """Episodes of a file of JSON lines; the run may still be writing it, so an unfinished last line is left out."""
    return [json.loads(line) for line in path.read_text().split("\n")[:-1] if line]


def _transcript_step(path: pathlib.Path) -> tuple[int, str]:
    digits = re.findall(r"\d+", path.stem)
    return (int(digits[-1]) if digits else 0, path.name)


def _episode(episode: Mapping) -> str:
    verdict = "success" if episode.get("success") else "failure"
    facts = [f"{key} {value}" for key, value in episode.items() if isinstance(value, int | float | str)]
    facts = [fact for fact in facts if not fact.startswith(("task ", "success "))]
    turns = "".join(_turn(number, turn) for number, turn in enumerate(episode.get("turns", ()), 1))
    task = html.escape(str(episode.get("task", "")))
    return (
        f'<details class="episode"><summary><span class="{verdict}">{verdict}</span> {task}</summary>'
        f'<p class="note">{html.escape(" · ".join(facts))}</p><ol>{turns}</ol></details>'
    )


def _turn(number: int, turn: Mapping) -> str:
    flags = "" if turn.get("valid", True) else ' <span class="failure">invalid</span>'
    if turn.get("reward"):
        flags += f" <span>reward {html.escape(str(turn['reward']))}</span>"
    texts = f"<pre>{html.escape(str(turn.get('observation', '')))}</pre>"
    response, action = str(turn.get("response", "")), str(turn.get("action", ""))
    if response.strip() != action.strip():
        texts += f'<pre class="response">{html.escape(response)}</pre>'
    return f'<li value="{number}">{texts}<code>{html.escape(action)}</code>{flags}</li>'


_STYLE = """
:root{--ink:#1b2430;--soft:#5d6a78;--line:#e2e7ec;--paper:#fff;--ground:#f5f7f9;--good:#00734f;--bad:#b3400a}
@media(prefers-color-scheme:dark){:root{--ink:#e6eaee;--soft:#98a4b0;--line:#303943;--paper:#1b2128;--ground:#12161b;
--good:#3fc79a;--bad:#ff9a5c}}
*{box-sizing:border-box}body{margin:0 auto;max-width:1180px;padding:24px;background:var(--ground);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
h1{font-size:24px;margin:0 0 6px;overflow-wrap:anywhere}
h2{font-size:18px;margin:0 0 12px}h3{font-size:15px;margin:18px 0 8px}
header p{margin:2px 0;color:var(--soft)}header b{color:var(--ink)}
section{background:var(--paper);border:1px solid var(--line);border-radius:10px;padding:18px 20px;margin:16px 0}
.axis{color:var(--soft);margin-right:8px}input[name=axis]{margin:16px 4px 0 8px;accent-color:#0072b2}
.cards{display:flex;flex-wrap:wrap;gap:12px;margin-bottom:14px}
.card{border:1px solid var(--line);border-radius:8px;padding:10px 16px;display:flex;flex-direction:column}
.card span,.card em{color:var(--soft);font-style:normal;font-size:13px}.card strong{font-size:22px}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:5px 14px 5px 0;border-bottom:1px solid var(--line);vertical-align:top}
th,td{white-space:nowrap}th{color:var(--soft);font-weight:600;font-size:13px}
.keys td{white-space:normal;overflow-wrap:anywhere;font-family:ui-monospace,monospace;font-size:13px}
.grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(330px,1fr));gap:18px}
figure{margin:0;min-width:0}figcaption{font-size:13px;color:var(--soft);min-height:40px}figcaption b{color:var(--ink)}
.chart{width:100%;height:auto;display:block}.chart .grid{stroke:var(--line);fill:none}
.chart text{fill:var(--soft);font-size:11px}.chart .y{text-anchor:end}.chart .x,.chart .label{text-anchor:middle}
.legend{font-size:13px;color:var(--soft);display:flex;flex-wrap:wrap;gap:4px 16px}.legend b{color:var(--ink)}
.legend i{display:inline-block;width:20px;margin-right:6px;vertical-align:middle}
.by-episodes,.by-tokens{display:none}
#axis-episodes:checked~main .by-episodes,#axis-tokens:checked~main .by-tokens{display:block}
#axis-episodes:checked~main .by-step,#axis-tokens:checked~main .by-step{display:none}
.note{color:var(--soft);font-size:13px}details{margin:8px 0}summary{cursor:pointer;color:var(--soft)}
.episode summary{color:var(--ink)}.success{color:var(--good);font-weight:600}.failure{color:var(--bad);font-weight:600}
pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:4px 0;padding:8px 10px;border-radius:6px;font-size:12.5px;
background:var(--ground);max-height:260px;overflow:auto}.response{border-left:3px solid #0072b2}
code{font-weight:600;overflow-wrap:anywhere}li{margin:10px 0}
"""

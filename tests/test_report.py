"""The report says what the work directory says, escapes it, and needs nothing else."""

import html.parser
import json

import pytest

from rspo_jax import configuration, metrics, report

VOID = {"meta", "input", "br", "link", "img"}


class Page(html.parser.HTMLParser):
    """Checks that tags are balanced; collects tags with attributes, and the text."""

    def __init__(self, text):
        super().__init__()
        self.stack, self.tags, self.text = [], [], ""
        self.feed(text)
        assert self.stack == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        self.text += data


def evaluation(step, successes, episodes=200, **more):
    rates = {"eval/valid/success": successes / episodes, "eval/valid/episodes": episodes}
    return {"step": step, "phase": "eval", **rates, **more}


def make_run(workdir, after=120, alpha=0.125):
    configuration.save_config(workdir, {"rspo": {"alpha": alpha, "enabled": True}, "seed": 0})
    types = {"eval/valid/success/clean <i>": 0.25, "eval/valid/episodes/clean <i>": 40}
    with metrics.MetricsWriter(workdir, progress=False) as writer:
        writer.write(evaluation(0, 40, **types))
        for step in range(1, 4):
            base = {"loss": 0.1 * step, "success": 0.2 * step, "buffer_successes": 90}
            counts = {"episodes": 20 * step - 10, "tokens": 200 * step - 100, "seconds": 2.0 * step - 1}
            writer.write({"step": step, "phase": "guide", **base, **counts})
            counts = {"episodes": 20 * step, "tokens": 200 * step, "seconds": 2.0 * step}
            writer.write({"step": step, "phase": "target", **base, **counts, "kl": float("nan")})
        writer.write(evaluation(3, after, **types))
        turns = [
            {"observation": "</pre><script>alert(1)</script>", "response": "<think>x</think>", "action": "go & buy"}
        ]
        episode = {"task": "<b>shoes</b>", "success": True, "return": 10.0, "turns": turns}
        writer.transcripts(3, "eval", [episode])
    return workdir


def test_a_report_is_one_well_formed_file_without_scripts_or_links(tmp_path):
    path = report.build_report(make_run(tmp_path / "run"))
    page = Page(path.read_text())
    assert path == tmp_path / "run" / "report.html"
    assert not {"script", "link", "img", "iframe", "a"} & {tag for tag, _ in page.tags}
    assert not [attrs for _, attrs in page.tags if {"src", "href", "onload", "onclick"} & attrs.keys()]
    assert "url(" not in path.read_text() and "@import" not in path.read_text()


def test_what_the_run_recorded_is_shown_as_text(tmp_path):
    page = Page(report.build_report(make_run(tmp_path / "run")).read_text())
    for words in [
        "20.0 % → 60.0 %",
        "+40.0 points [+30.8, +48.2]",
        "60.0 % [53.1, 66.5]",
        "valid / clean <i>",
        "25.0 % [14.2, 40.2]",
        "3 updates of A · 60 episodes · 600 tokens · 0.1 minutes",
        "rspo.alpha",
        "0.125",
        "</pre><script>alert(1)</script>",
        "<think>x</think>",
        "go & buy",
        "<b>shoes</b>",
        metrics.METRICS["loss"],
        "buffer_successes",
    ]:
        assert words in page.text, words


def test_episodes_tokens_and_time_are_counted_where_they_were_spent(tmp_path):
    page = Page(report.build_report(make_run(tmp_path / "run")).read_text())
    assert "guideupdate of the guide B3303003" in page.text
    assert "targetupdate of the target agent A3303003" in page.text


def test_every_chart_comes_on_three_axes(tmp_path):
    page = Page(report.build_report(make_run(tmp_path / "run")).read_text())
    classes = [attrs.get("class") for _, attrs in page.tags]
    figures = sum(tag == "figure" for tag, _ in page.tags)
    assert figures >= 3
    assert [classes.count(f"by-{axis}") for axis in report.AXES] == [figures] * 3
    assert [attrs["id"] for tag, attrs in page.tags if tag == "input"] == [f"axis-{axis}" for axis in report.AXES]


def test_several_runs_are_laid_over_each_other(tmp_path):
    first, second = make_run(tmp_path / "a" / "run"), make_run(tmp_path / "b" / "run", after=60, alpha=0.25)
    page = Page(report.build_report([first, second], tmp_path / "both.html").read_text())
    assert "after, against a/run" in page.text
    assert "-30.0 points" in page.text  # 60 of 200 against 120 of 200
    differences = page.text[page.text.index("Differences") : page.text.index("All 3 keys")]
    assert "rspo.alpha0.1250.25" in differences and "seed" not in differences
    assert "a/run A" in page.text and "b/run B" in page.text


def test_a_run_that_has_just_begun_gives_a_report(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("")
    page = Page(report.build_report(tmp_path).read_text())
    assert "No evaluation yet" in page.text and "None recorded" in page.text


def test_a_directory_without_a_run_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="metrics.jsonl does not exist"):
        report.build_report(tmp_path)


def test_rows_without_an_axis_stand_where_the_run_is():
    rows = report.carry_forward([{"step": 0}, {"step": 1, "episodes": 8, "tokens": 80}, {"step": 1, "tokens": None}])
    assert [(row["step"], row["episodes"], row["tokens"]) for row in rows] == [(0, 0, 0), (1, 8, 80), (1, 8, 80)]


def test_an_unfinished_transcript_line_is_left_out(tmp_path):
    workdir = make_run(tmp_path)
    path = workdir / "episodes" / "eval-000005.jsonl"
    path.write_text(json.dumps({"task": "whole"}) + '\n{"task": "cut')
    page = Page(report.build_report(workdir).read_text())
    assert "whole" in page.text and "cut" not in page.text[page.text.index("Sampled episodes") :]


def test_a_damaged_configuration_is_named(tmp_path):
    workdir = make_run(tmp_path)
    (workdir / "config.json").write_text("{")
    with pytest.raises(ValueError, match="config.json is not JSON"):
        report.build_report(workdir)

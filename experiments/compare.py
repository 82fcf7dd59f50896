"""Variants of RSPO and its baselines on equal terms: success against updates of A and against episodes sampled.

    python experiments/compare.py --config=configs/alfworld_grpo.py:sparse --seeds=0,1,2 --steps=60 --out=runs/compare

Every variant is a set of flags of run.py. A finished run in --out is not run again, so the table can grow. The three
baselines are those that a comparison needs: the base algorithm at equal updates of A, with a 2.33 times larger batch,
and with 2.33 times the updates (one loop of RSPO samples 2.33 times the episodes of three base updates).

Columns: success on the first panel after the last update; success of A while it trained, in its last rollouts before
it and its guide had sampled as many episodes as the base algorithm has at the end ("equal episodes") and before as many
as RSPO has ("2.33x"); updates of A; episodes sampled.
"""

import argparse
import json
import pathlib
import subprocess
import sys

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[1]
SMOOTH = 6  # rollouts of A that a success in training is the mean of
COST = 7 / 3  # episodes of a loop of RSPO over those of k base updates

OFF = ["--config.rspo.enabled=False"]
# For starts near zero: the guide keeps learning until it has successes to hand over, and the ratio is to pi_old.
STAYS = ["--config.rspo.guide_reset=until_success", "--config.rspo.off_ratio=old"]
RECYCLED = ["--config.rspo.guide_data=recycled"]
VARIANTS = {
    "base": OFF,
    "base, larger batch": [*OFF, "--config.batch.tasks={large}"],
    "base, more updates": [*OFF, "--config.train.steps={more}"],
    "dense only": [*OFF, "--config.reward=dense"],
    "RSPO": [],
    "RSPO, lr x3": ["--config.rspo.guide_lr_scale=3.0"],
    "RSPO_O": ["--config.rspo.guide_reward=outcome"],
    "RSPO_H": ["--config.rspo.source=history"],
    "RSPO, guide stays": STAYS,
    "RSPO, guide stays, lr x3": [*STAYS, "--config.rspo.guide_lr_scale=3.0"],
    "RSPO_O, guide stays": [*STAYS, "--config.rspo.guide_reward=outcome"],
    "RSPO, recycled": RECYCLED,
    "RSPO, recycled, lr x3": [*RECYCLED, "--config.rspo.guide_lr_scale=3.0"],
    "RSPO, recycled, stays": [*RECYCLED, *STAYS],
    "RSPO, hackable": ["--config.process_reward.source=click"],
    "dense only, hackable": [*OFF, "--config.reward=dense", "--config.process_reward.source=click"],
}


def run(config: str, name: str, seed: int, steps: int, tasks: int, out: pathlib.Path, extra: list[str]) -> pathlib.Path:
    """Trains one variant with one seed unless its result is there; returns the work directory."""
    workdir = out / name.replace(",", "").replace(" ", "-") / str(seed)
    if (workdir / "report.html").is_file():
        return workdir
    flags = [f.format(large=round(COST * tasks), more=round(COST * steps)) for f in VARIANTS[name]]
    command = [
        sys.executable,
        str(ROOT / "run.py"),
        f"--config={config}",
        f"--workdir={workdir}",
        f"--config.seed={seed}",
        f"--config.train.steps={steps}",
        "--config.train.progress=False",
        *extra,
        *flags,
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return workdir


def result(workdir: pathlib.Path, budget: int) -> dict:
    """Success in percent: on the first panel at the end, and in training within `budget` and 2.33 times it; costs."""
    rows = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    last = [row for row in rows if row["phase"] == "eval"][-1]
    panel = next(name for name in last if name.startswith("eval/") and name.endswith("/success"))

    def trained(episodes: float) -> float:
        within = [row["success"] for row in rows if row["phase"] == "target" and row["episodes"] <= episodes]
        return 100 * float(np.mean(within[-SMOOTH:])) if within else float("nan")

    return {
        "panel": 100 * last[panel],
        "equal": trained(budget),
        "more": trained(COST * budget),
        "updates": last["step"],
        "episodes": last["episodes"],
    }


def mean_sd(values) -> str:
    """Mean and standard deviation over seeds, the latter only where there are several."""
    return f"{np.mean(values):.1f}" + (f" +- {np.std(values, ddof=1):.1f}" if len(values) > 1 else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--config", required=True)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--tasks", type=int, default=8, help="batch.tasks of the configuration")
    parser.add_argument("--group", type=int, default=8, help="batch.group_size of the configuration")
    parser.add_argument("--variants", default="", help="names separated by '|'; default: all")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    args, extra = parser.parse_known_args()
    names = args.variants.split("|") if args.variants else list(VARIANTS)
    seeds = [int(s) for s in args.seeds.split(",")]
    budget = args.steps * args.tasks * args.group
    layout = "| {:24} | {:14} | {:12} | {:14} | {:14} | {:7} | {:8} |"
    print(layout.format("variant", "panel %", "each seed", "equal episodes", "2.33x episodes", "updates", "episodes"))
    print("|" + "---|" * 7)
    for name in names:
        runs = [result(run(args.config, name, s, args.steps, args.tasks, args.out, extra), budget) for s in seeds]
        panel, equal, more = ([r[key] for r in runs] for key in ("panel", "equal", "more"))
        each = " ".join(f"{value:.0f}" for value in panel)
        cost = (runs[0]["updates"], runs[0]["episodes"])
        print(layout.format(name, mean_sd(panel), each, mean_sd(equal), mean_sd(more), *cost), flush=True)


if __name__ == "__main__":
    main()

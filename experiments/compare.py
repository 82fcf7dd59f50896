"""Variants of RSPO and its baselines on equal terms: success against updates of A and against episodes sampled.

    python experiments/compare.py --config=configs/alfworld_grpo.py:sparse --seeds=0,1,2 --steps=60 --out=runs/compare

Every variant is a set of flags of run.py. A finished run in --out is not run again, so the table can grow. The three
baselines are those that a comparison needs: the base algorithm at equal updates of A, with a 2.33 times larger batch,
and with 2.33 times the updates (one loop of RSPO samples 2.33 times the episodes of three base updates).
"""

import argparse
import json
import pathlib
import subprocess
import sys

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[1]
COST = 7 / 3  # episodes of a loop of RSPO over those of k base updates

OFF = ["--config.rspo.enabled=False"]
VARIANTS = {
    "base": OFF,
    "base, larger batch": [*OFF, "--config.batch.tasks={large}"],
    "base, more updates": [*OFF, "--config.train.steps={more}"],
    "dense only": [*OFF, "--config.reward=dense"],
    "RSPO": [],
    "RSPO, guide lr x3": ["--config.rspo.guide_lr_scale=3.0"],
    "RSPO_O": ["--config.rspo.guide_reward=outcome"],
    "RSPO_H": ["--config.rspo.source=history"],
    "RSPO, recycled guide": ["--config.rspo.guide_data=recycled"],
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


def result(workdir: pathlib.Path) -> dict:
    """Last success on the first panel, updates of A and episodes sampled."""
    rows = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    last = [row for row in rows if row["phase"] == "eval"][-1]
    panel = next(name for name in last if name.startswith("eval/") and name.endswith("/success"))
    return {"success": last[panel], "updates": last["step"], "episodes": last["episodes"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--config", required=True)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--tasks", type=int, default=8, help="batch.tasks of the configuration")
    parser.add_argument("--variants", default="", help="comma-free names separated by '|'; default: all")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    args, extra = parser.parse_known_args()
    names = args.variants.split("|") if args.variants else list(VARIANTS)
    seeds = [int(s) for s in args.seeds.split(",")]
    print(f"{'variant':24} {'success % (mean +- sd)':24} {'seeds':8} {'updates':>8} {'episodes':>9}")
    for name in names:
        results = [result(run(args.config, name, s, args.steps, args.tasks, args.out, extra)) for s in seeds]
        success = 100 * np.array([r["success"] for r in results])
        spread = f"{success.mean():.1f} +- {success.std(ddof=1) if len(success) > 1 else 0.0:.1f}"
        each = " ".join(f"{s:.0f}" for s in success)
        print(f"{name:24} {spread:24} {each:8} {results[0]['updates']:8} {results[0]['episodes']:9}", flush=True)


if __name__ == "__main__":
    main()

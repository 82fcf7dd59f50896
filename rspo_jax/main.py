"""The modes of the command line."""

import pathlib
import sys
import time

import jax
from absl import flags, logging

from rspo_jax import build, collected, evaluate, metrics, panels, report, reward_fit, reward_model, sft, train
from rspo_jax.validation import validate

MODES = ("train", "eval", "sft", "collect", "reward_model", "report")


def main(argv) -> None:
    """Runs the mode of the flags; errors about what the user gave are one sentence and exit status 2."""
    del argv
    f = flags.FLAGS
    if not f["verbosity"].present:
        logging.set_verbosity(logging.WARNING)
    jax.config.update("jax_compilation_cache_dir", str(_cache_directory()))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
    workdir = pathlib.Path(f.workdir or _default_workdir(f["config"]))
    run = {
        "train": train_mode,
        "eval": eval_mode,
        "sft": sft_mode,
        "collect": collect_mode,
        "reward_model": reward_model_mode,
        "report": report_mode,
    }[f.mode]
    try:
        run(f.config, workdir)
    except (ValueError, OSError) as error:
        if logging.get_verbosity() >= logging.DEBUG:  # --verbosity=1
            raise
        print(f"error: {_sentence(error, workdir)}", file=sys.stderr)
        sys.exit(2)


def _sentence(error: Exception, workdir: pathlib.Path) -> str:
    """What to tell the user: our own words, or the system's about a file with what to look at."""
    if isinstance(error, OSError) and error.strerror:
        place = error.filename or f"--workdir={workdir}"
        return f"{place}: {error.strerror}; check that the path exists, may be written and has space"
    return str(error)


def train_mode(config, workdir: pathlib.Path) -> None:
    """Trains, then prints where things are and the table of the first and last evaluation."""
    start = time.monotonic()
    result = train.train(config, workdir)
    if result:
        print(panels.summary_table(metrics.read_rows(workdir)))
        print(f"agent: {workdir / 'agent'}\nreport: {workdir / 'report.html'}\n{time.monotonic() - start:.0f} s")


def eval_mode(config, workdir: pathlib.Path) -> None:
    """Evaluates the agent at config.model.path (default: the one that WORKDIR's run saved, else the shipped one)."""
    validate(config)
    saved = workdir / "agent"
    path = saved if saved.is_dir() and not config.model.path else build.model_path(config)
    evaluate_agent(config, workdir, path)


def evaluate_agent(config, workdir: pathlib.Path, path: pathlib.Path) -> None:
    """Plays the fixed panels with the agent at `path`; prints the table and writes it under WORKDIR/eval."""
    suite = build.make_suite(config)
    splits = [*config.eval.splits, *config.eval.final_splits]
    evaluate.check_splits(suite, splits)
    with config.unlocked():
        config.model.lora.rank = 0  # a saved agent is whole
    policy, params = build.make_policy(config, build.make_mesh(config), path)
    settings = build.rollout_settings(config, evaluation=True)
    with build.make_pool(config, suite, settings.rows) as pool:
        values, played = evaluate.evaluate(
            policy, params, pool, suite, splits, config.eval.episodes, settings, repeats=config.eval.repeats
        )
    print(panels.summary_table([{"step": 0, "phase": "eval", **values}]))
    print(f"agent: {path}")
    with metrics.MetricsWriter(workdir / "eval", resume_lines=0, progress=False) as writer:
        writer.write({"step": 0, "phase": "eval", **values})
        for split, episodes in played.items():
            writer.transcripts(0, f"eval-{split}", [train.transcript(e, split) for e in episodes])


def sft_mode(config, workdir: pathlib.Path) -> None:
    """Makes an agent by imitation, and evaluates it."""
    validate(config)
    reward_fit.claim(workdir, config)
    with metrics.MetricsWriter(workdir, resume_lines=0, total_steps=config.sft.steps, progress=True) as writer:
        sft.imitate(config, workdir, writer)
    evaluate_agent(config, workdir, workdir / "agent")


def collect_mode(config, workdir: pathlib.Path) -> None:
    """Plays episodes with the configured agent and keeps them in WORKDIR/collected."""
    validate(config)
    reward_fit.claim(workdir, config)
    data = collected.play(config)
    collected.save(workdir / "collected", data)
    rate, turns = 100 * data.success.mean(), data.turns.mean()
    print(f"{len(data.outcome)} episodes, success {rate:.1f} %, {turns:.1f} turns\nepisodes: {workdir / 'collected'}")


def reward_model_mode(config, workdir: pathlib.Path) -> None:
    """Fits a process reward model on collected episodes and saves it in WORKDIR/reward_model."""
    validate(config)
    data = collected.load(config.reward_model.data or workdir / "collected")
    reward_fit.claim(workdir, config)
    with metrics.MetricsWriter(workdir, resume_lines=0, progress=False) as writer:
        model = reward_fit.run(config, data, writer)
    reward_model.save_reward_model(workdir / "reward_model", model)
    print(reward_fit.summary(model.info["held_out"]))
    print(f"process reward model: {workdir / 'reward_model'}")


def report_mode(config, workdir: pathlib.Path) -> None:
    """Writes WORKDIR/report.html again."""
    del config
    print(report.build_report(workdir))


def _default_workdir(config_flag) -> str:
    """runs/NAME or runs/NAME-PRESET of the configuration file."""
    path, _, preset = config_flag.config_filename.partition(":")
    name = pathlib.Path(path).stem
    return str(pathlib.Path("runs") / (f"{name}-{preset}" if preset else name))


def _cache_directory() -> pathlib.Path:
    """Compiled programs, kept between runs; they only save time."""
    return pathlib.Path.home() / ".cache" / "rspo_jax" / "compiled"

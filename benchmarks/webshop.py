"""Speed and memory of the WebShop environment under a searching, browsing and buying agent.

    python benchmarks/webshop.py [FOLDER] [--steps=N]

FOLDER holds items_shuffle_1000.json and items_ins_v2_1000.json, or items_shuffle.json and items_ins_v2.json (.gz will
do). Without it the generated catalogue is used. Times are CPU seconds of this process.
"""

import argparse
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rspo_jax.envs.base import FREE_TEXT
from rspo_jax.envs.webshop import WebShopEnv

MAX_TURNS = 15
_NAMES = (("items_shuffle_1000.json", "items_ins_v2_1000.json"), ("items_shuffle.json", "items_ins_v2.json"))


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def _make(folder: Path | None) -> WebShopEnv:
    if folder is None:
        from rspo_jax.envs.webshop import generated_suite

        return generated_suite(seed=0).make_env()
    for names in _NAMES:
        for ending in ("", ".gz"):
            paths = [folder / f"{name}{ending}" for name in names]
            if all(path.is_file() for path in paths):
                return WebShopEnv.from_files(*paths)
    sys.exit(f"{folder} holds none of {_NAMES}, plain or .gz.")


def _act(env: WebShopEnv, info: dict, rng: random.Random) -> str:
    """Searches for the wanted kind of product or for random words, then clicks anything."""
    if not info["has_search_bar"]:
        return rng.choice(info["admissible_actions"])
    goal, other = env.goals[env.session.goal], rng.choice(env.goals)
    words = rng.choice([f"{goal['query']} {goal['attributes'][0]}", " ".join(other["name"].split()[:4])])
    return info["admissible_actions"][0].replace(FREE_TEXT, words)


def _walk(env: WebShopEnv, steps: int, rng: random.Random) -> None:
    while steps > 0:
        _, info = env.reset(options={"goal": rng.randrange(len(env.goals))})
        for _ in range(MAX_TURNS):
            _, _, terminated, _, info = env.step(_act(env, info, rng))
            steps -= 1
            if terminated:
                break


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--steps", type=int, default=10000)
    arguments = parser.parse_args()
    memory, start = _resident_mib(), time.process_time()
    env = _make(arguments.folder)
    loaded = time.process_time()
    print(f"products {len(env.products)}, goals {len(env.goals)}")
    print(f"load {loaded - start:.2f} CPU-s")
    _walk(env, arguments.steps, random.Random(0))
    print(f"speed {arguments.steps / (time.process_time() - loaded):.0f} steps per CPU-s")
    print(f"memory {_resident_mib() - memory:.0f} MiB")


if __name__ == "__main__":
    main()

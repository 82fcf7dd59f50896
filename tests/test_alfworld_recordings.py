"""The simulator against recordings of the official engine: every text, command list and win, step by step."""

import gzip
import json

import pytest
from recordings import recordings

from rspo_jax.envs.alfworld import ALFWorldEnv, load_game


@pytest.mark.parametrize("kind", ["generated", "official", "old_text", "quirks"])
def test_recordings_replay_without_a_mismatch(kind):
    files = sorted((recordings("alfworld") / kind).glob("*.jsonl.gz"))
    assert files
    for file in files:
        env = ALFWorldEnv(file.parent / "games" / file.name.replace(".jsonl", ".tw-pddl"))
        with gzip.open(file, "rt") as lines:
            next(lines)
            for line in map(json.loads, lines):
                where = f"{file.name}: {line.get('command', 'reset')}"
                if line["type"] == "reset":
                    observation, info = env.reset()
                else:
                    observation, reward, terminated, truncated, info = env.step(line["command"])
                    assert terminated == line["done"] and not truncated, where
                    assert reward == 10.0 * line["score"], where
                assert observation == line["feedback"], where
                assert info["admissible_commands"] == line["admissible_commands"], where
                assert info["won"] == line["won"], where


def test_official_walkthroughs_win_with_their_last_command_and_full_progress():
    games = sorted((recordings("alfworld") / "official" / "games").glob("*.tw-pddl.gz"))
    assert games
    for path in games:
        env = ALFWorldEnv(path)
        _, info = env.reset()
        assert info["progress"] < 0.5
        values = []
        for command in load_game(path).plan:
            assert not info["won"]
            assert command in info["admissible_commands"]
            *_, info = env.step(command)
            values.append(info["progress"])
        assert info["won"], path.name
        assert values == sorted(values) and values[-1] == 1.0

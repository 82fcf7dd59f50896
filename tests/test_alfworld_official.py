"""The index of the official data set, on folders laid out like it, and the official engine where it is installed."""

import importlib.util
import json
import os
import random

import pytest
from alfworld_games import KITCHEN, kitchen, random_game
from recordings import recordings

from rspo_jax.envs.alfworld import ALFWorldEnv, export, official, suite
from rspo_jax.envs.alfworld.game import TASK_KINDS

installed = all(importlib.util.find_spec(name) for name in ("alfworld", "textworld", "fast_downward"))
needs_engine = pytest.mark.skipif(not installed, reason="the official engine is not installed")


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = tmp_path / "data"
    trials = [
        ("pick_and_place_simple-Pen-None-Desk-301/trial_2", "pick_and_place_simple", {"solvable": True}),
        ("pick_and_place_simple-Pen-None-Desk-301/trial_10", "pick_and_place_simple", {"solvable": True}),
        ("look_at_obj_in_light-Pen-None-DeskLamp-301/trial_1", "look_at_obj_in_light", {"solvable": True}),
        ("look_at_obj_in_light-Pen-None-DeskLamp-301/trial_2", "look_at_obj_in_light", {"solvable": False}),
        ("look_at_obj_in_light-Pen-None-DeskLamp-301/trial_3", "look_at_obj_in_light", {}),
        ("look_at_obj_in_light-Pen-None-DeskLamp-301/trial_4", "look_at_obj_in_light", None),
        (
            "pick_heat_then_place_in_recep-AppleSliced-None-Desk-1/trial_1",
            "pick_heat_then_place_in_recep",
            {"solvable": True},
        ),
        ("pick_and_place_with_movable_recep-Pen-Mug-Desk-1/trial_1", "pick_and_place_simple", {"solvable": True}),
        ("other-Pen-None-Desk-1/trial_1", "another_task", {"solvable": True}),
    ]
    for name, task_type, game in trials:
        add_trial(root / "json_2.1.1" / "train" / name, task_type, game)
    return root


def add_trial(folder, task_type, game):
    folder.mkdir(parents=True)
    (folder / "traj_data.json").write_text(json.dumps({"plan": ["x"] * 9, "task_type": task_type}))
    if game is not None:
        (folder / "game.tw-pddl").write_text(json.dumps({"pddl_problem": '"solvable": true ' * 2000, **game}))


def names(games):
    return [game.path.split("/train/")[1] for game in games]


PLAYABLE = [
    "look_at_obj_in_light-Pen-None-DeskLamp-301/trial_1/game.tw-pddl",
    "pick_and_place_simple-Pen-None-Desk-301/trial_10/game.tw-pddl",
    "pick_and_place_simple-Pen-None-Desk-301/trial_2/game.tw-pddl",
]


def test_playable_games_are_selected_by_the_official_rules_and_sorted(data, monkeypatch):
    games = official.official_games(data, "train")
    assert names(games) == PLAYABLE
    assert [game.kind for game in games] == ["look", "pick", "pick"]
    assert all(os.path.isabs(game.path) for game in games)
    assert official.official_games(data / "json_2.1.1", "train") == games
    monkeypatch.setenv("ALFWORLD_DATA", str(data))
    assert official.official_games(None, "train") == games


def test_the_index_is_cached_and_renewed_when_a_game_is_added(data):
    official.official_games(data, "train")
    (data / "json_2.1.1" / "train" / PLAYABLE[0]).write_text("{}")  # not looked at again: no folder changed
    assert names(official.official_games(data, "train")) == PLAYABLE
    (cache,) = (data.parent / "cache").rglob("*.json")
    cache.write_text("damaged")
    assert names(official.official_games(data, "train")) == PLAYABLE[1:]
    new = "pick_and_place_simple-Pen-None-Desk-301/trial_3"
    add_trial(data / "json_2.1.1" / "train" / new, "pick_and_place_simple", {"solvable": True})
    assert names(official.official_games(data, "train")) == [*PLAYABLE[1:], f"{new}/game.tw-pddl"]


def test_a_game_that_arrives_in_a_trial_folder_is_found(data):
    """The official archives add the games to folders that an earlier archive made."""
    assert names(official.official_games(data, "train")) == PLAYABLE
    late = "look_at_obj_in_light-Pen-None-DeskLamp-301/trial_4/game.tw-pddl"
    (data / "json_2.1.1" / "train" / late).write_text('{"solvable": true}')
    assert names(official.official_games(data, "train")) == sorted([*PLAYABLE, late])


def test_a_cache_that_cannot_be_written_is_no_error(data, monkeypatch):
    (data.parent / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(data.parent / "file"))
    assert names(official.official_games(data, "train")) == PLAYABLE


def test_a_wrong_folder_is_one_clear_error(data, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="split='test' is unknown: choose one of train, valid_seen"):
        official.official_games(data, "test")
    with pytest.raises(FileNotFoundError, match="/nowhere does not exist"):
        official.official_games("/nowhere", "train")
    with pytest.raises(FileNotFoundError, match="neither json_2.1.1/valid_seen nor valid_seen"):
        official.official_games(data, "valid_seen")
    (tmp_path / "train").mkdir()
    with pytest.raises(FileNotFoundError, match="holds no playable game"):
        official.official_games(tmp_path, "train")
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match="set ALFWORLD_DATA"):
        official.official_games(None, "train")


def test_a_suite_with_few_turns_says_so(data, monkeypatch):
    for split in ("valid_seen", "valid_unseen"):
        name = "pick_and_place_simple-Pen-None-Desk-301/trial_1"
        add_trial(data / "json_2.1.1" / split / name, "pick_and_place_simple", {"solvable": True})
    said = []
    monkeypatch.setattr(suite.logging, "warning", lambda text, *values: said.append(text % values))
    assert len(suite.official_suite(data).splits["train"]) == 3
    assert not any("end after" in text for text in said)
    suite.official_suite(data, max_steps=20)
    assert any("end after 20 turns; every published setting allows 50" in text for text in said)


def test_the_official_counts_add_up():
    totals = {split: sum(kinds.values()) for split, kinds in official.COUNTS.items()}
    assert totals == {"train": 3553, "valid_seen": 140, "valid_unseen": 134, "valid_train": 200}


@pytest.mark.skipif(installed, reason="the official engine is installed")
def test_a_missing_official_engine_is_one_clear_error():
    with pytest.raises(ImportError, match=r"alfworld-official"):
        official.OfficialEngine("{}")


def compare(game, rng, steps):
    """Plays a random walk on both engines; the second environment reads the text that the first one plays."""
    theirs = official.OfficialALFWorldEnv(game)
    ours = ALFWorldEnv(export.game_text(game) if not isinstance(game, str) else game)
    result, expected = ours.reset(), theirs.reset()
    for _ in range(steps):
        for key in ("task", "task_type", "admissible_commands", "won", "score", "anchor"):
            assert result[-1][key] == expected[-1][key]
        assert result[:-1] == expected[:-1]
        commands = expected[-1]["admissible_commands"]
        handy = [c for c in commands if not c.startswith(("go to", "look", "help", "inventory", "examine"))]
        command = rng.choice(rng.choice((commands, handy or commands, ["dance", "examine mug 1"])))
        result, expected = ours.step(command), theirs.step(command)


@needs_engine
@pytest.mark.parametrize("kind", TASK_KINDS)
def test_the_official_engine_agrees_in_the_kitchen(kind):
    targets = {"look": "desklamp", "pick": "sinkbasin"}
    compare(kitchen(kind, "apple", targets.get(kind, "cabinet"), cool=()), random.Random(kind), 40)
    assert KITCHEN.cool


def playable(game):
    """The official engine cannot load games whose goal is out of reach from the start, or holds already."""
    try:
        official.OfficialALFWorldEnv(game).reset()
    except KeyError:
        return False
    return True


@needs_engine
def test_the_official_engine_agrees_in_random_games():
    games = filter(playable, (random_game(random.Random(seed)) for seed in range(1000)))
    for seed in range(12):
        compare(next(games), random.Random(seed), 25)


@needs_engine
def test_the_official_engine_agrees_in_recorded_games():
    paths = sorted(recordings("alfworld").glob("*/games/*.tw-pddl.gz"))
    rng = random.Random(0)
    for path in rng.sample(paths, 8):
        compare(str(path), rng, 20)

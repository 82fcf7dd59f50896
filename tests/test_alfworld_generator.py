"""Generated household games: solvable, reproducible, disjoint; with the official proportions and oddities."""

import collections
import dataclasses
import itertools
import json
import os
import pickle
import random
import subprocess
import sys
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rspo_jax.envs.alfworld import export, generator, rooms, suite
from rspo_jax.envs.alfworld.engine import Engine
from rspo_jax.envs.alfworld.game import TASK_KINDS, Game
from rspo_jax.envs.alfworld.official import OfficialEngine

LIMITS = {"tiny": ((6, 9), (6, 12)), "official": ((6, 54), (19, 75))}
ROOM_OF_SCENE = {0: "kitchen", 2: "living room", 3: "bedroom", 4: "bathroom"}


def generate(size, split="train", count=300, first=0):
    return [generator.generate_game(0, split, i, size=size) for i in range(first, first + count)]


def assert_plan_wins(game: Game):
    engine = Engine(game)
    engine.reset()
    assert not engine.won
    for number, command in enumerate(game.plan, start=1):
        assert command in engine.commands(), f"{command} in {game.plan}"
        engine.step(command)
        assert engine.won == (number == len(game.plan))


def content(generated: generator.GeneratedGame):
    """What a game is about, without the numbers and coordinates in its ids."""
    game = generated.game
    where = collections.defaultdict(list)
    for thing, receptacle in game.in_receptacle:
        where[thing].append(receptacle)
    placed = sorted((o.otype, tuple(sorted(where[o.id]))) for o in game.objects if o.pickupable)
    return generated.scene, game.goal, tuple(placed)


# --- games ---


@pytest.mark.parametrize("size", generator.SIZES)
@pytest.mark.parametrize("split", generator.SPLITS)
def test_every_game_is_won_by_its_plan_and_not_before(size, split):
    for game, _ in generate(size, split, count=200):
        assert_plan_wins(game)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(-(2**40), 2**40),
    split=st.sampled_from(generator.SPLITS),
    index=st.integers(0, 10**12),
    size=st.sampled_from(generator.SIZES),
    kind=st.sampled_from((None, *TASK_KINDS)),
)
def test_any_seed_index_and_kind_gives_a_solvable_game(seed, split, index, size, kind):
    game, scene = generator.generate_game(seed, split, index, size=size, kind=kind)
    assert_plan_wins(game)
    assert kind in (None, game.goal.kind)
    assert (game, scene) == generator.generate_game(seed, split, index, size=size, kind=kind)


def test_a_game_is_the_same_in_another_process():
    code = (
        "from rspo_jax.envs.alfworld.generator import *; import zlib\n"
        "games = [generate_game(5, s, i, size=z) for s in SPLITS for z in SIZES for i in range(5)]\n"
        "fields = [(g.objects, g.receptacles, g.in_receptacle, g.start, g.cool, g.task, g.plan, n) for g, n in games]\n"
        "print(zlib.crc32(repr(fields).encode()))"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    games = [
        generator.generate_game(5, s, i, size=z) for s in generator.SPLITS for z in generator.SIZES for i in range(5)
    ]
    fields = [(g.objects, g.receptacles, g.in_receptacle, g.start, g.cool, g.task, g.plan, n) for g, n in games]
    assert {int(text) for text in printed} == {zlib.crc32(repr(fields).encode())}


def test_seed_split_and_index_each_change_the_game():
    variants = [(0, "train", 0), (1, "train", 0), (0, "valid_seen", 0), (0, "valid_unseen", 0), (0, "train", 1)]
    games = [generator.generate_game(*arguments).game for arguments in variants]
    assert all(a != b for a, b in itertools.combinations(games, 2))


@pytest.mark.parametrize("size", generator.SIZES)
def test_splits_are_disjoint(size):
    games = {split: generate(size, split, count=1000) for split in generator.SPLITS}
    contents = {split: {content(g) for g in games[split]} for split in games}
    assert all(contents[a].isdisjoint(contents[b]) for a, b in itertools.combinations(contents, 2))
    scenes = {split: {g.scene for g in games[split]} for split in games}
    assert scenes["train"].isdisjoint(scenes["valid_unseen"])
    assert scenes["valid_seen"] <= {r.first_scene + n for r in rooms.ROOMS for n in generator.TRAIN_SCENES}
    assert len(scenes["train"]) > 100  # of 108


def test_games_of_one_scene_share_their_furniture():
    by_scene = collections.defaultdict(set)
    for game, scene in generate("tiny") + generate("tiny", "valid_seen"):
        by_scene[scene].add((game.receptacles, game.start))
    assert all(len(furniture) == 1 for furniture in by_scene.values())
    assert len({furniture.pop() for furniture in by_scene.values()}) == len(by_scene)


def test_tasks_come_in_the_official_proportions():
    count = collections.Counter(g.game.goal.kind for g in generate("tiny", count=3000))
    total = sum(generator.KIND_WEIGHTS.values())
    for kind, weight in generator.KIND_WEIGHTS.items():
        assert abs(count[kind] / 3000 - weight / total) < 0.03  # three standard deviations


def test_tasks_belong_to_their_rooms():
    seen = collections.defaultdict(set)
    for game, scene in generate("tiny", count=1000):
        seen[game.goal.kind].add(ROOM_OF_SCENE[scene // 100])
    assert seen["heat"] == seen["cool"] == {"kitchen"}
    assert seen["clean"] == {"kitchen", "bathroom"}
    assert seen["look"] == {"living room", "bedroom"}
    assert seen["pick"] == seen["pick2"] == set(ROOM_OF_SCENE.values())


@pytest.mark.parametrize("size", generator.SIZES)
def test_sizes_stay_in_their_ranges(size):
    receptacles, objects = LIMITS[size]
    for game, _ in generate(size):
        assert receptacles[0] <= len(game.receptacles) <= receptacles[1]
        assert objects[0] <= len(game.objects) <= objects[1]


def test_ids_are_unique_and_follow_the_naming_rules():
    for game, _ in generate("official", count=100):
        ids = [r.id for r in game.receptacles] + [o.id for o in game.objects]
        assert len(ids) == len(set(ids))
        for thing in (*game.receptacles, *game.objects):
            type_name = getattr(thing, "rtype", None) or thing.otype
            assert game.names[thing.id].split()[0] + "type" == type_name
            assert thing.id == thing.id.lower() and thing.id.count("_bar_") >= 3


def share(games, predicate):
    return sum(map(bool, map(predicate, games))) / len(games)


def _shares_location(game):
    return len({r.location for r in game.receptacles}) < len(game.receptacles)


def _is_listed_twice(game):
    count = collections.Counter(thing for thing, _ in game.in_receptacle)
    return any(o.pickupable and count[o.id] > 1 for o in game.objects)


def _has_doors_and_none(game):
    """Two receptacles of one class, of which one can be opened and the other never."""
    kinds = {(r.rtype, r.openable) for r in game.receptacles}
    return any((rtype, not openable) in kinds for rtype, openable in kinds)


def _has_cold(game):
    fridges = {r.id for r in game.receptacles if r.rtype == "fridgetype"}
    return any(thing in game.cool and receptacle in fridges for thing, receptacle in game.in_receptacle)


def _lists_fixture(game):
    listed = {thing for thing, _ in game.in_receptacle}
    return any(o.id in listed and not o.pickupable for o in game.objects)


def _has_unreachable(game):
    return any(o.pickupable and o.id not in dict(game.in_receptacle) for o in game.objects)


def _has_spare_target(game):
    targets = sum(o.otype == game.goal.otype for o in game.objects)
    return targets > (2 if game.goal.kind == "pick2" else 1)


@pytest.mark.parametrize(
    "oddity, tiny, official",
    [
        (_shares_location, 0.2, 0.74),
        (_is_listed_twice, 0.03, 0.3),
        (_has_doors_and_none, 0.01, 0.3),
        (_has_cold, 0.03, 0.1),
        (_lists_fixture, 0.3, 0.5),
        (_has_unreachable, 0.1, 0.3),
        (_has_spare_target, 0.2, 0.2),
        (lambda game: game.in_receptacle_object, 0.02, 0.1),
    ],
)
def test_official_oddities_occur(oddity, tiny, official):
    assert share([g.game for g in generate("tiny", count=500)], oddity) > tiny
    assert share([g.game for g in generate("official")], oddity) > official


def test_the_right_receptacles_open_and_all_start_closed():
    for game, _ in generate("official", count=200):
        assert not game.opened and not game.held and not game.toggled
        for r in game.receptacles:
            assert r.openable or r.rtype not in ("fridgetype", "microwavetype", "safetype")
            assert not r.openable or r.rtype in ("fridgetype", "microwavetype", "safetype", "cabinettype", "drawertype")


@pytest.mark.parametrize(
    "arguments, key", [({"split": "test"}, "split"), ({"size": "big"}, "size"), ({"kind": "dust"}, "kind")]
)
def test_an_unknown_choice_is_one_clear_error(arguments, key):
    with pytest.raises(ValueError, match=f"^{key} is '.*'; use one of "):
        generator.generate_game(**{"seed": 0, "split": "train", "index": 0} | arguments)


# --- tables ---


def test_objects_are_found_where_they_may_be_put():
    for room in rooms.ROOMS:
        for name, homes in room.objects.items():
            assert set(homes) <= set(room.receptacles)
            if name not in ("PaperTowelRoll", "TeddyBear"):  # fit nowhere, in the official set too
                assert all(name in rooms.CAN_CONTAIN.get(home, ()) for home in homes), name


def test_every_room_can_be_furnished():
    for room, (size, first) in itertools.product(rooms.ROOMS, (("tiny", 0), ("official", 2))):
        least, most = (sum(limits[first + i] for limits in room.receptacles.values()) for i in (0, 1))
        assert least <= room.receptacle_total[size][1] and room.receptacle_total[size][0] <= most
        assert (
            LIMITS[size][0][0] <= room.receptacle_total[size][0] <= room.receptacle_total[size][1] <= LIMITS[size][0][1]
        )


# --- suites ---

GRAMMAR = """grammar :: \"\"\"
{"task": [{"rhs": "Your task is to: UNKNOWN GOAL."}],
 "GotoLocation.feedback": [{"rhs": "You arrive at {r.name}. #examineReceptacle.feedback#"}],
 "PutObject.feedback": [{"rhs": "You move the {o.name} to the {r.name}."}]}
\"\"\";
action PutObject { template :: "move {o} to {r}"; feedback :: "#PutObject.feedback#"; }
"""
SETS = ("objects", "receptacles", "in_receptacle", "object_at_location", "in_receptacle_object", "can_contain", "cool")


@pytest.fixture
def logic_package(tmp_path, monkeypatch):
    """A package with its own short logic files where the export looks for them."""
    folder = tmp_path / "packages" / "alfworld" / "data"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("")
    (folder / "alfred.pddl").write_text("(define (domain alfred))")
    (folder / "alfred.twl2").write_text(GRAMMAR)
    monkeypatch.delitem(sys.modules, "alfworld", raising=False)
    monkeypatch.syspath_prepend(tmp_path / "packages")
    return folder


def test_a_task_is_the_same_game_in_every_environment():
    tasks = suite.generated_suite(3)
    make_env = pickle.loads(pickle.dumps(tasks.make_env))
    for split in generator.SPLITS:
        first, second = make_env(), make_env()
        first.reset(**tasks.splits[split][1])
        observation, info = first.reset(**tasks.splits[split][0])
        again, _ = second.reset(**tasks.splits[split][0])
        expected = generator.generate_game(3, split, 0).game
        assert observation == again and observation.endswith(expected.task)
        assert info["task"] == expected.task and info["task_type"] == expected.goal.kind
        for command in expected.plan:
            _, reward, terminated, _, info = first.step(command)
        assert terminated and info["won"] and reward == 10.0


def test_splits_are_lazy_sequences_that_start_alike():
    small = suite.generated_suite(num_train=3, num_valid=2).splits
    large = suite.generated_suite(num_train=10**9, num_valid=5).splits
    assert [len(small[split]) for split in generator.SPLITS] == [3, 2, 2]
    assert len(large["train"]) == 10**9
    for split in generator.SPLITS:
        assert list(small[split]) == [large[split][i] for i in range(len(small[split]))]
    assert small["train"][-1] == small["train"][2]
    with pytest.raises(IndexError):
        small["train"][3]


def test_an_episode_is_cut_at_the_turn_limit():
    tasks = suite.generated_suite(max_steps=2)
    env = tasks.make_env()
    env.reset(**tasks.splits["train"][0])
    assert env.step("look")[3] is False
    assert env.step("look")[3] is True


def test_the_official_suite_plays_the_games_of_a_data_folder(logic_package, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for split in generator.SPLITS:
        for index, kind in enumerate(TASK_KINDS):
            game, scene = generator.generate_game(0, split, index, kind=kind)
            export.write_game(tmp_path / "json_2.1.1" / split, game, scene=scene, trial=f"trial_T{index}")
    tasks = suite.official_suite(tmp_path, max_steps=30)
    env = pickle.loads(pickle.dumps(tasks.make_env))()
    for split in generator.SPLITS:
        assert len(tasks.splits[split]) == len(TASK_KINDS)
        assert {env.reset(**task)[1]["task_type"] for task in tasks.splits[split]} == set(TASK_KINDS)


def test_a_missing_data_folder_is_one_clear_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="is not the official ALFWorld data"):
        suite.official_suite(tmp_path)


@pytest.mark.parametrize("arguments", [{"num_train": 0}, {"num_valid": -1}, {"max_steps": 0}, {"size": "huge"}])
def test_impossible_suites_are_one_clear_error(arguments):
    with pytest.raises(ValueError, match=f"^{next(iter(arguments))} is .*; use "):
        suite.generated_suite(**arguments)


def test_phrases_cover_every_name_that_can_be_read():
    phrases = suite.generated_suite().phrases
    assert len(phrases) == len(set(phrases)) and all(p and p == p.lower().strip() for p in phrases)
    for game, _ in generate("tiny", count=500):
        listed = {thing for thing, _ in game.in_receptacle} | {r.id for r in game.receptacles}
        assert {game.names[id] for id in listed} <= set(phrases)


# --- export ---


def test_an_exported_game_reads_back_as_the_same_game(logic_package):
    for kind, size in itertools.product(TASK_KINDS, generator.SIZES):
        for index in range(5):
            game = generator.generate_game(2, "train", index, size=size, kind=kind).game
            back = Game.from_text(export.game_text(game))
            for field in SETS:
                assert set(getattr(back, field)) == set(getattr(game, field)), field
            assert (back.goal, back.task, back.start, back.plan) == (game.goal, game.task, game.start, game.plan)
            assert back.names == game.names
            assert_plan_wins(back)


def test_a_game_in_mid_play_keeps_its_state(logic_package):
    game = generator.generate_game(0, "train", 0, kind="cool").game
    thing, place = game.objects[0].id, next(r.id for r in game.receptacles if r.openable)
    changed = dataclasses.replace(
        game, opened=(place,), held=(thing,), hot=(thing,), clean=(thing,), toggled=(thing,), sliced=(thing,)
    )
    back = Game.from_text(export.game_text(changed))
    for field in ("opened", "held", "hot", "clean", "cool", "toggled", "sliced"):
        assert set(getattr(back, field)) == set(getattr(changed, field)), field
    assert back.hands_full


def test_files_lie_where_the_official_loader_looks(logic_package, tmp_path):
    game, scene = generator.generate_game(0, "train", 0, kind="look")
    folder = export.write_game(tmp_path / "train", game, scene=scene, trial="trial_T1")
    data = json.loads((folder / "traj_data.json").read_text())
    target, lamp = data["pddl_params"]["object_target"], data["pddl_params"]["toggle_target"]
    assert folder == tmp_path / "train" / f"look_at_obj_in_light-{target}-None-{lamp}-{scene}" / "trial_T1"
    assert (data["task_type"], data["scene"]["scene_num"]) == ("look_at_obj_in_light", scene)
    assert target.lower() + "type" == game.goal.otype and target in rooms.BY_NAME[ROOM_OF_SCENE[scene // 100]].objects
    played = json.loads((folder / "game.tw-pddl").read_text())
    assert played["solvable"] is True and played["walkthrough"] == list(game.plan)
    assert played["pddl_problem"] == (folder / "initial_state.pddl").read_text()


def test_missing_logic_files_are_one_clear_error(logic_package):
    (logic_package / "alfred.twl2").unlink()
    with pytest.raises(FileNotFoundError, match="install alfworld"):
        export.game_text(generator.generate_game(0, "train", 0).game)


@pytest.mark.parametrize("size, kind", list(itertools.product(generator.SIZES, TASK_KINDS)))
def test_the_official_engine_plays_exported_games_like_ours(size, kind):
    pytest.importorskip("textworld")
    pytest.importorskip("alfworld")
    game = generator.generate_game(0, "valid_unseen", 0, size=size, kind=kind).game
    rng, ours = random.Random(kind), Engine(game)
    official = OfficialEngine(export.game_text(game))
    assert official.reset() == ours.reset()
    for number in range(8 + len(game.plan)):
        assert official.commands() == ours.commands()
        assert official.won == ours.won
        # First some moves that leave every object and door as it is, then the plan.
        harmless = [
            c for c in ours.commands() if c.startswith(("go to", "examine", "look", "use", "inventory", "help"))
        ]
        command = rng.choice(harmless) if number < 8 else game.plan[number - 8]
        assert official.step(command) == ours.step(command)
    assert official.won and ours.won


def test_a_suite_of_some_kinds_keeps_the_games_of_those_kinds_in_order():
    everything = suite.generated_suite(num_train=60, num_valid=20)
    some = suite.generated_suite(num_train=12, num_valid=5, task_types=("clean", "pick2"))
    env = some.make_env()
    tasks = list(some.splits["train"])
    assert {env.reset(**task)[1]["task_type"] for task in tasks} == {"clean", "pick2"}
    kinds = [(task, env.reset(**task)[1]["task_type"]) for task in everything.splits["train"]]
    assert tasks == [task for task, kind in kinds if kind in ("clean", "pick2")][:12]
    with pytest.raises(ValueError, match="dust"):
        suite.generated_suite(task_types=("dust",))

"""Winning and progress for each kind of goal, with subgoals counted by hand."""

import dataclasses

import pytest
from alfworld_games import KITCHEN, kitchen

from rspo_jax.envs.alfworld.engine import NOTHING_HAPPENS, Engine
from rspo_jax.envs.alfworld.game import Goal

_GET = (("go to countertop 1", 1), ("take apple 3 from countertop 1", 2))  # find, take


def check(game, subgoals, script):
    """Plays (command, completed subgoals after it); the game is won exactly when all are completed."""
    engine = Engine(game)
    for command, done in script:
        assert engine.step(command) != NOTHING_HAPPENS, command
        assert engine.progress == pytest.approx(done / subgoals), command
        assert engine.won == (done == subgoals), command
    return engine


def test_pick_counts_find_take_carry_put():
    check(KITCHEN, 4, [*_GET, ("go to sinkbasin 1", 3), ("move apple 3 to sinkbasin 1", 4)])


@pytest.mark.parametrize(
    ("kind", "verb", "place"),
    [("clean", "clean", "sinkbasin 1"), ("heat", "heat", "microwave 1"), ("cool", "cool", "fridge 1")],
)
def test_treatments_count_find_take_treat_carry_put(kind, verb, place):
    game = kitchen(kind, "apple", "cabinet", cool=())
    treat = [(f"go to {place}", 2), (f"{verb} apple 3 with {place}", 3)]
    carry = [("go to cabinet 1", 4), ("open cabinet 1", 4), ("move apple 3 to cabinet 1", 5)]
    check(game, 5, [*_GET, *treat, *carry])


def test_an_untreated_object_at_its_destination_is_not_carried():
    game = kitchen("clean", "apple", "microwave", cool=())
    script = [*_GET, ("go to microwave 1", 2), ("open microwave 1", 2), ("move apple 3 to microwave 1", 2)]
    engine = check(game, 5, script)
    engine.step("take apple 3 from microwave 1")
    engine.step("clean apple 3 with sinkbasin 1")
    assert engine.progress == 4 / 5  # the destination shares the sink's location
    engine.step("move apple 3 to microwave 1")
    assert engine.won


def test_the_order_is_free_an_object_cold_from_the_start_counts_and_heating_undoes_it():
    game = kitchen("cool", "apple", "countertop")
    engine = Engine(game)
    assert engine.progress == 1 / 5  # an apple in the fridge is cold already
    for command in ("go to fridge 1", "open fridge 1", "take apple 1 from fridge 1"):
        engine.step(command)
    assert engine.progress == 3 / 5
    for command in ("go to microwave 1", "heat apple 1 with microwave 1", "go to countertop 1"):
        engine.step(command)
    assert engine.progress == 3 / 5
    engine.step("move apple 1 to countertop 1")
    assert not engine.won


def test_two_objects_must_be_in_the_same_receptacle():
    places = (("apple_bar_1", "countertop_bar_1"), ("apple_bar_3", "fridge_bar_1"))
    script = [
        ("go to fridge 1", 0),
        ("open fridge 1", 1),
        ("take apple 1 from fridge 1", 2),
        ("go to cabinet 1", 4),  # carried, and the other one found on the countertop
        ("open cabinet 1", 4),
        ("open cabinet 2", 4),
        ("move apple 1 to cabinet 1", 5),
        ("take apple 3 from countertop 1", 7),  # taken and carried at once: the cabinets are here
        ("move apple 3 to cabinet 2", 7),
        ("take apple 3 from cabinet 2", 7),
        ("move apple 3 to cabinet 1", 8),
    ]
    check(kitchen("pick2", "apple", "cabinet", in_receptacle=places), 8, script)


def test_objects_already_in_place_count_from_the_start():
    game = kitchen("pick2", "apple", "cabinet")
    assert Engine(game).progress == 4 / 8


def test_look_counts_find_take_lamp_and_being_where_the_lamp_is():
    game = kitchen("look", "apple", "desklamp")
    check(game, 4, [("go to fridge 1", 0), ("open fridge 1", 1), ("take apple 1 from fridge 1", 2)])
    check(game, 4, [("go to desk 1", 0), ("use desklamp 2", 1), ("go to fridge 1", 1), ("open fridge 1", 2)])
    engine = check(
        game,
        4,
        [
            ("go to desk 1", 0),
            ("use desklamp 2", 1),
            ("go to fridge 1", 1),
            ("open fridge 1", 2),
            ("take apple 1 from fridge 1", 3),
            ("go to desk 1", 4),
        ],
    )
    engine.step("go to fridge 1")
    assert not engine.won


def test_look_needs_the_lamp_here_on_and_a_lamp_elsewhere_does_not_help():
    game = kitchen("look", "apple", "desklamp")
    engine = Engine(game)
    for command in ("go to desk 1", "use desklamp 2", "go to countertop 1", "take apple 3 from countertop 1"):
        engine.step(command)
    assert not engine.won and engine.progress == 3 / 4
    engine.step("use desklamp 1")
    assert engine.won


def test_sliced_goals_need_the_slice():
    goal = Goal("pick", "appletype", "countertoptype", sliced=True)
    engine = Engine(dataclasses.replace(KITCHEN, goal=goal))
    assert not engine.won
    for command in ("go to countertop 1", "take knife 1 from countertop 1", "slice apple 3 with knife 1"):
        engine.step(command)
    assert engine.won


def test_movable_goals_ask_for_an_object_in_a_movable_receptacle_in_place():
    goal = Goal("movable", "appletype", "sinkbasintype", movable="mugtype")
    engine = Engine(dataclasses.replace(KITCHEN, goal=goal))
    assert not engine.won
    for command in ("go to countertop 1", "take mug 1 from countertop 1", "go to sinkbasin 1"):
        engine.step(command)
    assert engine.progress == 0.0
    engine.step("move mug 1 to sinkbasin 1")
    assert engine.won and engine.progress == 1.0


def test_finding_needs_an_accessible_receptacle():
    game = kitchen("pick", "apple", "desk", in_receptacle=(("apple_bar_2", "cabinet_bar_1"),))
    check(game, 4, [("go to cabinet 2", 0), ("open cabinet 1", 0), ("open cabinet 2", 1)])


def test_an_object_held_from_the_start_is_found_and_taken():
    assert Engine(dataclasses.replace(KITCHEN, held=("apple_bar_1",))).progress == 2 / 4

"""The rules of the simulator, one by one, in a small kitchen."""

import dataclasses

import pytest
from alfworld_games import KITCHEN, kitchen

from rspo_jax.envs.alfworld.engine import NOTHING_HAPPENS, Engine
from rspo_jax.envs.alfworld.game import HELP, OLD, Object, Receptacle, number_names


def play(*commands, game=KITCHEN):
    """The engine after the commands, all of which have to be possible, and its last answer."""
    engine = Engine(game)
    answer = engine.reset()
    for command in commands:
        answer = engine.step(command)
        assert answer != NOTHING_HAPPENS, command
    return engine, answer


def says(*commands, game=KITCHEN):
    return play(*commands, game=game)[1]


def test_names_are_numbered_downwards_along_the_ids_and_basins_are_named_apart():
    ids = ["apple_bar_1", "apple_bar_2", "sink_bar_1", "sink_bar_1_bar_sinkbasin", "table"]
    assert number_names(ids) == {
        "apple_bar_1": "apple 2",
        "apple_bar_2": "apple 1",
        "sink_bar_1": "sink 1",
        "sink_bar_1_bar_sinkbasin": "sinkbasin 1",
        "table": "table ",
    }


def test_introduction_lists_all_receptacles_and_the_task():
    assert says() == (
        "-= Welcome to TextWorld, ALFRED! =-\n\n"
        "You are in the middle of a room. Looking quickly around you, you see a cabinet 2, a cabinet 1, "
        "a countertop 1, a desk 1, a fridge 1, a microwave 1, and a sinkbasin 1.\n\n"
        "Your task is to: put some apple on sinkbasin."
    )


def test_introduction_at_a_receptacle_is_the_look_text():
    game = dataclasses.replace(KITCHEN, start="loc_bar_4_bar_0")
    assert "\n\nYou are facing the desk 1. Next to it, you see nothing.\n\n" in says(game=game)


def test_look_at_the_start_sees_nothing_although_there_are_receptacles():
    assert says("look") == "You are in the middle of a room. Looking quickly around you, you see nothing."


def test_commands_at_the_start():
    engine, _ = play()
    places = ["cabinet 1", "cabinet 2", "countertop 1", "desk 1", "fridge 1", "microwave 1", "sinkbasin 1"]
    assert engine.commands() == [f"go to {place}" for place in places] + ["help", "inventory", "look"]


def test_commands_are_sorted_by_code_point():
    cabinets = tuple(Receptacle(f"cabinet_bar_{i:02d}", f"loc_bar_{i}", "cabinettype") for i in range(10))
    game = dataclasses.replace(KITCHEN, receptacles=cabinets, in_receptacle=())
    commands = Engine(game).commands()
    assert commands[:3] == ["go to cabinet 1", "go to cabinet 10", "go to cabinet 2"]


def test_going_to_a_place_describes_the_receptacle_named():
    assert says("go to countertop 1") == (
        "You arrive at countertop 1. On the countertop 1, you see a apple 3, a knife 1, a mug 1, and a pen 1."
    )
    assert says("go to cabinet 2") == "You arrive at cabinet 2. The cabinet 2 is closed."


def test_receptacles_that_share_the_location_cannot_be_gone_to():
    engine, _ = play("go to countertop 1")
    assert engine.step("go to cabinet 1") == NOTHING_HAPPENS
    assert engine.step("go to countertop 1") == NOTHING_HAPPENS
    assert says("go to countertop 1", "look") == (
        "You are facing the cabinet 2, cabinet 1, and countertop 1. Next to it, you see nothing."
    )


def test_open_shows_the_contents_and_close_hides_them():
    assert says("go to cabinet 1", "open cabinet 2") == (
        "You open the cabinet 2. The cabinet 2 is open. In it, you see a apple 2, and a pen 1."
    )
    assert says("go to cabinet 1", "open cabinet 2", "close cabinet 2") == "You close the cabinet 2."
    assert (
        says("go to cabinet 1", "open cabinet 2", "close cabinet 2", "examine cabinet 2") == "The cabinet 2 is closed."
    )


def test_a_closed_receptacle_blocks_taking_and_putting():
    engine, _ = play("go to cabinet 2")
    assert engine.step("take apple 2 from cabinet 2") == NOTHING_HAPPENS
    engine.step("take apple 3 from countertop 1")
    assert engine.step("move apple 3 to cabinet 2") == NOTHING_HAPPENS
    assert engine.step("inventory") == "You are carrying: a apple 3."


def test_only_one_object_can_be_held():
    engine, answer = play("go to countertop 1", "inventory")
    assert answer == "You are not carrying anything."
    assert engine.step("take knife 1 from countertop 1") == "You pick up the knife 1 from the countertop 1."
    assert engine.step("take mug 1 from countertop 1") == NOTHING_HAPPENS


def test_an_object_goes_only_where_its_kind_is_allowed():
    engine, _ = play("go to countertop 1", "take knife 1 from countertop 1", "go to desk 1")
    assert engine.step("move knife 1 to desk 1") == NOTHING_HAPPENS
    assert engine.step("move  knife 1 to countertop 1") == NOTHING_HAPPENS


def test_an_object_in_two_receptacles_stays_visible_in_the_other_when_taken():
    engine, _ = play("go to countertop 1", "open cabinet 2", "take pen 1 from countertop 1")
    assert engine.step("examine cabinet 2") == "The cabinet 2 is open. In it, you see a apple 2, and a pen 1."
    assert engine.step("take pen 1 from cabinet 2") == NOTHING_HAPPENS
    engine.step("move pen 1 to countertop 1")
    assert "take pen 1 from cabinet 2" in engine.commands()
    assert "take pen 1 from countertop 1" in engine.commands()


def test_an_object_is_next_to_the_receptacles_it_was_taken_from():
    start = ("go to countertop 1", "open cabinet 1", "open cabinet 2", "take apple 3 from countertop 1")
    facing = "You are facing the cabinet 2, cabinet 1, and countertop 1. Next to it, you see "
    assert says(*start, "look") == facing + "nothing."
    moved = (*start, "move apple 3 to cabinet 1")
    assert says(*moved, "look") == facing + "a apple 3."
    again = (*moved, "take apple 3 from cabinet 1", "move apple 3 to cabinet 2")
    assert says(*again, "look") == facing + "a apple 3, and a apple 3."
    back = (*again, "take apple 3 from cabinet 2", "move apple 3 to countertop 1", "close cabinet 2")
    assert says(*back, "look") == facing + "a apple 3, and a apple 3."


@pytest.mark.parametrize(
    ("commands", "text"),
    [
        ((), "There's nothing special about apple 3."),
        (("heat",), "This is a hot apple 3."),
        (("cool",), "This is a cold apple 3."),
        (("clean",), "This is a clean apple 3."),
        (("clean", "heat"), "This is a hot and clean apple 3."),
        (("heat", "cool"), "This is a cold apple 3."),
        (("cool", "clean"), "This is a cool and clean apple 3."),
    ],
)
def test_examining_a_held_object_tells_its_condition(commands, text):
    places = {"heat": "microwave 1", "cool": "fridge 1", "clean": "sinkbasin 1"}
    engine, _ = play("go to countertop 1", "take apple 3 from countertop 1")
    for verb in commands:
        engine.step(f"go to {places[verb]}")
        assert engine.step(f"{verb} apple 3 with {places[verb]}") == f"You {verb} the apple 3 using the {places[verb]}."
    assert engine.step("examine apple 3") == text


@pytest.mark.parametrize(
    ("states", "text"),
    [
        (("clean", "hot", "sliced"), "This is a hot and clean sliced apple 3."),
        (("clean", "cool", "sliced"), "This is a cool and clean sliced apple 3."),
        (("clean", "sliced"), "This is a clean sliced apple 3."),
        (("hot", "sliced"), "This is a hot sliced apple 3."),
        (("cool", "sliced"), "This is a cool sliced apple 3."),
        (("sliced",), "This is a sliced apple 3."),
        (("hot", "cool"), "This is a hot apple 3."),
        (("toggled",), "There's nothing special about apple 3."),
    ],
)
def test_examining_a_sliced_or_otherwise_changed_object(states, text):
    game = dataclasses.replace(KITCHEN, held=("apple_bar_1",), **{state: ("apple_bar_1",) for state in states})
    assert says("examine apple 3", game=game) == text


def test_examining_a_movable_receptacle_lists_what_is_in_it_but_never_itself():
    inside = (("apple_bar_1", "mug_bar_1"), ("mug_bar_1", "mug_bar_1"), ("pen_bar_1", "mug_bar_1"))
    game = dataclasses.replace(KITCHEN, held=("mug_bar_1",), in_receptacle_object=inside, hot=("mug_bar_1",))
    assert says("examine mug 1", game=game) == "This is a normal mug 1. In it, you see a apple 3, and a pen 1."


def test_objects_that_are_not_held_cannot_be_examined():
    engine, _ = play("go to countertop 1")
    assert engine.step("examine apple 3") == NOTHING_HAPPENS
    engine.step("go to desk 1")
    assert engine.step("examine desklamp 2") == NOTHING_HAPPENS


def test_a_lamp_is_turned_on_every_time_even_behind_a_closed_door():
    assert says("go to desk 1", "use desklamp 2", "use desklamp 2") == "You turn on the desklamp 2."
    assert says("go to cabinet 1", "use desklamp 1") == "You turn on the desklamp 1."
    taken = ("go to cabinet 1", "open cabinet 1", "use desklamp 1", "take desklamp 1 from cabinet 1")
    assert says(*taken, "examine desklamp 1") == "This desklamp 1 is on."


def test_a_lamp_in_no_receptacle_cannot_be_used():
    engine, _ = play("go to desk 1")
    assert engine.step("use floorlamp 1") == NOTHING_HAPPENS


def test_slicing_needs_a_held_knife_and_reaches_into_closed_receptacles():
    engine, _ = play("go to countertop 1")
    assert engine.step("slice apple 3 with knife 1") == NOTHING_HAPPENS
    engine.step("take knife 1 from countertop 1")
    assert engine.step("slice apple 3 with knife 1") == "You sliced the apple 3 with the knife 1."
    assert engine.step("slice apple 2 with knife 1") == "You sliced the apple 2 with the knife 1."
    assert engine.step("slice apple 1 with knife 1") == NOTHING_HAPPENS


def test_treatment_needs_the_right_receptacle_and_kind_of_object():
    engine, _ = play("go to countertop 1", "take knife 1 from countertop 1", "go to sinkbasin 1")
    assert engine.step("heat knife 1 with microwave 1") == NOTHING_HAPPENS
    assert engine.step("clean knife 1 with microwave 1") == NOTHING_HAPPENS
    assert engine.step("clean knife 1 with sinkbasin 1") == "You clean the knife 1 using the sinkbasin 1."


def test_clean_works_at_a_sink_only_if_the_domain_says_so():
    sink = Receptacle("sink_bar_9", "loc_bar_9", "sinktype")
    game = dataclasses.replace(KITCHEN, receptacles=(*KITCHEN.receptacles, sink), held=("apple_bar_1",))
    engine, _ = play("go to sink 1", game=game)
    assert "clean apple 3 with sink 1" not in engine.commands()
    game = dataclasses.replace(game, sink_types=frozenset({"sinktype", "sinkbasintype"}))
    engine, _ = play("go to sink 1", game=game)
    assert "clean apple 3 with sink 1" in engine.commands()


def test_help_is_answered_in_the_new_wording_only():
    assert says("help") == HELP
    assert HELP.startswith("Available commands:\n") and HELP.endswith("sharp object\n")
    engine, _ = play(game=dataclasses.replace(KITCHEN, wording=OLD))
    assert engine.step("help") == NOTHING_HAPPENS


def test_old_wording_names_the_location_and_puts_in_or_on():
    game = dataclasses.replace(KITCHEN, wording=OLD)
    engine, answer = play("go to desk 1", game=game)
    assert answer == "You arrive at loc 1. On the desk 1, you see a desklamp 2."
    engine.step("go to countertop 1")
    engine.step("take pen 1 from countertop 1")
    engine.step("go to desk 1")
    assert "move pen 1 to desk 1" not in engine.commands()
    assert engine.step("put pen 1 in/on desk 1") == "You put the pen 1 in/on the desk 1."


@pytest.mark.parametrize("command", ["", "dance", "Look", "go to Desk 1", "go to desk", "take apple 3", "use fridge 1"])
def test_anything_else_does_nothing(command):
    engine, _ = play("go to countertop 1")
    before = engine.commands()
    assert engine.step(command) == NOTHING_HAPPENS
    assert engine.commands() == before


def test_blanks_around_a_command_are_ignored():
    assert says("  look \n").startswith("You are in the middle")


def test_holding_and_full_hands_are_separate_facts():
    game = dataclasses.replace(KITCHEN, held=("pen_bar_1",), hands_full=False)
    engine, answer = play("inventory", game=game)
    assert answer == "You are not carrying anything."
    engine.step("go to countertop 1")
    engine.step("take apple 3 from countertop 1")
    assert engine.step("inventory") == "You are carrying: a apple 3, and a pen 1."
    game = dataclasses.replace(KITCHEN, hands_full=True)
    assert says("inventory", game=game) == "You are carrying: nothing."


def test_objects_without_a_type_or_a_place_are_legal_and_out_of_reach():
    game = dataclasses.replace(KITCHEN, objects=(*KITCHEN.objects, Object("vase_bar_1", "", pickupable=True)))
    engine, _ = play("go to countertop 1", game=game)
    assert not any("vase" in command for command in engine.commands())


def test_reset_restores_the_start():
    engine, _ = play("go to countertop 1", "take apple 3 from countertop 1", "go to sinkbasin 1")
    engine.step("move apple 3 to sinkbasin 1")
    assert engine.won and engine.progress == 1.0
    fresh = Engine(KITCHEN)
    assert engine.reset() == fresh.reset()
    assert engine.commands() == fresh.commands()
    assert not engine.won and engine.progress == fresh.progress == 0.0


def test_the_goal_is_not_sticky_but_progress_is():
    game = kitchen("pick", "apple", "sinkbasin")
    engine, _ = play("go to countertop 1", "take apple 3 from countertop 1", "go to sinkbasin 1", game=game)
    engine.step("move apple 3 to sinkbasin 1")
    assert engine.won
    engine.step("take apple 3 from sinkbasin 1")
    assert not engine.won and engine.progress == 1.0


@pytest.mark.parametrize(
    "facts",
    [{"in_receptacle": (("apple_bar_1", "apple_bar_1"),)}, {"hot": ("apple_bar_7",)}, {"held": ("desk_bar_1",)}],
)
def test_a_fact_about_something_the_game_does_not_have_is_one_clear_error(facts):
    with pytest.raises(ValueError, match="states a fact about '(apple|desk)_bar_.', which it does not list"):
        Engine(dataclasses.replace(KITCHEN, **facts))

"""The scripted household player: succeeds, plays only what an agent could know, and errs as often as it is told to."""

import numpy as np
import pytest

from rspo_jax.envs.alfworld import generator, suite
from rspo_jax.envs.alfworld.demonstrator import demonstrator, parse_task
from rspo_jax.envs.alfworld.env import ALFWorldEnv
from rspo_jax.envs.alfworld.game import OLD, TASK_KINDS, Game, Goal, Object, Receptacle


def play(env, act, **task):
    """(won, commands) of one episode."""
    observation, info = env.reset(**task)
    commands, terminated, truncated = [], False, False
    while not terminated and not truncated:
        command = act(observation, info)
        assert command in info["admissible_actions"]
        commands.append(command)
        observation, _, terminated, truncated, info = env.step(command)
    return terminated, commands


@pytest.mark.parametrize("kind", TASK_KINDS)
@pytest.mark.parametrize("size", generator.SIZES)
def test_the_expert_solves_every_kind_of_task(kind, size):
    env = ALFWorldEnv(max_steps=50)
    act = demonstrator(env, np.random.default_rng(0), 1.0)
    lengths = []
    for index in range(25):
        game = generator.generate_game(0, "valid_unseen", index, size=size, kind=kind).game
        won, commands = play(env, act, options={"game": game})
        lengths.append(len(commands))
        assert won or size == "official"  # in a large house a search may take more than 50 turns
    assert np.mean([n < 50 for n in lengths]) > 0.9
    assert np.mean(lengths) < (12 if size == "tiny" else 25)


def kitchen(apple_in: str, **changes) -> Game:
    """Two cabinets with doors, a countertop and a fridge; one apple, which has to go to the countertop."""
    classes = {
        "cabinet_bar_1": "cabinet",
        "cabinet_bar_2": "cabinet",
        "countertop_bar_1": "countertop",
        "fridge_bar_1": "fridge",
    }
    receptacles = tuple(
        Receptacle(id, f"loc_bar_{i}", f"{name}type", openable=name in ("fridge", "cabinet"))
        for i, (id, name) in enumerate(classes.items())
    )
    return Game(
        start="loc_bar_9",
        receptacles=receptacles,
        objects=(Object("apple_bar_1", "appletype", pickupable=True), Object("mug_bar_1", "mugtype", pickupable=True)),
        in_receptacle=(("apple_bar_1", apple_in), ("mug_bar_1", "countertop_bar_1")),
        object_at_location=(),
        can_contain=frozenset({("countertoptype", "appletype"), ("countertoptype", "mugtype")}),
        goal=Goal("pick", "appletype", "countertoptype"),
        task="put some apple on countertop.",
        **changes,
    )


def test_the_expert_searches_likely_places_first():
    env = ALFWorldEnv(kitchen("cabinet_bar_1"), max_steps=50)  # cabinet 2: ids are numbered downwards
    won, commands = play(env, demonstrator(env, np.random.default_rng(0), 1.0))
    assert won
    assert commands == [
        "go to fridge 1",
        "open fridge 1",
        "go to countertop 1",
        "go to cabinet 1",
        "open cabinet 1",
        "go to cabinet 2",
        "open cabinet 2",
        "take apple 1 from cabinet 2",
        "go to countertop 1",
        "move apple 1 to countertop 1",
    ]


def test_the_expert_does_not_know_what_it_has_not_seen():
    commands = {}
    for place in ("cabinet_bar_1", "cabinet_bar_2"):
        env = ALFWorldEnv(kitchen(place), max_steps=50)
        _, commands[place] = play(env, demonstrator(env, np.random.default_rng(0), 1.0))
    assert commands["cabinet_bar_1"][:5] == commands["cabinet_bar_2"][:5]
    assert commands["cabinet_bar_1"] != commands["cabinet_bar_2"]


def test_the_expert_reads_the_old_wording():
    env = ALFWorldEnv(kitchen("fridge_bar_1", wording=OLD), max_steps=50)
    won, commands = play(env, demonstrator(env, np.random.default_rng(0), 1.0))
    assert won and commands[-1] == "put apple 1 in/on countertop 1"


def test_the_expert_puts_down_what_it_does_not_need():
    env = ALFWorldEnv(kitchen("fridge_bar_1"), max_steps=50)
    observation, info = env.reset()
    act = demonstrator(env, np.random.default_rng(0), 1.0)
    act(observation, info)
    for command in ("go to countertop 1", "take mug 1 from countertop 1", "go to fridge 1"):
        observation, _, _, _, info = env.step(command)
        following = act(observation, info)
    assert following == "go to countertop 1"
    observation, _, _, _, info = env.step(following)
    assert act(observation, info) == "move mug 1 to countertop 1"


def success(skill, count=150):
    tasks = suite.generated_suite(num_valid=count)
    env, rng = tasks.make_env(), np.random.default_rng(1)
    act = demonstrator(env, rng, skill)
    results = [play(env, act, **task) for task in tasks.splits["valid_seen"]]
    return np.mean([won for won, _ in results]), np.mean([len(commands) for _, commands in results])


def test_less_skill_succeeds_less_and_later():
    rates, lengths = zip(*(success(skill) for skill in (1.0, 0.5, 0.3, 0.0)), strict=True)
    assert rates[0] == 1.0
    assert rates[0] >= rates[1] > rates[2] > rates[3]
    assert lengths[0] < lengths[1] < lengths[2] < lengths[3]
    assert rates[3] < 0.2


def test_chance_comes_from_the_generator_alone():
    tasks = suite.generated_suite()
    env = tasks.make_env()
    runs = [
        play(env, demonstrator(env, np.random.default_rng(seed), 0.5), **tasks.splits["train"][0]) for seed in (3, 3, 4)
    ]
    assert runs[0] == runs[1] != runs[2]


@pytest.mark.parametrize(
    "sentence, task",
    [
        ("put a clean apple in fridge.", ("clean", "apple", "fridge")),
        ("clean some soapbar and put it in toilet.", ("clean", "soapbar", "toilet")),
        ("put a hot mug in cabinet.", ("heat", "mug", "cabinet")),
        ("heat some egg and put it in sinkbasin.", ("heat", "egg", "sinkbasin")),
        ("put a cool pan in stoveburner.", ("cool", "pan", "stoveburner")),
        ("cool some lettuce and put it in countertop.", ("cool", "lettuce", "countertop")),
        ("put two cd in safe.", ("pick2", "cd", "safe")),
        ("find two pen and put them in desk.", ("pick2", "pen", "desk")),
        ("look at book under the desklamp.", ("look", "book", "desklamp")),
        ("examine the vase with the floorlamp.", ("look", "vase", "floorlamp")),
        ("put a cloth in bathtubbasin.", ("pick", "cloth", "bathtubbasin")),
        ("put some pillow on sofa.", ("pick", "pillow", "sofa")),
    ],
)
def test_every_official_sentence_is_understood(sentence, task):
    assert parse_task(f"You see a desk 1.\n\nYour task is to: {sentence}") == task


def test_another_task_is_one_clear_error():
    with pytest.raises(ValueError, match="no known household task in 'juggle three apples"):
        parse_task("Your task is to: juggle three apples.")

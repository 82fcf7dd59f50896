"""Random walks through the kitchen and through random games, against a slow twin that follows the rules literally."""

import copy
import random

from alfworld_games import KITCHEN, kitchen, random_game
from hypothesis import given, settings
from hypothesis import strategies as st

from rspo_jax.envs.alfworld.engine import NOTHING_HAPPENS, Engine

games = st.one_of(
    st.sampled_from([KITCHEN, kitchen("look", "apple", "desklamp"), kitchen("pick2", "apple", "cabinet")]),
    st.integers(0, 10**6).map(lambda seed: random_game(random.Random(seed))),
)


def state(engine):
    """All that can change, without the caches."""
    goals = engine.goals
    return copy.deepcopy(
        (
            engine.location,
            engine.contents,
            engine.opened,
            engine.floor,
            engine.removed,
            engine.holding,
            engine.hands_full,
        )
        + (engine.clean, engine.hot, engine.cool, engine.toggled, engine.sliced, goals.seen, goals.won, goals.progress)
    )


def literal_commands(engine):
    """The admissible commands, each condition tested for each pair of things."""
    world, here = engine.world, engine.location
    commands = {"look", "inventory", "help"}
    things = list(zip(range(99), world.objects, world.object_names, strict=False))
    for o, thing, name in things:
        if o in engine.holding:
            commands.add(f"examine {name}")
            for other, target, target_name in things:
                if "knife" in thing.otype and target.sliceable and other in engine.floor[here]:
                    commands.add(f"slice {target_name} with {name}")
    for r, receptacle in enumerate(world.receptacles):
        place = world.receptacle_names[r]
        if world.locations[here] != receptacle.location:
            commands.add(f"go to {place}")
            continue
        commands.add(f"examine {place}")
        if receptacle.openable:
            commands.add(f"close {place}" if engine.opened[r] else f"open {place}")
        reachable = not receptacle.openable or engine.opened[r]
        for o, thing, name in things:
            held, inside = o in engine.holding, o in engine.contents[r]
            if inside and reachable and thing.pickupable and not engine.hands_full:
                commands.add(f"take {name} from {place}")
            if inside and thing.toggleable:
                commands.add(f"use {name}")
            if held and reachable and (receptacle.rtype, thing.otype) in world.game.can_contain:
                commands.add(f"move {name} to {place}")
            for verb, able, rtype in (
                ("clean", thing.cleanable, "sinkbasintype"),
                ("heat", thing.heatable, "microwavetype"),
                ("cool", thing.coolable, "fridgetype"),
            ):
                if held and able and receptacle.rtype == rtype:
                    commands.add(f"{verb} {name} with {place}")
    return commands


@settings(max_examples=150, deadline=None)
@given(games, st.randoms(use_true_random=False))
def test_admissible_commands_are_those_of_the_literal_rules_sorted_and_all_succeed(game, rng):
    engine = Engine(game)
    for _ in range(25):
        commands = engine.commands()
        assert commands == sorted(literal_commands(engine))
        assert engine.step(rng.choice(commands)) != NOTHING_HAPPENS


@settings(max_examples=100, deadline=None)
@given(games, st.randoms(use_true_random=False))
def test_other_commands_change_nothing(game, rng):
    engine, elsewhere = Engine(game), Engine(game)
    for _ in range(15):
        engine.step(rng.choice(engine.commands()))
        elsewhere.step(rng.choice(elsewhere.commands()))
        before = state(engine)
        for command in set(elsewhere.commands()) - set(engine.commands()):
            assert engine.step(command) == NOTHING_HAPPENS
        assert state(engine) == before


@settings(max_examples=100, deadline=None)
@given(games, st.randoms(use_true_random=False))
def test_progress_never_falls_and_is_one_exactly_if_the_game_was_won(game, rng):
    engine = Engine(game)
    won, progress = engine.won, engine.progress
    for _ in range(40):
        engine.step(rng.choice(engine.commands()))
        won |= engine.won
        assert 0.0 <= progress <= engine.progress <= 1.0
        progress = engine.progress
        assert (progress == 1.0) == won


@settings(max_examples=60, deadline=None)
@given(games, st.randoms(use_true_random=False))
def test_texts_do_not_depend_on_what_was_read_before(game, rng):
    """Reading everything at each step fills every cache; the answers stay those of an engine that never looked."""
    reader, player = Engine(game), Engine(game)
    for _ in range(20):
        for command in reader.commands():
            if command.startswith(("look", "examine", "inventory", "help")):
                reader.step(command)
        command = rng.choice(reader.commands())
        assert reader.step(command) == player.step(command)
    assert state(reader) == state(player)


@settings(max_examples=60, deadline=None)
@given(games, st.randoms(use_true_random=False))
def test_reset_restores_everything(game, rng):
    engine = Engine(game)
    first, start = engine.reset(), state(engine)
    for _ in range(20):
        engine.step(rng.choice(engine.commands()))
    assert engine.reset() == first
    assert state(engine) == start
    assert engine.commands() == Engine(game).commands()

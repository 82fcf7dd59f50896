"""Small ALFWorld games for the tests: one written by hand, and random ones with facts that official games lack."""

import dataclasses
import random

from rspo_jax.envs.alfworld.game import TASK_KINDS, Game, Goal, Object, Receptacle

_FOOD = dict(pickupable=True, cleanable=True, heatable=True, coolable=True)
_START, _KITCHEN, _FRIDGE, _SINK, _DESK = (f"loc_bar_{i}_bar_0" for i in range(5))

KITCHEN = Game(
    start=_START,
    receptacles=(
        Receptacle("countertop_bar_1", _KITCHEN, "countertoptype"),
        Receptacle("cabinet_bar_1", _KITCHEN, "cabinettype", openable=True),
        Receptacle("cabinet_bar_2", _KITCHEN, "cabinettype", openable=True),
        Receptacle("fridge_bar_1", _FRIDGE, "fridgetype", openable=True),
        Receptacle("microwave_bar_1", _SINK, "microwavetype", openable=True),
        Receptacle("sink_bar_1_bar_sinkbasin", _SINK, "sinkbasintype"),
        Receptacle("desk_bar_1", _DESK, "desktype"),
    ),
    objects=(
        Object("apple_bar_1", "appletype", **_FOOD, sliceable=True),
        Object("apple_bar_2", "appletype", **_FOOD, sliceable=True),
        Object("apple_bar_3", "appletype", **_FOOD, sliceable=True),
        Object("knife_bar_1", "knifetype", pickupable=True, cleanable=True),
        Object("mug_bar_1", "mugtype", **_FOOD, is_receptacle=True),
        Object("pen_bar_1", "pentype", pickupable=True),
        Object("sink_bar_1", "sinktype"),
        Object("desklamp_bar_1", "desklamptype", toggleable=True),
        Object("desklamp_bar_2", "desklamptype", pickupable=True, toggleable=True),
        Object("floorlamp_bar_1", "floorlamptype", toggleable=True),
    ),
    in_receptacle=(
        ("apple_bar_1", "countertop_bar_1"),
        ("apple_bar_2", "cabinet_bar_1"),
        ("apple_bar_3", "fridge_bar_1"),
        ("knife_bar_1", "countertop_bar_1"),
        ("mug_bar_1", "countertop_bar_1"),
        ("pen_bar_1", "cabinet_bar_1"),
        ("pen_bar_1", "countertop_bar_1"),
        ("sink_bar_1", "sink_bar_1_bar_sinkbasin"),
        ("desklamp_bar_1", "desk_bar_1"),
        ("desklamp_bar_2", "cabinet_bar_2"),
        ("desklamp_bar_2", "cabinet_bar_2"),
    ),
    object_at_location=(
        ("apple_bar_1", _KITCHEN),
        ("apple_bar_2", _KITCHEN),
        ("apple_bar_3", _FRIDGE),
        ("knife_bar_1", _KITCHEN),
        ("mug_bar_1", _KITCHEN),
        ("pen_bar_1", _KITCHEN),
        ("sink_bar_1", _SINK),
        ("desklamp_bar_1", _DESK),
        ("desklamp_bar_2", _KITCHEN),
        ("floorlamp_bar_1", _DESK),
    ),
    can_contain=frozenset(
        (f"{r}type", f"{o}type")
        for r, contents in (
            ("countertop", ("apple", "knife", "mug", "pen")),
            ("cabinet", ("apple", "mug", "pen")),
            ("fridge", ("apple", "mug")),
            ("microwave", ("apple", "mug")),
            ("sinkbasin", ("apple", "mug", "knife")),
            ("desk", ("pen", "mug", "desklamp")),
        )
        for o in contents
    ),
    in_receptacle_object=(("apple_bar_1", "mug_bar_1"),),
    cool=("apple_bar_3",),
    goal=Goal("pick", "appletype", "sinkbasintype"),
    task="put some apple on sinkbasin.",
)
"""Apples 3, 2, 1 are apple_bar_1, _2, _3: numbers descend along the ids. Countertop and cabinets share a location."""


def kitchen(kind: str, otype: str, target: str, **changes) -> Game:
    """The kitchen with another goal, e.g. `kitchen("heat", "apple", "desk")`, and other fields replaced."""
    return dataclasses.replace(KITCHEN, goal=Goal(kind, otype + "type", target + "type"), **changes)


def random_game(rng: random.Random) -> Game:
    """A game of few receptacles and objects with any legal fact, such as things held, hot or opened from the start."""
    locations = [f"loc_bar_{i}_bar_0" for i in range(rng.randint(2, 4))]
    receptacles = tuple(_receptacle(i, rng, locations[:-1]) for i in range(rng.randint(2, 6)))
    objects = tuple(_object(i, rng) for i in range(rng.randint(2, 7)))
    inside, at = [], []
    for o in objects:
        for r in rng.sample(receptacles, min(len(receptacles), rng.choice((0, 1, 1, 1, 2)))):
            inside.append((o.id, r.id))
            at += [(o.id, r.location)] * (rng.random() < 0.8)
    ids = [o.id for o in objects]
    kind = rng.choice(TASK_KINDS)
    target = "desklamptype" if kind == "look" else rng.choice(receptacles).rtype
    rare = rng.choice((0.0, 0.2))
    return Game(
        start=locations[-1] if rng.random() < 0.8 else rng.choice(locations),
        receptacles=receptacles,
        objects=objects,
        in_receptacle=tuple(inside),
        object_at_location=tuple(at),
        can_contain=frozenset((r.rtype, o.otype) for r in receptacles for o in objects if rng.random() < 0.7),
        goal=Goal(kind, rng.choice(objects).otype, target),
        task="do it.",
        in_receptacle_object=tuple((rng.choice(ids), rng.choice(ids)) for _ in range(rng.randint(0, 3))),
        opened=tuple(r.id for r in receptacles if rng.random() < rare),
        held=tuple(rng.sample(ids, rng.choice((1, 1, 2)))) if rng.random() < rare else (),
        hands_full=rng.choice((None, True, False)) if rng.random() < rare else None,
        **{state: _some(ids, rare, rng) for state in ("hot", "clean", "cool", "toggled", "sliced")},
    )


def _some(ids: list[str], share: float, rng: random.Random) -> tuple[str, ...]:
    return tuple(id for id in ids if rng.random() < share)


def _receptacle(i: int, rng: random.Random, locations: list[str]) -> Receptacle:
    name = rng.choice(("fridge", "microwave", "sinkbasin", "countertop", "cabinet", "shelf"))
    id = f"sink_bar_{i}_bar_sinkbasin" if name == "sinkbasin" else f"{name}_bar_{i}"
    return Receptacle(id, rng.choice(locations), f"{name}type", openable=rng.random() < 0.5)


def _object(i: int, rng: random.Random) -> Object:
    name = rng.choice(("apple", "knife", "butterknife", "mug", "desklamp"))
    flags = [rng.random() < share for share in (0.85, 0.6, 0.6, 0.6, 0.8 if name == "desklamp" else 0.1, 0.6, 0.3)]
    return Object(f"{name}_bar_{i}", f"{name}type", *flags)

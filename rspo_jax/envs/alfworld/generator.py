"""Seeded household games: rooms, objects, tasks and plans with the official set's proportions and oddities.

Two levels of chance. A *scene* fixes a room's furniture, locations and fixtures; scenes 1-27 of each kind of room are
for training, 28-30 are never trained on. A *game* draws movable objects and a task in a scene. Whether a game in a
training scene belongs to `train` or to `valid_seen` is decided by a checksum of its content, so that the splits are
disjoint however many games are drawn. Everything is a pure function of the arguments.
"""

import bisect
import dataclasses
import functools
import itertools
import random
import zlib
from collections.abc import Iterable
from typing import NamedTuple

from rspo_jax.envs.alfworld import game, rooms

SIZES = ("tiny", "official")
SPLITS = ("train", "valid_seen", "valid_unseen")
TRAIN_SCENES, UNSEEN_SCENES = range(1, 28), range(28, 31)
KIND_WEIGHTS = {"pick": 790, "look": 308, "clean": 650, "heat": 459, "cool": 533, "pick2": 813}
"""Games of each task kind in the official training set."""

_ROOM_WEIGHTS = {
    "pick": {"kitchen": 7, "living room": 5, "bedroom": 5, "bathroom": 3},
    "look": {"living room": 4, "bedroom": 6},
    "clean": {"kitchen": 3, "bathroom": 1},
    "heat": {"kitchen": 1},
    "cool": {"kitchen": 1},
    "pick2": {"kitchen": 7, "living room": 5, "bedroom": 5, "bathroom": 3},
}
APPLIANCES = {"clean": "SinkBasin", "heat": "Microwave", "cool": "Fridge"}
"""Task kind -> the receptacle class that does the work; never the destination of the same task."""

_SENTENCES = {
    "pick": ("put a {o} in {r}.", "put some {o} on {r}."),
    "clean": ("put a clean {o} in {r}.", "clean some {o} and put it in {r}."),
    "heat": ("put a hot {o} in {r}.", "heat some {o} and put it in {r}."),
    "cool": ("put a cool {o} in {r}.", "cool some {o} and put it in {r}."),
    "pick2": ("put two {o} in {r}.", "find two {o} and put them in {r}."),
    "look": ("look at {o} under the {r}.", "examine the {o} with the {r}."),
}
_CHANCES = {"distractor of the target's class": 0.4, "listed twice": 0.5, "cold": 0.1, "nowhere": 0.03, "inside": 0.05}
COPIES = {"tiny": 2, "official": 4}
"""Most distractors of one class."""
_COORDINATES = tuple(
    f"{'_minus_' if i < 0 else '_plus_'}{abs(i) // 100:02d}_dot_{abs(i) % 100:02d}" for i in range(-300, 300)
)
_BASINS = {
    "SinkBasin": "sink_bar_{}_bar_{}_bar_{}_bar_sinkbasin",
    "BathtubBasin": "bathtub_bar_{}_bar_{}_bar_{}_bar_bathtubbasin",
}
_PROPERTIES = {name: frozenset(classes) for name, classes in rooms.PROPERTIES.items()}
_CAN_CONTAIN = {name: frozenset(classes) for name, classes in rooms.CAN_CONTAIN.items()}


class GeneratedGame(NamedTuple):
    """A game and the number of its scene (1-30 kitchen, 201-230 living room, 301-330 bedroom, 401-430 bathroom)."""

    game: game.Game
    scene: int


class Placed(NamedTuple):
    """An object of a draw: its class and the indices of the receptacles that list it."""

    name: str
    homes: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Scene:
    """Furniture of one room; `classes[i]` is the class of `receptacles[i]`.

    homes: movable class -> (receptacle indices, cumulative weights).
    twins: receptacle index -> (index at the same location, classes that are often listed in both).
    fixtures: objects that cannot be taken, with their receptacle indices.
    tasks: task kind -> object class -> destination (for "look": lamp) classes.
    """

    number: int
    size: str
    room: rooms.Room
    start: str
    receptacles: tuple[game.Receptacle, ...]
    classes: tuple[str, ...]
    can_contain: frozenset[tuple[str, str]]
    fixtures: tuple[tuple[game.Object, tuple[int, ...]], ...]
    fixture_locations: tuple[tuple[str, str], ...]
    homes: dict[str, tuple[tuple[int, ...], tuple[float, ...]]]
    twins: dict[int, tuple[int, frozenset[str]]]
    tasks: dict[str, dict[str, tuple[str, ...]]]


def generate_game(seed: int, split: str, index: int, *, size: str = "tiny", kind: str | None = None) -> GeneratedGame:
    """Game number `index` of a split. kind: one of `game.TASK_KINDS`, or None to draw it in official proportions.

    The game is not won at the start and its `plan` wins it. ValueError names a split, size or kind that is unknown.
    """
    for key, value, known in (("split", split, SPLITS), ("size", size, SIZES), ("kind", kind, (None, *KIND_WEIGHTS))):
        if value not in known:
            raise ValueError(f"{key} is {value!r}; use one of {', '.join(map(repr, known))}.")
    rng = random.Random(f"alfworld game {seed} {size} {split} {index} {kind}")
    while True:
        task = kind or rng.choices(list(KIND_WEIGHTS), list(KIND_WEIGHTS.values()))[0]
        room = rng.choices(list(_ROOM_WEIGHTS[task]), list(_ROOM_WEIGHTS[task].values()))[0]
        number = rooms.BY_NAME[room].first_scene + rng.choice(
            UNSEEN_SCENES if split == "valid_unseen" else TRAIN_SCENES
        )
        scene = make_scene(seed, number, size)
        if not scene.tasks[task]:
            continue
        target = rng.choice(list(scene.tasks[task]))
        destination = rng.choice(scene.tasks[task][target])
        placed = _draw_objects(rng, scene, task, target, destination)
        if split == "valid_unseen" or _held_out(number, task, target, destination, placed) == (split == "valid_seen"):
            return GeneratedGame(_build(rng, scene, task, target, destination, placed), number)


@functools.lru_cache(maxsize=1024)
def make_scene(seed: int, number: int, size: str) -> Scene:
    """The scene with that number: its kind of room is the one whose numbers surround it."""
    rng = random.Random(f"alfworld scene {seed} {size} {number}")
    room = max((r for r in rooms.ROOMS if r.first_scene < number), key=lambda r: r.first_scene)
    classes = _draw_classes(rng, room, size)
    locations = _draw_locations(rng, len(classes) + 20)
    start, spare = locations[-1], iter(locations[len(classes) : -1])
    at = _share_locations(rng, classes, locations[: len(classes)])
    receptacles = tuple(
        game.Receptacle(id, location, f"{name}Type".lower(), rng.random() < rooms.OPENABLE.get(name, 0.0))
        for name, id, location in zip(classes, _ids(rng, classes), at, strict=True)
    )
    fixtures = _draw_fixtures(rng, room, size, classes)
    return Scene(
        number,
        size,
        room,
        start,
        receptacles,
        classes,
        _can_contain(classes),
        fixtures,
        tuple((thing.id, at[homes[0]] if homes else next(spare)) for thing, homes in fixtures),
        {name: homes for name in room.movables(size) if (homes := _home_weights(room.objects[name], classes))[0]},
        _twins(classes, at),
        _possible_tasks(room, size, classes, fixtures),
    )


# --- scenes ---------------------------------------------------------------------------------------------------------


def _draw_classes(rng: random.Random, room: rooms.Room, size: str) -> tuple[str, ...]:
    """Receptacle classes of a room, each between its least and most number, the sum within the size's range."""
    first = 2 * SIZES.index(size)
    ranges = {name: limits[first : first + 2] for name, limits in room.receptacles.items()}
    least, most = room.receptacle_total[size]
    # Squaring puts the median well below the middle of the range, as in the official set.
    total = least + int((most - least + 1) * rng.random() ** (2 if size == "official" else 1))
    optional = [name for name, (low, high) in ranges.items() for _ in range(high - low)]
    needed = max(0, total - sum(low for low, _ in ranges.values()))
    extra = rng.sample(optional, min(needed, len(optional)))
    return tuple(name for name, (low, _) in ranges.items() for _ in range(low + extra.count(name)))


def _draw_locations(rng: random.Random, count: int) -> list[str]:
    signed = [f"_minus_{-i}" if i < 0 else str(i) for i in range(-12, 13)]
    cells = rng.sample([(x, z) for x in signed for z in signed], count)
    return [
        f"loc_bar_{x}_bar_{z}_bar_{rng.randrange(4)}_bar_{rng.choice(('_minus_30', '0', '30', '45', '60'))}"
        for x, z in cells
    ]


def _share_locations(rng: random.Random, classes: tuple[str, ...], locations: list[str]) -> list[str]:
    """Moves receptacles to a partner's location (at most five in one place, as in the official set)."""
    at = list(locations)
    for i, name in enumerate(classes):
        partner, chance, _ = rooms.PARTNERS.get(name, ("", 0.0, ""))
        choices = [j for j, other in enumerate(classes) if other == partner and j != i and at.count(at[j]) < 5]
        if choices and rng.random() < chance:
            at[i] = at[rng.choice(choices)]
    return at


def _twins(classes: tuple[str, ...], at: list[str]) -> dict[int, tuple[int, frozenset[str]]]:
    twins = {}
    for i, name in enumerate(classes):
        partner, _, shared = rooms.PARTNERS.get(name, ("", 0.0, ""))
        for j, other in enumerate(classes):
            if shared and other == partner and j != i and at[i] == at[j]:
                twins[i], twins[j] = (j, frozenset(shared.split())), (i, frozenset(shared.split()))
    return twins


def _draw_fixtures(rng: random.Random, room: rooms.Room, size: str, classes: tuple[str, ...]) -> tuple:
    things = []
    for fixture in room.fixtures:
        for _ in range(rng.randint(*getattr(fixture, size))):
            homes = [i for i, name in enumerate(classes) if name in fixture.homes]
            listed = bool(homes) and rng.random() < fixture.listed
            things.append((fixture.name, (rng.choice(homes),) if listed else ()))
    ids = _ids(rng, [name for name, _ in things])
    return tuple((_object(id, name, pickupable=False), homes) for id, (name, homes) in zip(ids, things, strict=True))


def _home_weights(homes: tuple[str, ...], classes: tuple[str, ...]) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Receptacles that may hold an object and cumulative weights: 1, 1/2, 1/3... by class, shared within a class."""
    present = [home for home in homes if home in classes]
    pairs = [
        (i, 1 / (1 + present.index(name)) / classes.count(name)) for i, name in enumerate(classes) if name in present
    ]
    return tuple(i for i, _ in pairs), tuple(itertools.accumulate(weight for _, weight in pairs))


def _can_contain(classes: Iterable[str]) -> frozenset[tuple[str, str]]:
    return frozenset(
        (f"{r}Type".lower(), f"{o}Type".lower()) for r in set(classes) for o in rooms.CAN_CONTAIN.get(r, ())
    )


def _possible_tasks(
    room: rooms.Room, size: str, classes: tuple[str, ...], fixtures: tuple
) -> dict[str, dict[str, tuple[str, ...]]]:
    lamps = sorted({thing.otype for thing, homes in fixtures if thing.toggleable and homes})
    lamp_classes = tuple(name for name in rooms.PROPERTIES["toggleable"] if f"{name}Type".lower() in lamps)
    needed = {"clean": "cleanable", "heat": "heatable", "cool": "coolable"}
    tasks = {}
    for kind in KIND_WEIGHTS:
        appliance = APPLIANCES.get(kind)
        tasks[kind] = {}
        for name in room.movables(size):
            homes = {home for home in room.objects[name] if home in classes}
            if kind in needed and (name not in _PROPERTIES[needed[kind]] or appliance not in classes):
                continue
            fits = (c for c in room.receptacles if c in classes and c != appliance and name in _CAN_CONTAIN.get(c, ()))
            # The target has to start somewhere else than at its destination.
            destinations = lamp_classes if kind == "look" else tuple(c for c in fits if homes - {c})
            if homes and destinations:
                tasks[kind][name] = destinations
    return tasks


# --- games ----------------------------------------------------------------------------------------------------------


def _draw_objects(rng: random.Random, scene: Scene, kind: str, target: str, destination: str) -> list[Placed]:
    """Movable objects: first the one or two that the task needs (never at the destination), then distractors."""
    placed = [_place(rng, scene, target, avoid=destination) for _ in range(2 if kind == "pick2" else 1)]
    if rng.random() < _CHANCES["distractor of the target's class"]:
        # In the other tasks an untreated one may well lie at the destination: only here it would win or half win.
        placed.append(_place(rng, scene, target, avoid=destination if kind in ("pick", "pick2") else ""))
    total = rng.randint(*scene.room.object_total[scene.size]) - len(scene.fixtures)
    count = {target: COPIES[scene.size]}
    names = list(scene.homes)
    while len(placed) < total and names:
        name = rng.choice(names)
        count[name] = count.get(name, 0) + 1
        if count[name] > COPIES[scene.size]:
            names.remove(name)
        elif rng.random() < _CHANCES["nowhere"]:
            placed.append(Placed(name, ()))
        else:
            placed.append(_place(rng, scene, name))
    return placed


def _place(rng: random.Random, scene: Scene, name: str, avoid: str = "") -> Placed:
    """Puts an object into one of its homes, sometimes listed in two, but in none of class `avoid`."""
    homes, weights = scene.homes[name]
    while True:
        home = homes[bisect.bisect(weights, rng.random() * weights[-1], hi=len(homes) - 1)]
        if scene.classes[home] != avoid:
            break
    twin, shared = scene.twins.get(home, (home, frozenset()))
    if name in shared and scene.classes[twin] != avoid and rng.random() < _CHANCES["listed twice"]:
        return Placed(name, (home, twin))
    return Placed(name, (home,))


def _held_out(number: int, kind: str, target: str, destination: str, placed: list[Placed]) -> bool:
    """Whether a game with this content belongs to valid_seen: one in four does."""
    return zlib.crc32(repr((number, kind, target, destination, sorted(placed))).encode()) % 4 == 0


def _build(
    rng: random.Random, scene: Scene, kind: str, target: str, destination: str, placed: list[Placed]
) -> game.Game:
    ids = _ids(rng, [name for name, _ in placed])
    movable = tuple(_object(id, name) for id, (name, _) in zip(ids, placed, strict=True))
    homes = {thing.id: where for thing, where in scene.fixtures} | {
        id: where for id, (_, where) in zip(ids, placed, strict=True)
    }
    receptacles = scene.receptacles
    located = tuple((id, receptacles[homes[id][0]].location) for id in ids if homes[id])
    sentence = rng.choice(_SENTENCES[kind])
    result = game.Game(
        start=scene.start,
        receptacles=receptacles,
        objects=tuple(thing for thing, _ in scene.fixtures) + movable,
        in_receptacle=tuple((id, receptacles[i].id) for id, where in homes.items() for i in where),
        object_at_location=scene.fixture_locations + located,
        can_contain=scene.can_contain,
        goal=game.Goal(kind, f"{target}Type".lower(), f"{destination}Type".lower()),
        task=sentence.format(o=target.lower(), r=destination.lower()),
        in_receptacle_object=_draw_inside(rng, movable, placed),
        cool=tuple(o.id for o, p in zip(movable, placed, strict=True) if _cold(rng, scene, o, p)),
    )
    plan = tuple(_plan(scene, result, ids[: 2 if kind == "pick2" else 1], homes))
    return dataclasses.replace(result, plan=plan)


def _ids(rng: random.Random, names: Iterable[str]) -> list[str]:
    """Ids in THOR's manner, lower-case. The first coordinate differs between all of them."""
    names = list(names)
    xs, pick = rng.sample(_COORDINATES, len(names)), rng.choice
    patterns = (_BASINS.get(name, f"{name.lower()}_bar_{{}}_bar_{{}}_bar_{{}}") for name in names)
    return [pattern.format(x, pick(_COORDINATES), pick(_COORDINATES)) for pattern, x in zip(patterns, xs, strict=True)]


@functools.cache
def _flags(name: str) -> dict[str, bool]:
    return {field: name in classes for field, classes in _PROPERTIES.items()}


def _object(id: str, name: str, pickupable: bool = True) -> game.Object:
    return game.Object(id, f"{name}Type".lower(), pickupable, **_flags(name))


def _cold(rng: random.Random, scene: Scene, thing: game.Object, placed: Placed) -> bool:
    in_fridge = any(scene.classes[i] == "Fridge" for i in placed.homes)
    return thing.coolable and in_fridge and rng.random() < _CHANCES["cold"]


def _draw_inside(
    rng: random.Random, things: tuple[game.Object, ...], placed: list[Placed]
) -> tuple[tuple[str, str], ...]:
    """Small things that also lie in a bowl or the like of the same receptacle."""
    pairs = []
    for outer, where in zip(things, placed, strict=True):
        if outer.is_receptacle and where.homes and rng.random() < _CHANCES["inside"]:
            beside = [
                o.id for o, p in zip(things, placed, strict=True) if not o.is_receptacle and p.homes == where.homes
            ]
            pairs += [(rng.choice(beside), outer.id)] if beside else []
    return tuple(pairs)


# --- plans ----------------------------------------------------------------------------------------------------------


def _plan(scene: Scene, result: game.Game, targets: list[str], homes: dict[str, tuple[int, ...]]) -> list[str]:
    """Commands that win by the shortest route that knows where everything is, one target after the other."""
    route = _Route(scene.receptacles, result.names, scene.start)
    goal, name = result.goal, result.names
    by_class = {c.lower() + "type": i for i, c in reversed(list(enumerate(scene.classes)))}
    for target in targets:
        home = homes[target][0]
        route.reach(home, inside=True)
        route.commands.append(f"take {name[target]} from {route.name(home)}")
        if goal.kind in APPLIANCES:
            appliance = by_class[f"{APPLIANCES[goal.kind]}Type".lower()]
            route.reach(appliance)
            route.commands.append(f"{goal.kind} {name[target]} with {route.name(appliance)}")
        if goal.kind == "look":
            lamp = next(o.id for o, where in scene.fixtures if o.otype == goal.target and where)
            route.reach(homes[lamp][0])
            route.commands.append(f"use {name[lamp]}")
        else:
            route.reach(by_class[goal.target], inside=True)
            route.commands.append(f"move {name[target]} to {route.name(by_class[goal.target])}")
    return route.commands


class _Route:
    """Commands so far, with the place and the opened receptacles they lead to."""

    def __init__(self, receptacles: tuple[game.Receptacle, ...], names: dict[str, str], start: str):
        self.commands, self._here, self._open = [], start, set()
        self._receptacles, self._names = receptacles, names

    def name(self, index: int) -> str:
        return self._names[self._receptacles[index].id]

    def reach(self, index: int, inside: bool = False):
        """Goes there unless already there; inside: also opens it if it is closed."""
        receptacle = self._receptacles[index]
        if receptacle.location != self._here:
            self.commands.append(f"go to {self.name(index)}")
            self._here = receptacle.location
        if inside and receptacle.openable and index not in self._open:
            self.commands.append(f"open {self.name(index)}")
            self._open.add(index)

"""The simulator: the state of one game, the commands that are possible in it, and what each one changes and says.

It reproduces the official text engine (TextWorld's PDDL engine with the logic files of ALFWorld, Shridhar et al. 2021)
to the byte, oddities included. The PDDL domain is not read: its rules are the methods `_go_to`, `_open`, ... below.
Speed comes from two facts. Every change happens where the agent stands, so the command list of each location and the
text of each receptacle stay valid until a change there. And the command list doubles as the precondition check.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from rspo_jax.envs.alfworld.game import Game
from rspo_jax.envs.alfworld.goals import Goals

NOTHING_HAPPENS = "Nothing happens."
_KNIVES = ("knifetype", "butterknifetype")
_ROOM = "You are in the middle of a room. Looking quickly around you, you see {}."


class World:
    """What never changes in a game: ids turned into numbers (in id order, the order of all printed lists) and names.

    Attributes: `receptacles`, `objects` (the game's, sorted by id), `locations`; `receptacle_names`, `object_names`,
    `location_names`; `receptacle_number`, `object_number`, `location_number` (by id); `here` (location -> its
    receptacles), `location_of` (receptacle -> location, -1 if it has none), `start`.
    """

    def __init__(self, game: Game, names: dict[str, str]):
        self.game = game
        self.receptacles = sorted(game.receptacles, key=lambda r: r.id)
        self.objects = sorted(game.objects, key=lambda o: o.id)
        self.receptacle_number = {r.id: i for i, r in enumerate(self.receptacles)}
        self.object_number = {o.id: i for i, o in enumerate(self.objects)}
        self.receptacle_names = [names[r.id] for r in self.receptacles]
        self.object_names = [names[o.id] for o in self.objects]
        locations = {game.start, *(r.location for r in game.receptacles), *(x for _, x in game.object_at_location)}
        self.locations = sorted(locations - {""})
        self.location_number = {x: i for i, x in enumerate(self.locations)}
        self.location_names = [names[x] for x in self.locations]
        self.location_of = [self.location_number.get(r.location, -1) for r in self.receptacles]
        self.here: list[list[int]] = [[] for _ in self.locations]
        for r, location in enumerate(self.location_of):
            if location >= 0:
                self.here[location].append(r)
        self.start = self.location_number[game.start]
        self._fixed: list[dict | None] = [None] * len(self.locations)

    def fixed_commands(self, location: int) -> dict[str, tuple]:
        """The commands that are always possible at a location."""
        if self._fixed[location] is None:
            commands = {"look": (Engine._look, 0, 0), "inventory": (Engine._inventory, 0, 0)}
            if self.game.wording.help is not None:
                commands["help"] = (Engine._help, 0, 0)
            for r, (name, where) in enumerate(zip(self.receptacle_names, self.location_of, strict=True)):
                if where == location:
                    commands["examine " + name] = (Engine._examine_receptacle, r, 0)
                elif where >= 0:
                    commands["go to " + name] = (Engine._go_to, r, 0)
            self._fixed[location] = dict(sorted(commands.items()))
        return self._fixed[location]


class Engine:
    """A game being played. Objects, receptacles and locations are numbers (see `World`).

    State: `location`; `contents[r]`, the sorted objects in receptacle r (an object may be in several); `opened[r]`;
    `floor[l]`, the sorted objects at location l; `removed`, the pairs (object, receptacle) taken and not put back;
    `holding`, normally none or one object; `hands_full`; `clean`, `hot`, `cool`, `toggled`, `sliced`, sets of objects.
    """

    def __init__(self, game: Game, names: dict[str, str] | None = None):
        """names: printed names by id; default the game's own numbering."""
        self.world = World(game, game.names if names is None else names)
        self.goals = Goals(self.world)
        try:
            self.reset()
        except KeyError as error:
            raise ValueError(f"the game states a fact about {error}, which it does not list under that type") from None

    def reset(self) -> str:
        """Back to the start of the game; returns the introduction."""
        world, game = self.world, self.world.game
        number = world.object_number
        self.location = world.start
        self.contents = _groups(len(world.receptacles), game.in_receptacle, number, world.receptacle_number)
        self.inside = _groups(len(world.objects), game.in_receptacle_object, number, number)
        self.floor = _groups(len(world.locations), game.object_at_location, number, world.location_number)
        opened = set(game.opened)
        self.opened = [r.id in opened for r in world.receptacles]
        self.removed: set[tuple[int, int]] = set()
        self.holding = tuple(sorted({number[o] for o in game.held}))
        self.hands_full = bool(self.holding) if game.hands_full is None else game.hands_full
        self.clean, self.hot, self.cool, self.toggled, self.sliced = (
            {number[o] for o in ids} for ids in (game.clean, game.hot, game.cool, game.toggled, game.sliced)
        )
        self._texts: list[str | None] = [None] * len(world.receptacles)
        self._commands: list[tuple | None] = [None] * len(world.locations)
        self.goals.start(self)
        everything = [r for r, where in enumerate(world.location_of) if where >= 0]
        room = self._look(0, 0) if world.here[world.start] else _ROOM.format(_list(world.receptacle_names, everything))
        return f"-= Welcome to TextWorld, ALFRED! =-\n\n{room}\n\nYour task is to: {game.task}"

    def step(self, command: str) -> str:
        """Carries out a command and returns what the game says; an impossible one changes nothing."""
        action = self._current_commands()[1].get(command.strip())
        if action is None:
            return NOTHING_HAPPENS
        method, first, second = action
        return method(self, first, second)

    def commands(self) -> list[str]:
        """The admissible commands, sorted by code point. The list is the caller's."""
        return self._current_commands()[0].copy()

    @property
    def won(self) -> bool:
        """The goal holds now (it may cease to)."""
        return self.goals.won

    @property
    def progress(self) -> float:
        """Completed subgoals / all subgoals, the largest value so far (see goals.py)."""
        return self.goals.progress

    def accessible(self, r: int) -> bool:
        """The receptacle is open or has no door."""
        return self.opened[r] or not self.world.receptacles[r].openable

    # --- what is possible

    def _current_commands(self) -> tuple[list[str], dict[str, tuple], tuple, bool]:
        cached = self._commands[self.location]
        if cached is None or cached[2] != self.holding or cached[3] != self.hands_full:
            actions = self._possible_actions()
            cached = self._commands[self.location] = (sorted(actions), actions, self.holding, self.hands_full)
        return cached

    def _possible_actions(self) -> dict[str, tuple]:
        """command -> (method, its two arguments) of all actions whose precondition holds."""
        world = self.world
        objects, names = world.objects, world.object_names
        actions = world.fixed_commands(self.location).copy()
        for r in world.here[self.location]:
            name, openable, opened = world.receptacle_names[r], world.receptacles[r].openable, self.opened[r]
            if openable:
                actions[f"close {name}" if opened else f"open {name}"] = (
                    Engine._close if opened else Engine._open,
                    r,
                    0,
                )
            if not self.hands_full and (opened or not openable):
                for o in self.contents[r]:
                    if objects[o].pickupable:
                        actions[f"take {names[o]} from {name}"] = (Engine._take, o, r)
            for o in self.contents[r]:
                if objects[o].toggleable:
                    actions["use " + names[o]] = (Engine._use, o, 0)
            for o in self.holding:
                self._add_uses_of(o, r, actions)
        for o in self.holding:
            actions["examine " + names[o]] = (Engine._examine_object, o, 0)
            if objects[o].otype in _KNIVES:
                for other in self.floor[self.location]:
                    if objects[other].sliceable:
                        actions[f"slice {names[other]} with {names[o]}"] = (Engine._slice, other, o)
        return actions

    def _add_uses_of(self, o: int, r: int, actions: dict[str, tuple]) -> None:
        """Adds what can be done with a held object at a receptacle."""
        world, game = self.world, self.world.game
        thing, rtype = world.objects[o], world.receptacles[r].rtype
        o_name, r_name = world.object_names[o], world.receptacle_names[r]
        if (rtype, thing.otype) in game.can_contain and self.accessible(r):
            actions[game.wording.move.format(o=o_name, r=r_name)] = (Engine._move, o, r)
        if thing.cleanable and rtype in game.sink_types:
            actions[f"clean {o_name} with {r_name}"] = (Engine._clean, o, r)
        if thing.heatable and rtype == "microwavetype":
            actions[f"heat {o_name} with {r_name}"] = (Engine._heat, o, r)
        if thing.coolable and rtype == "fridgetype":
            actions[f"cool {o_name} with {r_name}"] = (Engine._cool, o, r)

    def _changed(self, r: int | None = None) -> None:
        """Forgets what depended on this location's (and receptacle r's) state, and re-evaluates the goal."""
        if r is not None:
            self._commands[self.location] = None
            self._texts[r] = None
        self.goals.update(self)

    # --- actions; the arguments are the two numbers found in the command

    def _look(self, _: int, __: int) -> str:
        here, world = self.world.here[self.location], self.world
        if not here:
            # The official text asks for the receptacles at the agent's location, and there are none.
            return _ROOM.format("nothing")
        seen = [o for o in self.floor[self.location] for r in here if (o, r) in self.removed] if self.removed else []
        facing = _join([world.receptacle_names[r] for r in here])
        return f"You are facing the {facing}. Next to it, you see {_list(world.object_names, seen)}."

    def _inventory(self, _: int, __: int) -> str:
        if not self.hands_full:
            return "You are not carrying anything."
        return f"You are carrying: {_list(self.world.object_names, self.holding)}."

    def _help(self, _: int, __: int) -> str:
        return self.world.game.wording.help

    def _go_to(self, r: int, _: int) -> str:
        self.location = self.world.location_of[r]
        self._changed()
        world = self.world
        by_name = world.game.wording.arrives_at_receptacle
        place = world.receptacle_names[r] if by_name else world.location_names[self.location]
        return f"You arrive at {place}. {self._examine_receptacle(r, 0)}"

    def _open(self, r: int, _: int) -> str:
        self.opened[r] = True
        self._changed(r)
        return f"You open the {self.world.receptacle_names[r]}. {self._examine_receptacle(r, 0)}"

    def _close(self, r: int, _: int) -> str:
        self.opened[r] = False
        self._changed(r)
        return f"You close the {self.world.receptacle_names[r]}."

    def _examine_receptacle(self, r: int, _: int) -> str:
        text = self._texts[r]
        if text is None:
            name = self.world.receptacle_names[r]
            if not self.world.receptacles[r].openable:
                text = f"On the {name}, you see {_list(self.world.object_names, self.contents[r])}."
            elif self.opened[r]:
                text = f"The {name} is open. In it, you see {_list(self.world.object_names, self.contents[r])}."
            else:
                text = f"The {name} is closed."
            self._texts[r] = text
        return text

    def _examine_object(self, o: int, _: int) -> str:
        thing, name = self.world.objects[o], self.world.object_names[o]
        if thing.is_receptacle:
            inside = [other for other in self.inside[o] if other != o]
            return f"This is a normal {name}. In it, you see {_list(self.world.object_names, inside)}."
        clean, hot, cool, sliced = o in self.clean, o in self.hot, o in self.cool, o in self.sliced
        heat = "hot" if hot else "cool" if cool else ""
        if sliced and (clean or heat):
            return f"This is a {' and '.join(filter(None, (heat, 'clean' if clean else '')))} sliced {name}."
        if clean:
            return f"This is a {heat + ' and ' if heat else ''}clean {name}."
        if heat:
            return f"This is a {'hot' if hot else 'cold'} {name}."
        if thing.toggleable and o in self.toggled:
            return f"This {name} is on."
        if thing.sliceable and sliced:
            return f"This is a sliced {name}."
        return f"There's nothing special about {name}."

    def _take(self, o: int, r: int) -> str:
        self.contents[r].remove(o)
        self.removed.add((o, r))
        floor = self.floor[self.location]
        if o in floor:
            floor.remove(o)
        self.holding = tuple(sorted({*self.holding, o}))
        self.hands_full = True
        self._changed(r)
        return f"You pick up the {self.world.object_names[o]} from the {self.world.receptacle_names[r]}."

    def _move(self, o: int, r: int) -> str:
        _insert(self.contents[r], o)
        self.removed.discard((o, r))
        _insert(self.floor[self.location], o)
        self.holding = tuple(other for other in self.holding if other != o)
        self.hands_full = False
        self._changed(r)
        return self.world.game.wording.moved.format(o=self.world.object_names[o], r=self.world.receptacle_names[r])

    def _clean(self, o: int, r: int) -> str:
        self.clean.add(o)
        self._changed()
        return f"You clean the {self.world.object_names[o]} using the {self.world.receptacle_names[r]}."

    def _heat(self, o: int, r: int) -> str:
        self.hot.add(o)
        self.cool.discard(o)
        self._changed()
        return f"You heat the {self.world.object_names[o]} using the {self.world.receptacle_names[r]}."

    def _cool(self, o: int, r: int) -> str:
        self.cool.add(o)
        self.hot.discard(o)
        self._changed()
        return f"You cool the {self.world.object_names[o]} using the {self.world.receptacle_names[r]}."

    def _use(self, o: int, _: int) -> str:
        self.toggled.add(o)
        self._changed()
        return f"You turn on the {self.world.object_names[o]}."

    def _slice(self, o: int, knife: int) -> str:
        self.sliced.add(o)
        self._changed()
        return f"You sliced the {self.world.object_names[o]} with the {self.world.object_names[knife]}."


def _groups(count: int, pairs: Sequence[tuple[str, str]], member: dict[str, int], group: dict[str, int]):
    """group number -> its sorted members."""
    groups: list[set[int]] = [set() for _ in range(count)]
    for a, b in pairs:
        groups[group[b]].add(member[a])
    return [sorted(members) for members in groups]


def _insert(numbers: list[int], number: int) -> None:
    if number not in numbers:
        bisect.insort(numbers, number)


def _join(items: Sequence[str]) -> str:
    """`x`, `x, and y`, `x, y, and z`; "nothing" for none."""
    if len(items) < 2:
        return items[0] if items else "nothing"
    return f"{', '.join(items[:-1])}, and {items[-1]}"


def _list(names: Sequence[str], numbers: Sequence[int]) -> str:
    return _join(["a " + names[i] for i in numbers])

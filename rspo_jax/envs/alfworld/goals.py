"""Whether a game is won, and how far it is: completed subgoals / all subgoals, as a running maximum.

Subgoals, counted for the object of the target type that is furthest (n = their number):

| kind             | n | subgoals                                              |
|------------------|---|-------------------------------------------------------|
| pick             | 4 | find, take, carry, put                                |
| clean, heat, cool| 5 | find, take, treat, carry, put                         |
| look             | 4 | find, take, lamp, carry                               |
| pick2            | 8 | find, take, carry, put, for each of two objects       |
| movable          | 1 | won                                                   |

find: the object was seen at some time in this episode: in an accessible receptacle where the agent stood, or in its
hands. take: it is held now. treat: it is clean, hot or cool now (and sliced, if the goal says so); true from the start
for an object that starts so. lamp: a lamp of the right type is on. carry: an object in its final condition is held
where a receptacle of the target type is ("look": held where the lamp is). put: it is, in its final condition, in a
receptacle of the target type; this completes all subgoals of that object, whether it was ever seen or not. For pick2,
both objects are counted towards the same receptacle, the one with which most is done. All of them but find are facts
of the present state; the running maximum is what makes the value non-decreasing. It is 1 exactly if the game was won.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rspo_jax.envs.alfworld.engine import Engine, World

_SUBGOALS = {"pick": 4, "clean": 5, "heat": 5, "cool": 5, "look": 4, "pick2": 8, "movable": 1}
_FLAGS = {"clean": "cleanable", "heat": "heatable", "cool": "coolable"}
_STATES = {"clean": "clean", "heat": "hot", "cool": "cool"}


class Goals:
    """Follows one game; `won` and `progress` are current after `start` and every `update`."""

    def __init__(self, world: World):
        goal = self.goal = world.game.goal
        self.world = world
        objects = enumerate(world.objects)
        flag = _FLAGS.get(goal.kind)
        self.targets = frozenset(i for i, o in objects if o.otype == goal.otype and (not goal.sliced or o.sliceable))
        # An object that cannot be treated can be found and taken, but never be in its final condition.
        self.treatable = frozenset(i for i in self.targets if flag is None or getattr(world.objects[i], flag))
        self.destinations = [i for i, r in enumerate(world.receptacles) if r.rtype == goal.target]
        self.places = frozenset(world.location_of[r] for r in self.destinations)
        self.lamps = [i for i, o in enumerate(world.objects) if o.otype == goal.target and o.toggleable]
        self.holders = [i for i, o in enumerate(world.objects) if o.otype == goal.movable and o.is_receptacle]

    def start(self, engine: Engine) -> None:
        self.seen: set[int] = set()
        self.progress = 0.0
        self.update(engine)

    def update(self, engine: Engine) -> None:
        """Looks at the state after a change."""
        self._look_around(engine)
        subgoals = _SUBGOALS[self.goal.kind]
        done = self._COUNT[self.goal.kind](self, engine)
        self.won = done == subgoals
        self.progress = max(self.progress, done / subgoals)

    def _look_around(self, engine: Engine) -> None:
        if len(self.seen) == len(self.targets):
            return
        for r in self.world.here[engine.location]:
            if engine.accessible(r):
                self.seen |= self.targets.intersection(engine.contents[r])
        self.seen |= self.targets.intersection(engine.holding)

    def _ready(self, engine: Engine) -> frozenset[int]:
        """The targets in their final condition."""
        ready = self.treatable
        state = _STATES.get(self.goal.kind)
        if state:
            ready = ready & getattr(engine, state)
        return ready & engine.sliced if self.goal.sliced else ready

    def _count_place(self, engine: Engine) -> int:
        ready = self._ready(engine)
        subgoals = _SUBGOALS[self.goal.kind]
        if ready and any(not ready.isdisjoint(engine.contents[r]) for r in self.destinations):
            return subgoals
        at_destination = engine.location in self.places
        best = 0
        for o in self.targets:
            held, treated = o in engine.holding, o in ready
            count = (o in self.seen) + held + (held and treated and at_destination)
            best = max(best, count + (treated and subgoals == 5))
        return best

    def _count_two(self, engine: Engine) -> int:
        ready, best = self._ready(engine), 0
        elsewhere = [(o in self.seen) + (o in engine.holding) for o in self.targets]
        for r in self.destinations:
            at_destination = engine.location == self.world.location_of[r]
            contents = engine.contents[r]
            counts = []
            for o, count in zip(self.targets, elsewhere, strict=True):
                treated = o in ready
                if treated and o in contents:
                    count = 4
                elif treated and at_destination and o in engine.holding:
                    count = 3
                counts.append(count)
            best = max(best, sum(sorted(counts)[-2:]))
        return best

    def _count_look(self, engine: Engine) -> int:
        ready = self._ready(engine)
        held = ready.intersection(engine.holding)
        lamp = 0
        for x in self.lamps:
            here = held and any(x in engine.contents[r] for r in self.world.here[engine.location])
            lamp = max(lamp, (x in engine.toggled) + bool(here))
        found = max(((o in self.seen) + (o in engine.holding) for o in self.targets), default=0)
        return found + lamp

    def _count_movable(self, engine: Engine) -> int:
        ready = self._ready(engine)
        filled = [m for m in self.holders if not ready.isdisjoint(engine.inside[m])]
        return int(any(m in engine.contents[r] for m in filled for r in self.destinations))

    _COUNT = dict.fromkeys(("pick", "clean", "heat", "cool"), _count_place) | {
        "pick2": _count_two,
        "look": _count_look,
        "movable": _count_movable,
    }

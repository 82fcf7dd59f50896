"""One ALFWorld game as immutable data: what the PDDL problem and the grammar of a `game.tw-pddl` say, and nothing else.

Both sources of games end here: `Game.from_text` reads the official file format, the generator builds the dataclasses
directly. All ids and types are lower-case strings (PDDL is case-insensitive); ids follow the THOR scheme
`apple_bar_<coordinates>`, whose part before the first `_bar_` is the printed class name. Relations are sets of pairs,
kept as tuples: order never matters and a pair that occurs twice counts once.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable

TASK_KINDS = ("pick", "look", "clean", "heat", "cool", "pick2")
"""The six playable task types, in the order of the official statistics; `Goal.kind` may also be "movable"."""

OFFICIAL_KINDS = {
    "pick_and_place_simple": "pick",
    "look_at_obj_in_light": "look",
    "pick_clean_then_place_in_recep": "clean",
    "pick_heat_then_place_in_recep": "heat",
    "pick_cool_then_place_in_recep": "cool",
    "pick_two_obj_and_place": "pick2",
    "pick_and_place_with_movable_recep": "movable",
}
"""Official `task_type` -> `Goal.kind`."""

HELP = """\
Available commands:
  look:                             look around your current location
  inventory:                        check your current inventory
  go to (receptacle):               move to a receptacle
  open (receptacle):                open a receptacle
  close (receptacle):               close a receptacle
  take (object) from (receptacle):  take an object from a receptacle
  move (object) to (receptacle):  place an object in or on a receptacle
  examine (something):              examine a receptacle or an object
  use (object):                     use an object
  heat (object) with (receptacle):  heat an object using a receptacle
  clean (object) with (receptacle): clean an object using a receptacle
  cool (object) with (receptacle):  cool an object using a receptacle
  slice (object) with (object):     slice an object using a sharp object
"""
"""Answer to `help`, as the current official logic files have it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Wording:
    """The texts that differ between versions of the official logic files.

    move: command that puts an object down, with the slots `{o}` and `{r}`.
    moved: its feedback, same slots.
    arrives_at_receptacle: `go to R` answers "You arrive at R." (True) or names the location, "You arrive at loc 12.".
    help: the answer to `help`; None where the command does not exist.
    """

    move: str = "move {o} to {r}"
    moved: str = "You move the {o} to the {r}."
    arrives_at_receptacle: bool = True
    help: str | None = HELP


NEW = Wording()
OLD = Wording("put {o} in/on {r}", "You put the {o} in/on the {r}.", arrives_at_receptacle=False, help=None)


@dataclasses.dataclass(frozen=True, slots=True)
class Receptacle:
    """A fixed receptacle. `rtype` is its class plus `type`, as in PDDL ("fridgetype"); location is a location id."""

    id: str
    location: str
    rtype: str
    openable: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Object:
    """An object. `otype` is its class plus `type`, as in PDDL ("appletype")."""

    id: str
    otype: str
    pickupable: bool = False
    cleanable: bool = False
    heatable: bool = False
    coolable: bool = False
    toggleable: bool = False
    sliceable: bool = False
    is_receptacle: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Goal:
    """What has to hold to win.

    kind: one of TASK_KINDS, or "movable".
    otype: type of the object(s) to bring or to look at.
    target: type of the receptacle to bring it to; for "look" the type of the lamp (an otype, like "desklamptype").
    movable: "movable" only: type of the object that the first one has to be in.
    sliced: the object(s) must also be sliced.
    """

    kind: str
    otype: str
    target: str
    movable: str = ""
    sliced: bool = False


@dataclasses.dataclass(frozen=True)
class Game:
    """One game.

    start: location id of the agent (no receptacle there in any official game).
    receptacles, objects: all of them; ids are unique.
    in_receptacle: (object id, receptacle id) pairs; an object may be in several receptacles.
    object_at_location: (object id, location id) pairs.
    can_contain: (rtype, otype) pairs: which kind of object may be put where.
    goal, task: the goal, and the sentence that tells the player, with full stop: "put a clean apple in fridge.".
    in_receptacle_object: (inner object id, outer object id) pairs, read only by `examine`.
    opened: ids of receptacles; hot, clean, cool, toggled, sliced, held: ids of objects; all true at the start.
    hands_full: nothing can be taken. None: true iff something is held (PDDL keeps the two facts apart).
    sink_types: receptacle types where `clean` works.
    other_ids: further ids that occur in a fact: they only take part in the numbering of names.
    plan: a list of commands that wins, () if unknown; nothing depends on it.
    """

    start: str
    receptacles: tuple[Receptacle, ...]
    objects: tuple[Object, ...]
    in_receptacle: tuple[tuple[str, str], ...]
    object_at_location: tuple[tuple[str, str], ...]
    can_contain: frozenset[tuple[str, str]]
    goal: Goal
    task: str
    wording: Wording = NEW
    in_receptacle_object: tuple[tuple[str, str], ...] = ()
    opened: tuple[str, ...] = ()
    hot: tuple[str, ...] = ()
    clean: tuple[str, ...] = ()
    cool: tuple[str, ...] = ()
    toggled: tuple[str, ...] = ()
    sliced: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    hands_full: bool | None = None
    sink_types: frozenset[str] = frozenset({"sinkbasintype"})
    other_ids: tuple[str, ...] = ()
    plan: tuple[str, ...] = ()

    @classmethod
    def from_text(cls, text: str) -> Game:
        """Reads the text of a `game.tw-pddl`. ValueError, in one sentence, if it is not one or its goal is unknown."""
        from rspo_jax.envs.alfworld import pddl  # pddl builds these classes

        return pddl.game_from_text(text)

    @functools.cached_property
    def names(self) -> dict[str, str]:
        """id -> printed name ("apple 3") of every receptacle, object and location."""
        return number_names(sorted(self.ids()))

    def ids(self) -> set[str]:
        """All ids that take part in the numbering."""
        ids = {self.start, *self.other_ids}
        ids.update(r.id for r in self.receptacles)
        ids.update(r.location for r in self.receptacles)
        ids.update(o.id for o in self.objects)
        ids.update(location for _, location in self.object_at_location)
        ids.discard("")
        return ids


def number_names(ids: Iterable[str]) -> dict[str, str]:
    """Names for ids in the order given: within one class the first gets the highest number, the last gets 1.

    The class is the text before the first `_bar_`, with `basin` appended if the id contains `basin`, so that a sink and
    its basin differ. An id without `_bar_` is its own name, with one trailing blank.
    """
    ids = list(ids)
    names, count = {}, {}
    for id in reversed(ids):
        base, bar, _ = id.partition("_bar_")
        if not bar:
            names[id] = id + " "
            continue
        if "basin" in id:
            base += "basin"
        count[base] = number = count.get(base, 0) + 1
        names[id] = f"{base} {number}"
    return names

"""A scripted household player to imitate.

It knows the six kinds of task and where things are usually found, and everything else from the observations alone: it
looks for the target in a fixed order, the likeliest receptacles first, as a player that cannot see through doors must.
So whatever it does can be learned from what an agent sees. It plays any game with the official texts, old or new.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from rspo_jax.envs.alfworld import rooms

_TASKS = (
    ("clean", r"put a clean (\w+) in (\w+)|clean some (\w+) and put it in (\w+)"),
    ("heat", r"put a hot (\w+) in (\w+)|heat some (\w+) and put it in (\w+)"),
    ("cool", r"put a cool (\w+) in (\w+)|cool some (\w+) and put it in (\w+)"),
    ("pick2", r"put two (\w+) in (\w+)|find two (\w+) and put them in (\w+)"),
    ("look", r"look at (\w+) under the (\w+)|examine the (\w+) with the (\w+)"),
    ("pick", r"put a (\w+) in (\w+)|put some (\w+) on (\w+)"),
)
_APPLIANCES = {"clean": "sinkbasin", "heat": "microwave", "cool": "fridge"}
_ROOM_SIGNS = {"fridge": "kitchen", "toilet": "bathroom", "bed": "bedroom"}
_ACCEPTS = {r.lower(): {o.lower() for o in objects} for r, objects in rooms.CAN_CONTAIN.items()}

_SEEN = re.compile(r"on the (\w+ \d+), you see (.*?)\.|the (\w+ \d+) is open\. in it, you see (.*?)\.")
_TAKEN = re.compile(r"you pick up the (\w+ \d+) from the (\w+ \d+)\.")
_MOVED = re.compile(r"you (?:move|put) the (\w+ \d+) (?:to|in/on) the (\w+ \d+)\.")
_TREATED = re.compile(r"you (?:clean|heat|cool) the (\w+ \d+) using")
_ITEM = re.compile(r"\ba (\w+ \d+)")
# Kinds of actions that a player might plausibly try; the rest (look, inventory, close...) never helps.
_PLAUSIBLE = ("go to", "open", "take", "move", "put", "use")


class Task(NamedTuple):
    """kind: one of `game.TASK_KINDS`; target: object class; destination: class of the receptacle or lamp."""

    kind: str
    target: str
    destination: str


def demonstrator(env: gymnasium.Env, rng: np.random.Generator, skill: float) -> Callable[[str, Mapping[str, Any]], str]:
    """A player: called with each (observation, info) of one environment in turn, it answers with an action.

    skill: chance that a decision is the expert's; else a plausible admissible action is drawn (go, open, take...).
    `env` is not consulted: the observations are enough, whatever engine they come from. An episode starts with the
    observation of `reset`. ValueError if that names no task of the six kinds.
    """
    del env
    memory = Memory()

    def act(obs: str, info: Mapping[str, Any]) -> str:
        memory.observe(obs)
        admissible = info["admissible_actions"]
        if rng.random() >= skill:
            return _plausible(rng, admissible, memory)
        return expert_action(memory, admissible)

    return act


def parse_task(text: str) -> Task:
    """The task in an opening observation. ValueError if there is none of the six kinds."""
    sentence = text.lower().split("your task is to: ")[-1].strip()
    for kind, pattern in _TASKS:
        if match := re.match(rf"(?:{pattern})\b", sentence):
            return Task(kind, *(group for group in match.groups() if group))
    raise ValueError(f"no known household task in {sentence[:80]!r}: a demonstrator plays the six official kinds.")


class Memory:
    """What a player can know: the task, the receptacles, their contents as far as seen, and what it holds.

    contents: receptacle -> objects, for those whose inside has been seen.
    treated: objects that were cleaned, heated or cooled.
    """

    task: Task
    room: str
    receptacles: tuple[str, ...]

    def observe(self, obs: str):
        """Takes in one observation; the opening text of a game clears the memory first."""
        obs = obs.lower()
        if "your task is to: " in obs:
            self._begin(obs)
            return
        if match := _TAKEN.search(obs):
            self.held = match[1]
            self.contents.setdefault(match[2], set()).discard(match[1])
        if match := _MOVED.search(obs):
            self.held = None
            self.contents.setdefault(match[2], set()).add(match[1])
        if match := _TREATED.search(obs):
            self.treated.add(match[1])
        for on, things_on, inside, things_inside in _SEEN.findall(obs):
            self.contents[on or inside] = set(_ITEM.findall(things_on or things_inside))

    def _begin(self, obs: str):
        room, _, task = obs.partition("your task is to: ")
        self.task = parse_task(task)
        self.receptacles = tuple(_ITEM.findall(room))
        self.contents: dict[str, set[str]] = {}
        self.treated: set[str] = set()
        self.held: str | None = None
        classes = {_class(r) for r in self.receptacles}
        self.room = next((room for sign, room in _ROOM_SIGNS.items() if sign in classes), "living room")

    def search_order(self, target: str) -> list[str]:
        """All receptacles, the likeliest to hold an object of class `target` first, low numbers first."""
        likely = rooms.LIKELY_HOMES[self.room].get(target, ())

        def key(receptacle: str):
            name, number = receptacle.split()
            if name in likely:
                return likely.index(name), "", int(number)
            return len(likely) + (target not in _ACCEPTS.get(name, ())), name, int(number)

        return sorted(self.receptacles, key=key)

    def instances(self, name: str) -> list[str]:
        """Receptacles of a class, low numbers first."""
        return sorted((r for r in self.receptacles if _class(r) == name), key=lambda r: int(r.split()[1]))

    def where(self, name: str) -> list[tuple[str, str]]:
        """(object, receptacle) pairs seen of an object class, in search order."""
        order = self.search_order(name)
        return [(o, r) for r in order for o in sorted(self.contents.get(r, ())) if _class(o) == name]


def expert_action(memory: Memory, admissible: Sequence[str]) -> str:
    """The next step of the expert: find the target, treat it, bring it; `look` if nothing is left to try."""
    kind, target, destination = memory.task
    steps = Steps(memory, admissible)
    if memory.held and _class(memory.held) != target:
        return steps.put_down()
    if not memory.held:
        return steps.fetch(target, steps.depot() if kind == "pick2" else None)
    if kind == "look":
        return steps.use(destination)
    if kind in _APPLIANCES and memory.held not in memory.treated:
        return steps.treat(kind)
    return steps.put(steps.depot())


class Steps:
    """Ways to get one step closer to something, each as a single admissible action."""

    def __init__(self, memory: Memory, admissible: Sequence[str]):
        self._memory = memory
        self._admissible = admissible

    def fetch(self, target: str, depot: str | None) -> str:
        """Towards holding a `target`; those already in `depot` stay there."""
        done = self._memory.contents.get(depot, set())
        places = [(o, r) for o, r in self._memory.where(target) if o not in done]
        if not places:
            return self._search(target)
        # One that needs no walk comes first.
        thing, place = min(places, key=lambda pair: f"go to {pair[1]}" in self._admissible)
        return self._reach(place) or f"take {thing} from {place}"

    def use(self, lamp: str) -> str:
        """Towards switching on a `lamp`."""
        places = self._memory.where(lamp)
        if not places:
            return self._search(lamp)
        thing, place = min(places, key=lambda pair: f"go to {pair[1]}" in self._admissible)
        go = f"go to {place}"
        return go if go in self._admissible else f"use {thing}"

    def treat(self, kind: str) -> str:
        """Towards cleaning, heating or cooling what is held; needs no opening."""
        place = next(iter(self._memory.instances(_APPLIANCES[kind])), None)
        if place is None:
            return "look"
        go = f"go to {place}"
        return go if go in self._admissible else f"{kind} {self._memory.held} with {place}"

    def put(self, place: str | None) -> str:
        """Towards putting down what is held in `place`."""
        return "look" if place is None else self._reach(place) or self._put_command(place)

    def put_down(self) -> str:
        """Towards getting rid of what is held: here if possible, else at the first place that takes it."""
        commands = [self._put_command(r) for r in sorted(self._memory.receptacles)]
        here = [command for command in commands if command in self._admissible]
        if here:
            return here[0]
        name = _class(self._memory.held)
        fits = [r for r in self._memory.search_order(name) if name in _ACCEPTS.get(_class(r), ())]
        return self.put(fits[0] if fits else None)

    def depot(self) -> str | None:
        """The destination: of several, the one that already has most targets, then the one with the lowest number."""
        _, target, destination = self._memory.task

        def stored(receptacle: str) -> int:
            return sum(_class(thing) == target for thing in self._memory.contents.get(receptacle, ()))

        return max(self._memory.instances(destination), key=stored, default=None)

    def _search(self, target: str) -> str:
        """Towards seeing the inside of the next receptacle in search order."""
        unseen = [r for r in self._memory.search_order(target) if r not in self._memory.contents]
        return "look" if not unseen else self._reach(unseen[0]) or f"examine {unseen[0]}"

    def _reach(self, place: str) -> str | None:
        """The action that still lies between the player and the inside of `place`; None if nothing does."""
        return next((c for c in (f"go to {place}", f"open {place}") if c in self._admissible), None)

    def _put_command(self, place: str) -> str:
        new = f"move {self._memory.held} to {place}"
        old = f"put {self._memory.held} in/on {place}"
        return old if old in self._admissible else new


def _plausible(rng: np.random.Generator, admissible: Sequence[str], memory: Memory) -> str:
    """A random action: first its kind, then one of that kind, so that many receptacles do not drown the rest."""
    kinds: dict[str, list[str]] = {}
    for command in admissible:
        verb = next((v for v in _PLAUSIBLE if command.startswith(v + " ")), None)
        if verb and not (verb == "take" and not _storable(command, memory)):
            kinds.setdefault(verb, []).append(command)
    if not kinds:
        return "look"
    commands = kinds[sorted(kinds)[rng.integers(len(kinds))]]
    return commands[rng.integers(len(commands))]


def _storable(take: str, memory: Memory) -> bool:
    """Whether the object of a take command could be put down again: a few objects fit nowhere."""
    name = take.split()[1]
    return any(name in _ACCEPTS.get(_class(r), ()) for r in memory.receptacles)


def _class(name: str) -> str:
    return name.split()[0]

"""Reads the official file format: `game.tw-pddl`, a JSON object with a PDDL problem and a grammar.

The PDDL domain in it is not interpreted (its rules are the engine's code); the problem's facts become a `Game`, and its
goal is recognised by its atoms, whatever their order and nesting.
"""

from __future__ import annotations

import collections
import functools
import json
import re

from rspo_jax.envs.alfworld import grammar
from rspo_jax.envs.alfworld.game import Game, Goal, Object, Receptacle

_FLAGS = ("pickupable", "cleanable", "heatable", "coolable", "toggleable", "sliceable", "isreceptacleobject")
_STATES = ("ishot", "isclean", "iscool", "istoggled", "issliced")
_RELATIONS = ("atlocation", "receptacleatlocation", "objectatlocation", "receptacletype", "objecttype", "cancontain")
_RELATIONS += ("inreceptacle", "inreceptacleobject", "holds")
# Predicates of the domain that no precondition, goal or text depends on.
_IGNORED = ("isreceptacleobjectfull", "wasinreceptacle", "checked", "examined", "holdsanyreceptacleobject", "full")
_IGNORED += ("moveable", "ison")
_ARGUMENTS = dict.fromkeys((*_FLAGS, *_STATES, "openable", "opened", "holdsany"), 1) | dict.fromkeys(_RELATIONS, 2)


def game_from_text(text: str) -> Game:
    """The game of a `game.tw-pddl` text. ValueError, in one sentence, if it is malformed or its goal is unknown."""
    data = _load(text)
    problem = _without_comments(data["pddl_problem"])
    facts = _facts(_section(problem, "init"))
    return Game(
        start=_start(facts["atlocation"]),
        receptacles=_receptacles(facts),
        objects=_objects(facts),
        in_receptacle=tuple(facts["inreceptacle"]),
        object_at_location=tuple(facts["objectatlocation"]),
        can_contain=frozenset(facts["cancontain"]),
        goal=goal_from_pddl(_section(problem, "goal")),
        task=grammar.task(data["grammar"]),
        wording=grammar.wording(data["grammar"]),
        in_receptacle_object=tuple(facts["inreceptacleobject"]),
        opened=tuple(facts["opened"]),
        hot=tuple(facts["ishot"]),
        clean=tuple(facts["isclean"]),
        cool=tuple(facts["iscool"]),
        toggled=tuple(facts["istoggled"]),
        sliced=tuple(facts["issliced"]),
        held=tuple(o for _, o in facts["holds"]),
        hands_full=bool(facts["holdsany"]),
        sink_types=_sink_types(data["pddl_domain"]),
        other_ids=tuple(facts["other ids"]),
        plan=tuple(data.get("walkthrough") or ()),
    )


def _load(text: str) -> dict:
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"the game is not a JSON object ({error}); give the content of a game.tw-pddl") from None
    for key in ("pddl_domain", "grammar", "pddl_problem"):
        if not isinstance(data, dict) or not isinstance(data.get(key), str):
            raise ValueError(f'the game has no text under the key "{key}"; give the content of a game.tw-pddl')
    plan = data.get("walkthrough")
    if plan is not None and not (isinstance(plan, list) and all(isinstance(command, str) for command in plan)):
        raise ValueError('the key "walkthrough" of the game must hold a list of commands, or null')
    return data


def _without_comments(text: str) -> str:
    """PDDL in lower case, less its comments."""
    return re.sub(r";[^\n]*", "", text).lower()


def _section(problem: str, name: str) -> str:
    """The text inside `(:name ...)`."""
    start = problem.find(f"(:{name}")
    if start < 0:
        raise ValueError(f'the "pddl_problem" of the game has no (:{name} ...) section')
    depth = 0
    for parenthesis in re.finditer(r"[()]", problem[start:]):
        depth += 1 if parenthesis[0] == "(" else -1
        if depth == 0:
            return problem[start + len(name) + 2 : start + parenthesis.start()]
    raise ValueError(f'the parentheses of (:{name} ...) in the "pddl_problem" of the game are not balanced')


def _facts(init: str) -> dict[str, dict]:
    """predicate -> its facts (an id, or a pair of ids) in order of appearance, each once.

    "other ids" lists the arguments of ignored facts. Explicitly false facts and numeric functions are dropped.
    """
    init = re.sub(r"\(\s*not\s*\([^()]*\)\s*\)|\(\s*=\s*\([^()]*\)[^()]*\)", "", init)
    facts = collections.defaultdict(dict)
    for inner in re.findall(r"\(([^()]*)\)", init):
        predicate, *arguments = inner.split() or [""]
        count = _ARGUMENTS.get(predicate)
        if count == len(arguments):
            facts[predicate][arguments[0] if count == 1 else tuple(arguments)] = None
        elif predicate in _IGNORED:
            facts["other ids"].update(dict.fromkeys(arguments))
        else:
            raise ValueError(f'the "pddl_problem" of the game has an unknown fact in (:init ...): ({inner.strip()})')
    return facts


def _start(at_location: dict) -> str:
    if len(at_location) != 1:
        raise ValueError(f"the game needs exactly one fact (atLocation AGENT LOCATION), it has {len(at_location)}")
    return next(iter(at_location))[1]


def _function(facts: dict, predicate: str) -> dict[str, str]:
    """The pairs of a relation in which every first argument occurs once."""
    function = dict(facts[predicate].keys())
    if len(function) < len(facts[predicate]):
        raise ValueError(f"the game has two different {predicate} facts about one id")
    return function


def _receptacles(facts: dict) -> tuple[Receptacle, ...]:
    location, rtype = _function(facts, "receptacleatlocation"), _function(facts, "receptacletype")
    ids = {**location, **rtype, **facts["openable"], **facts["opened"], **{r: "" for _, r in facts["inreceptacle"]}}
    openable = facts["openable"]
    return tuple(Receptacle(r, location.get(r, ""), rtype.get(r, ""), r in openable) for r in ids)


def _objects(facts: dict) -> tuple[Object, ...]:
    otype = _function(facts, "objecttype")
    ids = dict(otype)
    for predicate in _FLAGS + _STATES:
        ids.update(facts[predicate])
    for predicate in ("inreceptacle", "objectatlocation", "inreceptacleobject"):
        ids.update((o, None) for o, _ in facts[predicate])
    for predicate in ("inreceptacleobject", "holds"):
        ids.update((o, None) for _, o in facts[predicate])
    flags = [facts[name] for name in _FLAGS]  # in the order of the fields of Object
    return tuple(Object(o, otype.get(o, ""), *(o in flag for flag in flags)) for o in ids)


@functools.lru_cache(maxsize=8)
def _sink_types(domain: str) -> frozenset[str]:
    """Where `clean` works: newer published domains add the sink itself, the others have it commented out."""
    types = re.findall(r"\(receptacletype \?r (sink\w*)\)", _without_comments(domain))
    return frozenset(types) or frozenset({"sinkbasintype"})


_TREATMENTS = {
    "pick": (),
    "clean": ("cleanable", "isclean"),
    "heat": ("heatable", "ishot"),
    "cool": ("coolable", "iscool"),
}
_SLICED = ("sliceable", "issliced")


def goal_from_pddl(text: str) -> Goal:
    """Recognises one of the seven kinds of goal, in lower-case PDDL. ValueError if it is another.

    `exists` and `and` only introduce variables and join atoms, so the goal is the set of its atoms. A telling atom
    gives the kind; the goal is accepted if it has exactly the atoms of that kind.
    """
    atoms = _atoms(text)
    arguments = collections.defaultdict(list)
    for predicate, *rest in atoms:
        arguments[predicate].append(rest)
    if arguments["holds"]:
        reader = _look
    elif arguments["inreceptacleobject"]:
        reader = _movable
    else:
        reader = _two if arguments["!="] else _place
    try:
        goal, expected = reader(arguments)
    except (IndexError, KeyError, ValueError):
        expected = None
    if atoms != expected:
        raise ValueError(f"the goal of the game is none of the known kinds: (:goal {' '.join(text.split())})")
    return goal


def _atoms(text: str) -> set[tuple[str, ...]]:
    """The atoms of a conjunction under `exists`, an inequality as ("!=", a, b); empty if there is more in it."""
    text = re.sub(r"\bexists\s*\([^()]*\)", "and", text)
    text = re.sub(r"\(\s*not\s*\(\s*=([^()]*)\)\s*\)", r"(!=\1)", text)
    if re.sub(r"\(\s*and\b|\([^()]*\)|[\s)]", "", text):
        return set()
    return {tuple(atom.split()) for atom in re.findall(r"\(([^()]*)\)", text) if atom.strip() not in ("", "and")}


def _place(arguments: dict) -> tuple[Goal, set]:
    (o, otype), (r, rtype) = arguments["objecttype"][0], arguments["receptacletype"][0]
    kind = next((k for k in ("clean", "heat", "cool") if [o] in arguments[_TREATMENTS[k][1]]), "pick")
    sliced = bool(arguments["issliced"])
    flags = _TREATMENTS[kind] + _SLICED * sliced
    atoms = {("objecttype", o, otype), ("receptacletype", r, rtype), ("inreceptacle", o, r), *((f, o) for f in flags)}
    return Goal(kind, otype, rtype, sliced=sliced), atoms


def _two(arguments: dict) -> tuple[Goal, set]:
    ((o1, o2),), ((r, rtype),) = arguments["!="], arguments["receptacletype"]
    otype, sliced = arguments["objecttype"][0][1], bool(arguments["issliced"])
    atoms = {("!=", o1, o2), ("receptacletype", r, rtype)}
    for o in (o1, o2):
        atoms |= {("objecttype", o, otype), ("inreceptacle", o, r), *((f, o) for f in _SLICED * sliced)}
    return Goal("pick2", otype, rtype, sliced=sliced), atoms


def _look(arguments: dict) -> tuple[Goal, set]:
    types, ((agent, o),), ((lamp,),) = dict(arguments["objecttype"]), arguments["holds"], arguments["istoggled"]
    ((_, r),), ((_, l),) = arguments["inreceptacle"], arguments["receptacleatlocation"]  # noqa: E741
    sliced = bool(arguments["issliced"])
    atoms = {("objecttype", lamp, types[lamp]), ("toggleable", lamp), ("istoggled", lamp), ("inreceptacle", lamp, r)}
    atoms |= {("receptacleatlocation", r, l), ("atlocation", arguments["atlocation"][0][0], l)}
    atoms |= {("objecttype", o, types[o]), ("holds", agent, o), *((f, o) for f in _SLICED * sliced)}
    return Goal("look", types[o], types[lamp], sliced=sliced), atoms


def _movable(arguments: dict) -> tuple[Goal, set]:
    types, ((inner, outer),) = dict(arguments["objecttype"]), arguments["inreceptacleobject"]
    ((r, rtype),), sliced = arguments["receptacletype"], bool(arguments["issliced"])
    atoms = {("objecttype", inner, types[inner]), ("objecttype", outer, types[outer]), ("isreceptacleobject", outer)}
    atoms |= {("inreceptacleobject", inner, outer), ("inreceptacle", outer, r), ("receptacletype", r, rtype)}
    atoms |= {(f, inner) for f in _SLICED * sliced}
    return Goal("movable", types[inner], rtype, types[outer], sliced), atoms

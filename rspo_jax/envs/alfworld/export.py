"""Writes a `Game` in the official file format, so that the official ALFWorld engine can play it.

The PDDL problem is ours. The other two parts of a `game.tw-pddl`, the PDDL domain and the grammar, are the logic files
of the optional `alfworld` package and are read from where it is installed.
"""

import importlib.util
import json
import pathlib
from collections.abc import Iterator

from rspo_jax.envs.alfworld import game, rooms

_TASK_TYPES = {kind: name for name, kind in game.OFFICIAL_KINDS.items()}
_CLASSES = {
    name.lower(): name
    for room in rooms.ROOMS
    for name in (*room.receptacles, *room.objects, *(fixture.name for fixture in room.fixtures))
}
_UNTYPED_TASK = "UNKNOWN GOAL."
_OBJECT_FLAGS = {
    "pickupable": "pickupable",
    "cleanable": "cleanable",
    "heatable": "heatable",
    "coolable": "coolable",
    "toggleable": "toggleable",
    "sliceable": "sliceable",
    "is_receptacle": "isReceptacleObject",
}
_STATES = {
    "opened": "opened",
    "hot": "isHot",
    "clean": "isClean",
    "cool": "isCool",
    "toggled": "isToggled",
    "sliced": "isSliced",
}
_TREATED = {"clean": ("cleanable", "isClean"), "heat": ("heatable", "isHot"), "cool": ("coolable", "isCool")}


def write_game(root: str | pathlib.Path, source: game.Game, *, scene: int, trial: str) -> pathlib.Path:
    """Writes `game.tw-pddl`, `initial_state.pddl` and `traj_data.json` where the official loader looks for them.

    Returns the new folder, `root/<task type>-<object>-None-<receptacle or lamp>-<scene>/<trial>`. `root` is the folder
    of a split, such as `$ALFWORLD_DATA/json_2.1.1/train`. FileNotFoundError if the logic files are not installed.
    """
    data = traj_data(source, scene=scene, trial=trial)
    params = data["pddl_params"]
    target = params["toggle_target"] or params["parent_target"]
    name = f"{data['task_type']}-{params['object_target']}-None-{target}-{scene}"
    folder = pathlib.Path(root) / name / trial
    text = game_text(source)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "game.tw-pddl").write_text(text)
    (folder / "initial_state.pddl").write_text(json.loads(text)["pddl_problem"])
    (folder / "traj_data.json").write_text(json.dumps(data))
    return folder


def game_text(source: game.Game) -> str:
    """The text of a `game.tw-pddl`. FileNotFoundError if the logic files are not installed."""
    domain, grammar = logic_files()
    return json.dumps(
        {
            "pddl_domain": domain,
            "grammar": grammar.replace(_UNTYPED_TASK, source.task),
            "pddl_problem": problem_text(source),
            "solvable": True,
            "walkthrough": list(source.plan) or None,
        }
    )


def logic_files() -> tuple[str, str]:
    """(PDDL domain, grammar) of the installed `alfworld` package. FileNotFoundError if there is none."""
    spec = importlib.util.find_spec("alfworld")
    folders = [pathlib.Path(folder) / "data" for folder in (spec.submodule_search_locations if spec else None) or ()]
    for folder in folders:
        if (folder / "alfred.pddl").is_file() and (folder / "alfred.twl2").is_file():
            return (folder / "alfred.pddl").read_text(), (folder / "alfred.twl2").read_text()
    raise FileNotFoundError(
        "A game.tw-pddl needs the logic files alfred.pddl and alfred.twl2 of the alfworld package: install alfworld."
    )


def traj_data(source: game.Game, *, scene: int, trial: str) -> dict:
    """What a `traj_data.json` says about a game: enough for the official loader and its hand-coded expert."""
    goal = source.goal
    target = _class(goal.target)
    return {
        "task_id": trial,
        "task_type": _TASK_TYPES[goal.kind],
        "pddl_params": {
            "object_target": _class(goal.otype),
            "parent_target": "" if goal.kind == "look" else target,
            "toggle_target": target if goal.kind == "look" else "",
            "mrecep_target": _class(goal.movable),
            "object_sliced": goal.sliced,
        },
        "scene": {"scene_num": scene, "floor_plan": f"FloorPlan{scene}"},
        "turk_annotations": {"anns": [{"task_desc": source.task.removesuffix(".")}]},
    }


def problem_text(source: game.Game) -> str:
    """The PDDL problem of a game. ValueError for the two kinds of goal that no playable game has."""
    # Some parsers of PDDL want every fact once.
    facts = "\n".join(f"        ({fact})" for fact in dict.fromkeys(_facts(source)))
    objects = "\n".join(f"        {id} - {type}" for id, type in _declarations(source))
    return (
        f"(define (problem generated)\n(:domain alfred)\n(:objects\n        agent1 - agent\n{objects}\n)\n"
        f"(:init\n{facts}\n)\n(:goal {_goal(source.goal)})\n)\n"
    )


def _class(type_name: str) -> str:
    name = type_name.removesuffix("type")
    return _CLASSES.get(name, name)


def _declarations(source: game.Game) -> Iterator[tuple[str, str]]:
    goal = source.goal
    otypes = {o.otype for o in source.objects} | {o for _, o in source.can_contain} | {goal.otype, goal.movable} - {""}
    rtypes = {r.rtype for r in source.receptacles} | {r for r, _ in source.can_contain}
    (otypes if goal.kind == "look" else rtypes).add(goal.target)
    locations = {source.start, *(r.location for r in source.receptacles), *(at for _, at in source.object_at_location)}
    for type, names in (
        ("otype", otypes),
        ("rtype", rtypes),
        ("object", (o.id for o in source.objects)),
        ("receptacle", (r.id for r in source.receptacles)),
        ("location", locations),
    ):
        yield from ((name, type) for name in sorted(names))


def _facts(source: game.Game) -> Iterator[str]:
    yield f"atLocation agent1 {source.start}"
    for r in source.receptacles:
        yield f"receptacleAtLocation {r.id} {r.location}"
        yield f"receptacleType {r.id} {r.rtype}"
        if r.openable:
            yield f"openable {r.id}"
    for o in source.objects:
        yield f"objectType {o.id} {o.otype}"
        yield from (f"{predicate} {o.id}" for field, predicate in _OBJECT_FLAGS.items() if getattr(o, field))
    for field, predicate in _STATES.items():
        yield from (f"{predicate} {id}" for id in getattr(source, field))
    for id in source.held:
        yield f"holds agent1 {id}"
    if source.hands_full or (source.hands_full is None and source.held):
        yield "holdsAny agent1"
    for predicate, pairs in (
        ("canContain", sorted(source.can_contain)),
        ("inReceptacle", source.in_receptacle),
        ("inReceptacleObject", source.in_receptacle_object),
        ("objectAtLocation", source.object_at_location),
    ):
        yield from (f"{predicate} {a} {b}" for a, b in pairs)


def _goal(goal: game.Goal) -> str:
    if goal.kind == "movable" or goal.sliced:
        raise ValueError("only goals of the six playable kinds, without slicing, can be written as a problem.")
    if goal.kind == "look":
        return (
            f"(and (exists (?ot - object ?r - receptacle ?a - agent ?l - location) (and (objectType ?ot {goal.target}) "
            "(toggleable ?ot) (isToggled ?ot) (receptacleAtLocation ?r ?l) (atLocation ?a ?l) (inReceptacle ?ot ?r))) "
            f"(exists (?o - object ?a - agent) (and (objectType ?o {goal.otype}) (holds ?a ?o))))"
        )
    if goal.kind == "pick2":
        first, second = (_placed(f"?o{i}", goal) for i in (1, 2))
        return (
            f"(and (exists (?r - receptacle) (exists (?o1 - object) (and {first} "
            f"(exists (?o2 - object) (and (not (= ?o1 ?o2)) {second}))))))"
        )
    treated = "".join(f"({predicate} ?o) " for predicate in _TREATED.get(goal.kind, ()))
    return f"(and (exists (?r - receptacle) (exists (?o - object) (and {treated}{_placed('?o', goal)}))))"


def _placed(variable: str, goal: game.Goal) -> str:
    return f"(objectType {variable} {goal.otype}) (receptacleType ?r {goal.target}) (inReceptacle {variable} ?r)"

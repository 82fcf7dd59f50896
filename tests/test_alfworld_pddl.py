"""Reading the official file format, with a small game written for the purpose."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rspo_jax.envs.alfworld import Game, Goal, Object, Receptacle
from rspo_jax.envs.alfworld.export import problem_text
from rspo_jax.envs.alfworld.game import NEW, OLD
from rspo_jax.envs.alfworld.pddl import goal_from_pddl

GRAMMAR = r"""
grammar :: '''{
  "task": [ { "rhs": "Your task is to: put some \"pen\" on desk." } ],
  "GotoLocation.feedback": [ { "rhs": "You arrive at {r.name}. #examineReceptacle.feedback#" } ],
  "PutObject.feedback": [ { "rhs": "You move the {o.name} to the {r.name}." } ]
}''';
action PutObject { template :: "move {o} to {r}"; feedback :: "#PutObject.feedback#"; }
action help {
    template :: "help";
    feedback :: "
Commands:
  look
"; }
"""
OLD_GRAMMAR = (
    GRAMMAR[: GRAMMAR.index("action help")]
    .replace("{r.name}. #", "{lend.name}. #")
    .replace("move {o} to {r}", "put {o} in/on {r}")
    .replace("You move the {o.name} to the {r.name}.", "You put the {o.name} in/on the {r.name}.")
)
RULE_GRAMMAR = (
    GRAMMAR[: GRAMMAR.index('    feedback :: "\nCommands')]
    + '    feedback :: "#help.feedback#";\n grammar :: """'
    + '{ "help.feedback": [ {"rhs": "\\nCommands:\\n  look\\n"} ] }"""; }'
)
PROBLEM = """
(define (problem Small) (:domain alfred) ; a comment with (parentheses
(:objects agent1 - agent Pen - object)
(:init
  (atLocation agent1 Loc_bar_0) (receptacleAtLocation Desk_bar_1 Loc_bar_1) (RECEPTACLETYPE Desk_bar_1 DeskType)
  (receptacleAtLocation Drawer_bar_1 loc_bar_1) (receptacleType Drawer_bar_1 DrawerType) (openable Drawer_bar_1)
  (opened Drawer_bar_1) (objectType Pen_bar_1 PenType) (pickupable pen_bar_1)
  (inReceptacle Pen_bar_1 Drawer_bar_1) (inReceptacle Pen_bar_1 drawer_bar_1) (objectAtLocation Pen_bar_1 loc_bar_1)
  (objectType Mug_bar_1 MugType) (isReceptacleObject Mug_bar_1) (inReceptacleObject Pen_bar_1 Mug_bar_1)
  (holds agent1 Mug_bar_1) (isHot Mug_bar_1) (isClean Mug_bar_1) (isCool Mug_bar_1) (isToggled Mug_bar_1)
  (isSliced Mug_bar_1) (canContain DeskType PenType) (checked Vase_bar_7)
  (= (total-cost) 0) (= (distance loc_bar_0 loc_bar_1) 3) (not (inReceptacle Pen_bar_1 Desk_bar_1))
)
(:goal (and (exists (?r - receptacle) (exists (?o - object)
  (and (inReceptacle ?o ?r) (objectType ?o PenType) (receptacleType ?r DeskType)))))))
"""


def game_text(problem=PROBLEM, grammar=GRAMMAR, domain="(define (domain alfred))", **others):
    return json.dumps({"pddl_domain": domain, "grammar": grammar, "pddl_problem": problem, "solvable": True, **others})


def test_a_game_file_becomes_a_game_with_each_fact_once_and_in_lower_case():
    game = Game.from_text(game_text(walkthrough=["go to drawer 1"]))
    assert game.start == "loc_bar_0"
    assert set(game.receptacles) == {
        Receptacle("desk_bar_1", "loc_bar_1", "desktype"),
        Receptacle("drawer_bar_1", "loc_bar_1", "drawertype", openable=True),
    }
    assert set(game.objects) == {
        Object("pen_bar_1", "pentype", pickupable=True),
        Object("mug_bar_1", "mugtype", is_receptacle=True),
    }
    assert game.in_receptacle == (("pen_bar_1", "drawer_bar_1"),)
    assert game.object_at_location == (("pen_bar_1", "loc_bar_1"),)
    assert game.in_receptacle_object == (("pen_bar_1", "mug_bar_1"),)
    assert game.can_contain == {("desktype", "pentype")}
    assert game.opened == ("drawer_bar_1",)
    assert game.held == game.hot == game.clean == game.cool == game.toggled == game.sliced == ("mug_bar_1",)
    assert game.hands_full is False
    assert game.goal == Goal("pick", "pentype", "desktype")
    assert game.task == 'put some "pen" on desk.'
    assert game.plan == ("go to drawer 1",)
    assert "vase_bar_7" in game.names


def test_wording_is_read_from_the_grammar():
    new = Game.from_text(game_text()).wording
    assert (new.move, new.moved, new.arrives_at_receptacle) == (NEW.move, NEW.moved, True)
    assert new.help == "Commands:\n  look\n"
    assert Game.from_text(game_text(grammar=RULE_GRAMMAR)).wording == new
    assert Game.from_text(game_text(grammar=OLD_GRAMMAR)).wording == OLD


def test_where_clean_works_is_read_from_the_domain():
    rule = "(or\n  {}(receptacleType ?r SinkType)\n  (receptacleType ?r SinkBasinType))"
    assert Game.from_text(game_text(domain=rule.format(";"))).sink_types == {"sinkbasintype"}
    for domain in (rule.format(""), rule.format("").replace("\n", " ")):
        assert Game.from_text(game_text(domain=domain)).sink_types == {"sinktype", "sinkbasintype"}


def test_an_exported_problem_is_read_back(tmp_path):
    game = Game.from_text(game_text())
    again = Game.from_text(game_text(problem=problem_text(game)))
    for field in ("start", "can_contain", "goal", "in_receptacle", "in_receptacle_object", "opened", "hot", "held"):
        assert getattr(again, field) == getattr(game, field)
    assert set(again.receptacles) == set(game.receptacles) and set(again.objects) == set(game.objects)


PLACE = "(objecttype ?o pentype) (receptacletype ?r desktype) (inreceptacle ?o ?r)"
GOALS = {
    "pick": PLACE,
    "clean": f"(cleanable ?o) (isclean ?o) {PLACE}",
    "heat": f"(heatable ?o) (ishot ?o) {PLACE}",
    "cool": f"(coolable ?o) (iscool ?o) {PLACE}",
    "pick2": "(objecttype ?a pentype) (objecttype ?b pentype) (receptacletype ?r desktype) (inreceptacle ?a ?r) "
    "(inreceptacle ?b ?r) (not (= ?a ?b))",
    "look": "(objecttype ?x desktype) (toggleable ?x) (istoggled ?x) (inreceptacle ?x ?r) (receptacleatlocation ?r ?l) "
    "(atlocation ?a ?l) (objecttype ?o pentype) (holds ?a ?o)",
    "movable": "(objecttype ?o pentype) (objecttype ?m mugtype) (isreceptacleobject ?m) (inreceptacleobject ?o ?m) "
    "(inreceptacle ?m ?r) (receptacletype ?r desktype)",
}


@pytest.mark.parametrize("kind", GOALS)
@given(rng=st.randoms())
def test_goals_are_recognised_in_any_order_and_nesting(kind, rng):
    atoms = GOALS[kind].replace(") (", ")|(").split("|")
    rng.shuffle(atoms)
    cut = rng.randrange(len(atoms))
    inner = f"(exists (?r - receptacle) (exists (?o ?m - object ?a - agent) (and {' '.join(atoms[cut:])})))"
    expected = Goal(kind, "pentype", "desktype", "mugtype" if kind == "movable" else "")
    assert goal_from_pddl(f"(and {' '.join(atoms[:cut])}\n {inner})") == expected


def test_a_sliced_goal_is_recognised():
    sliced = f"(and (sliceable ?o) (issliced ?o) {GOALS['heat']})"
    assert goal_from_pddl(sliced) == Goal("heat", "pentype", "desktype", sliced=True)


@pytest.mark.parametrize(
    "goal",
    [
        "",
        "(and)",
        "(and (isclean ?o))",
        f"(and (ishot ?o) {PLACE})",
        f"(and (opened ?r) {PLACE})",
        f"(or {PLACE})",
        f"(and (forall (?r - receptacle) (not (opened ?r))) {PLACE})",
        f"(and {GOALS['heat']} (cleanable ?o) (isclean ?o))",
        GOALS["pick2"].replace("?b pentype", "?b mugtype"),
        GOALS["look"].replace("(istoggled ?x)", ""),
    ],
)
def test_other_goals_are_refused(goal):
    with pytest.raises(ValueError, match="goal of the game is none of the known kinds"):
        goal_from_pddl(goal)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("go to desk", "not a JSON object"),
        ("[]", 'no text under the key "pddl_domain"'),
        (json.dumps({"pddl_domain": "", "grammar": "", "pddl_problem": 3}), 'no text under the key "pddl_problem"'),
        (game_text(walkthrough="look"), 'the key "walkthrough"'),
        (game_text(walkthrough=[1]), 'the key "walkthrough"'),
        (game_text(problem="(define)"), r"no \(:init ...\) section"),
        (game_text(problem=PROBLEM.partition("(= (total")[0]), "not balanced"),
        (game_text(problem=PROBLEM.replace("(openable Drawer_bar_1)", "(openable)")), r"unknown fact .* \(openable\)"),
        (game_text(problem=PROBLEM.replace("canContain", "mayContain")), "unknown fact .*maycontain"),
        (game_text(problem=PROBLEM.replace("(atLocation agent1 Loc_bar_0)", "")), "exactly one fact .*it has 0"),
        (game_text(problem=PROBLEM.replace("(checked", "(objectType Pen_bar_1 MugType) (checked")), "two different"),
        (game_text(problem=PROBLEM.partition("(:goal")[0] + ")"), r"no \(:goal ...\) section"),
        (game_text(grammar="grammar"), 'rule "task"'),
        (game_text(grammar=GRAMMAR.replace("PutObject.feedback", "Other.feedback")), "is this an ALFWorld game"),
        (game_text(grammar=GRAMMAR.replace("move {o} to {r}", "drop {o}")), 'unknown text .*"drop {o}"'),
    ],
)
def test_a_malformed_game_is_one_clear_error(text, message):
    with pytest.raises(ValueError, match=message) as error:
        Game.from_text(text)
    assert "\n" not in str(error.value)

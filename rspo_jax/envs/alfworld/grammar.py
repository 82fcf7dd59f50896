"""The few parts of a game file's grammar that differ between games: the task sentence and the wording.

A `game.tw-pddl` carries its own grammar (TextWorld's twl2 format), so the texts belong to the file and not to the
installed package. Everything else in it is the same in all published versions and is built into the engine.
"""

from __future__ import annotations

import json
import re

from rspo_jax.envs.alfworld.game import Wording

TASK_PREFIX = "Your task is to: "

_STRING = r'("(?:[^"\\]|\\.)*")'


def task(grammar: str) -> str:
    """The task sentence, e.g. "put a clean apple in fridge." ValueError if the grammar has none."""
    sentence = _rule(grammar, "task")
    if sentence is None or not sentence.startswith(TASK_PREFIX):
        raise ValueError(f'the key "grammar" of the game needs a rule "task" whose text starts with "{TASK_PREFIX}"')
    return sentence[len(TASK_PREFIX) :]


def wording(grammar: str) -> Wording:
    """The wording of the grammar. ValueError if it is not an ALFWorld grammar."""
    template = re.search(r'action\s+PutObject\s*\{\s*template\s*::\s*"([^"]*)"', grammar)
    moved, arrives = _rule(grammar, "PutObject.feedback"), _rule(grammar, "GotoLocation.feedback")
    if not template or moved is None or arrives is None:
        raise ValueError(
            'the key "grammar" of the game needs "action PutObject" and the rules "PutObject.feedback" and '
            '"GotoLocation.feedback"; is this an ALFWorld game?'
        )
    return Wording(
        move=_slots(template[1]),
        moved=_slots(moved),
        arrives_at_receptacle="{lend.name}" not in arrives,
        help=_help(grammar),
    )


def _slots(text: str) -> str:
    """`{o.name}` and `{r.name}` become `{o}` and `{r}`; both have to occur, and no other slot."""
    text = text.replace(".name}", "}")
    if sorted(re.findall(r"\{.*?\}", text)) != ["{o}", "{r}"]:
        raise ValueError(f'the grammar of the game has an unknown text for putting an object down: "{text}"')
    return text


def _help(grammar: str) -> str | None:
    """The answer to `help`, given either as a literal with line breaks or through a rule; None without the action."""
    action = re.search(r'action\s+help\s*\{\s*template\s*::\s*"[^"]*"\s*;\s*feedback\s*::\s*"([^"]*)"', grammar)
    if not action:
        return None
    text = action[1]
    if text == "#help.feedback#":
        text = _rule(grammar, "help.feedback") or ""
    # The engine's text generator skips blanks before the first symbol of a text.
    return text.lstrip()


def _rule(grammar: str, name: str) -> str | None:
    """The text of the first production of a rule."""
    match = re.search(rf'"{re.escape(name)}"\s*:\s*\[\s*\{{\s*"rhs"\s*:\s*{_STRING}', grammar)
    return match and json.loads(match[1], strict=False)

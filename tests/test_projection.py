"""The projection rule of verl-agent: tags, tails and validity."""

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recordings import recordings

from rspo_jax.envs.projection import project_action

TEXT = st.text(max_size=60)


def test_every_recorded_case_gives_the_recorded_action_and_validity():
    with gzip.open(recordings("webshop") / "verl" / "projection.jsonl.gz", "rt", encoding="utf-8") as lines:
        cases = [json.loads(line) for line in lines]
    assert cases
    for case in cases:
        assert project_action(case["response"]) == (case["action"], bool(case["valid"])), case


@pytest.mark.parametrize(
    "response, action, valid",
    [
        ("<think>a</think><action> Click[Buy Now]\n</action>", "click[buy now]", True),
        ("<think>a</think><action>one</action><action>two</action>", "one", True),
        ("<action>look</action>", "look", False),  # no thought
        ("<think>a</think></action>look<action>", "", True),  # tags in the wrong order
        ("<THINK>a</THINK><ACTION>LOOK</ACTION>", "look", False),  # thought tags are case-sensitive, action tags not
        ("<think>\u4e00</think><action>look</action>", "look", False),
        ("<think>\u9fff</think><action>look</action>", "look", False),
        ("<think>\u4dff\ua000</think><action>look</action>", "look", True),  # just outside the range
        ("", "", False),
    ],
)
def test_hand_worked_cases(response, action, valid):
    assert project_action(response) == (action, valid)


@pytest.mark.parametrize("tail", [20, 30])
def test_an_untagged_response_acts_by_its_lower_cased_tail(tail):
    response = "I Would Rather Talk About Something Entirely Different"
    assert project_action(response, tail=tail) == (response.lower()[-tail:], False)


@given(thought=TEXT, action=TEXT)
def test_a_well_formed_response_gives_its_action(thought, action):
    # A tag or an ideograph inside the random text would change the rule's answer.
    if "<" in thought + action or any("\u4e00" <= c <= "\u9fff" for c in thought + action):
        return
    response = f"<think>{thought}</think><action>{action}</action>"
    assert project_action(response) == (action.lower().strip(), True)


@given(response=TEXT, tail=st.integers(1, 40))
def test_the_rule_is_total_and_its_action_lower_case(response, tail):
    action, valid = project_action(response, tail=tail)
    assert action == action.lower() or action.lower() not in response.lower()
    assert not valid or "<think>" in response


def test_a_tail_of_zero_is_refused():
    with pytest.raises(ValueError, match="tail = 0"):
        project_action("x", tail=0)

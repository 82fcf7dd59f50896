"""Prompts: slots and rules of the `verl` format, compactness of the `plain` format."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rspo_jax.envs import prompts

TASK = "i need quick dry sneakers with color navy, and price lower than 40.00 dollars"
SEARCH = {"task": TASK, "has_search_bar": True, "clickables": ["search"]}
RESULTS = {"task": TASK, "has_search_bar": False, "clickables": ["back to search", "< prev", "next >", "b0aaaaaaa1"]}
ITEM = {
    "task": TASK,
    "has_search_bar": False,
    "clickables": ["back to search", "< prev", "description", "features", "reviews", "buy now", "navy", "red", "small"],
}
SUB = {"task": TASK, "has_search_bar": False, "clickables": ["back to search", "< prev"]}


def page(*segments):
    return " [SEP] ".join(["Instruction:", TASK, *segments])


SEARCH_PAGE = " [SEP] ".join(["WebShop", "Instruction:", TASK, "Search"])
RESULTS_PAGE = page(
    *("Back to Search", "Page 2 (Total results: 50)", "< Prev", "Next >"),
    *("B0AAAAAAA1", "Quick Dry Sneakers", "$12.5", "B0AAAAAAA2", "Slip Resistant Sneakers", "$8.99 to $14.99"),
)
ITEM_PAGE = page(
    *("Back to Search", "< Prev", "color", "navy", "red", "size", "small", "Quick Dry Sneakers", "Price: $12.5"),
    *("Rating: N.A.", "Description", "Features", "Reviews", "Buy Now"),
)
SUB_PAGE = page("Back to Search", "< Prev", "quick dry sneakers", "soft lined design")

HOUSE_TASK = "put a clean apple in fridge."
HOUSE = {"task": HOUSE_TASK, "admissible_actions": ["go to desk 1", "help", "look"]}
HOUSE_PAGE = (
    "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking quickly around you, you see a "
    f"desk 1.\n\nYour task is to: {HOUSE_TASK}"
)


@pytest.fixture
def plain():
    return prompts.get("plain", "webshop")


@pytest.fixture
def verl():
    return prompts.get("verl", "webshop")


def test_plain_shows_the_task_once_and_pages_without_constant_labels(plain):
    assert plain.first(SEARCH_PAGE, SEARCH) == f"{TASK}\nsearch"
    assert plain.next(RESULTS_PAGE, RESULTS, SEARCH_PAGE) == (
        "page 2\nquick dry sneakers $12.5 b0aaaaaaa1\nslip resistant sneakers $8.99 to $14.99 b0aaaaaaa2"
    )
    assert plain.next(ITEM_PAGE, ITEM, RESULTS_PAGE) == "quick dry sneakers $12.5\ncolor: navy, red\nsize: small"
    assert plain.next(SUB_PAGE, SUB, ITEM_PAGE) == "quick dry sneakers\nsoft lined design"
    assert plain.next(page("Back to Search", "< Prev"), SUB, ITEM_PAGE) == "nothing here"


def test_plain_says_in_one_short_line_that_a_page_did_not_change(plain):
    assert plain.next(ITEM_PAGE, ITEM, ITEM_PAGE) == prompts.SAME_PAGE
    assert plain.next(page("Search"), SEARCH, SEARCH_PAGE) == "search"


def test_plain_reads_an_empty_results_page_and_an_item_without_options(plain):
    empty = page("Back to Search", "Page 1 (Total results: 0)", "Next >")
    assert plain.next(empty, RESULTS, SEARCH_PAGE) == "page 1\nnothing here"
    bare = page(*("Back to Search", "< Prev", "Quick Dry Sneakers", "Price: $12.5", "Rating: N.A."), "Buy Now")
    assert plain.next(bare, ITEM, RESULTS_PAGE) == "quick dry sneakers $12.5"


def test_plain_shows_rich_text_and_unknown_pages_in_lower_case(plain):
    rich = f"WebShop\nInstruction: \n{TASK}\n[button] Search [button_]\n"
    assert plain.first(rich, SEARCH) == f"{TASK}\n[button] search [button_]"
    assert plain.next("Thank you", {"task": TASK, "clickables": []}, ITEM_PAGE) == "thank you"


@pytest.mark.parametrize("response, expected", [(" search[x]\n", ("search[x]", True)), (" \n", ("", False))])
def test_plain_takes_the_response_as_the_action(plain, response, expected):
    assert plain.parse(response) == expected


def test_plain_drops_the_banner_of_a_household_and_keeps_its_task():
    text = prompts.get("plain", "alfworld").first(HOUSE_PAGE, HOUSE)
    assert text == text.lower() and "welcome" not in text
    assert text.startswith("you are in the middle") and text.endswith(f"your task is to: {HOUSE_TASK}")


def test_verl_first_prompt_fills_task_page_and_actions(verl):
    text = verl.first(SEARCH_PAGE, SEARCH)
    assert f"Your task is to: {TASK}\n" in text
    assert "current observation is: 'Search'\n" in text
    assert "[\n'search[<your query>]',\n'click[search]',\n]" in text  # listed although it does nothing
    assert text.rstrip().endswith("inside <action> </action> tags.") and "<think> </think>" in text
    assert verl.window(SEARCH_PAGE, SEARCH, TASK, [], 0) == text


def test_verl_quotes_the_segments_after_the_task(verl):
    text = verl.window(SUB_PAGE, SUB, TASK, [(SEARCH_PAGE, "search[x]")], 1)
    assert "is: 'Back to Search' [SEP] '< Prev' [SEP] 'quick dry sneakers' [SEP] 'soft lined design'\n" in text
    assert "search[<your query>]" not in text and "'click[< prev]'," in text
    # A page without the task (after the purchase) is shown as it is.
    assert "is: Thank you!\n" in verl.window("Thank you!", SUB, TASK, [(ITEM_PAGE, "click[buy now]")], 1)


def test_verl_history_holds_the_turns_given_invalid_ones_too(verl):
    history = [(RESULTS_PAGE, "hm, what shall i do"), (SUB_PAGE, "click[< prev]")]
    text = verl.window(ITEM_PAGE, ITEM, TASK, history, 3)
    assert "taken 3 step(s)" in text and "latest 2 observation(s)" in text and "This is step 4." in text
    assert "[Observation 2: 'Back to Search' [SEP]" not in text  # quoted once more, as one observation
    assert "[Observation 2: ''Back to Search' [SEP] 'Page 2 (Total results: 50)'" in text
    assert ", Action 2: 'hm, what shall i do']\n[Observation 3: ''Back to Search'" in text
    assert "Observation 1:" not in text


def test_verl_history_observation_may_be_formatted_already(verl):
    formatted = "'Search'"
    assert verl.window(ITEM_PAGE, ITEM, TASK, [(formatted, "search[x]")], 1) == verl.window(
        ITEM_PAGE, ITEM, TASK, [(SEARCH_PAGE, "search[x]")], 1
    )


@given(length=st.integers(0, 14_000))
def test_verl_drops_the_history_from_a_webshop_prompt_over_13000_characters(length):
    fmt = prompts.get("verl", "webshop")
    text = fmt.window(ITEM_PAGE, ITEM, TASK, [("x" * length, "click[next >]")], 1)
    without = fmt.window(ITEM_PAGE, ITEM, TASK, [], 0)
    overhead = len(fmt.window(ITEM_PAGE, ITEM, TASK, [("", "click[next >]")], 1))
    assert (text == without) == (overhead + length > 13_000)
    assert len(text) <= 13_000


def test_verl_history_of_other_environments_is_never_dropped():
    text = prompts.get("verl", "alfworld").window("here", HOUSE, HOUSE_TASK, [("x" * 20_000, "look")], 1)
    assert "x" * 20_000 in text


def test_verl_household_prompts():
    fmt = prompts.get("verl", "alfworld")
    first = fmt.first(HOUSE_PAGE, HOUSE)
    assert f"observation is: {HOUSE_PAGE}\n" in first and first.count(HOUSE_TASK) == 1
    assert "'go to desk 1'\n 'look'" in first and "help" not in first
    later = fmt.window("You arrive at desk 1.", HOUSE, HOUSE_TASK, [(HOUSE_PAGE, "go to desk 1")], 1)
    assert f"Your task is to: {HOUSE_TASK}\n" in later and "This is step 2." in later
    assert f"[Observation 1: '{HOUSE_PAGE}', Action 1: 'go to desk 1']" in later
    # The whole opening text works as the task, too.
    assert fmt.window("You arrive at desk 1.", HOUSE, HOUSE_PAGE, [(HOUSE_PAGE, "go to desk 1")], 1) == later


@pytest.mark.parametrize("kind, tail", [("webshop", 20), ("alfworld", 30), ("generic", 30)])
def test_verl_parses_with_the_tail_of_the_environment(kind, tail):
    response = "no tag at all in this rather long response of an agent"
    assert prompts.get("verl", kind).parse(response) == (response[-tail:], False)


def test_generic_prompts_show_an_observation_that_is_the_task_once():
    info = {"task": "Which Digit?"}
    assert prompts.get("plain", "generic").first("Which Digit?", info) == "which digit?"
    assert prompts.get("plain", "generic").first("A {Room}.", info) == "which digit?\na {room}."
    text = prompts.get("verl", "generic").first("A {Room}.", info)
    assert "Your task is to: Which Digit?\n" in text and "is: A {Room}.\n" in text and "any text" in text


@given(obs=st.text(max_size=80), kind=st.sampled_from(prompts.KINDS))
def test_plain_is_lower_case_and_never_empty_for_a_page(obs, kind):
    text = prompts.get("plain", kind).first(obs, {"task": TASK, "clickables": [], "has_search_bar": False})
    assert text == text.lower() or "İ" in obs


@pytest.mark.parametrize("name, kind", [("chatty", "webshop"), ("plain", "chess")])
def test_an_unknown_format_or_kind_names_the_known_ones(name, kind):
    with pytest.raises(ValueError, match="choose one of"):
        prompts.get(name, kind)

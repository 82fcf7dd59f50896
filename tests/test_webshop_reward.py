"""The reward of a purchase and the fuzzy comparison under it."""

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recordings import recordings
from webshop_shop import ITEMS, goal_number, shop

from rspo_jax.envs.webshop import WebShopEnv, nouns, reward
from rspo_jax.envs.webshop.fuzzy import COLORS, matches, normalize_color, token_set_ratio
from rspo_jax.envs.webshop.reward import exact_options

TEXTS = st.text("ab é7-", max_size=12) | st.tuples(st.sampled_from(["color", "size"]), st.text("abc ", max_size=8))


@pytest.mark.parametrize(
    ("a", "b", "score"),
    [
        ("plug play", "plug xplay", 95),
        ("long sleeve", "Sleeve, LONG!", 100),
        ("8", ("size", "8 wide"), 100),
        ("slim fit", "fit", 100),
        ("light blue", ("color", "light blue"), 100),
        ("é", "e", 0),
        ("", "tee", 0),
        ("abc", "abd", 67),
        ("snake_case", "snake case", 50),
    ],
)
def test_token_set_ratio(a, b, score):
    assert token_set_ratio(a, b) == score


@given(TEXTS, TEXTS)
def test_matches_is_the_ratio_above_85(a, b):
    assert matches(a, b) == (token_set_ratio(a, b) > 85)


@given(st.text("ab c", max_size=10), st.text("ab c", max_size=10))
def test_ratio_ignores_order_and_repetition_of_words(a, b):
    assert token_set_ratio(a, b) == token_set_ratio(" ".join(reversed(a.split())) + f" {a}", b)


def test_colors():
    assert len(COLORS) == len(set(COLORS)) == 102
    assert list(COLORS) == sorted(COLORS)


@pytest.mark.parametrize(
    ("value", "color"),
    [
        ("standard", "tan"), ("shredded", "red"), ("dark blue", "blue"), ("off", "off"), ("beige | ivory", "beige"),
        (("color", "red"), "red"), (("color", "dark red"), ("color", "dark red")), (("wine", "x"), "wine"),
    ],
)  # fmt: skip
def test_normalize_color_takes_the_first_color_word_inside(value, color):
    assert normalize_color(value) == color


def _buy(catalogue, goal: int, asin: str, **options: str) -> float:
    return catalogue.purchase(goal, asin, options)[0]


def test_parts_of_the_reward_add_up():
    catalogue = shop()
    goal = goal_number(catalogue, "B000000001", color="navy | white", size="8")
    score, info = catalogue.purchase(goal, "B000000001", {"size": "8"})
    # Two attributes, one of two options, the price: 4 of 5 parts.
    assert score == 4 / 5
    assert info == {
        "r_type": 1.0, "query_match": True, "category_match": True, "title_score": 1.0, "r_att": 1.0, "w_att": 0.4,
        "r_option": 0.5, "w_option": 0.4, "r_price": True, "w_price": 0.2,
    }  # fmt: skip


def test_a_dearer_product_loses_the_price_part():
    product, goal = dict(shop().products["B000000001"]), shop().goals[goal_number(shop(), "B000000002")]
    cheap, _ = reward(product, goal, goal["price_upper"], {"size": "regular"})
    dear, info = reward(product, goal, goal["price_upper"] + 0.01, {"size": "regular"})
    assert (cheap, dear, info["r_price"]) == (1.0, 2 / 3, False)


def test_a_subset_of_an_option_is_enough_in_synthetic_goals():
    catalogue = shop()
    goal = goal_number(catalogue, "B000000001", color="navy | white", size="8 wide")
    assert _buy(catalogue, goal, "B000000001", color="navy | white", size="8") == 1.0


def test_attributes_also_count_in_the_texts_but_not_in_other_case():
    product = shop().products["B000000001"]
    goal = shop().goals[0] | {"attributes": ["cotton", "Cotton"], "goal_options": []}
    assert reward(product, goal, 0.0, {})[1]["r_att"] == 0.5


@pytest.mark.parametrize(
    ("name", "query", "category", "title_score", "r_type"),
    [
        ("tee", "x", "x", 1 / 3, 1.0),
        ("tee", "men's shirts", "x", 1 / 3, 1.0),
        ("mug", "men's shirts", "Clothing › Men", 0.0, 0.0),
        ("a b c d tee", "x", "x", 1 / 3, 1.0),
    ],
)
def test_kind_of_product_by_title(name, query, category, title_score, r_type):
    catalogue = shop()
    goal = catalogue.goals[goal_number(catalogue, "B000000001")]
    product = catalogue.products["B000000001"] | {"name": name, "query": query, "product_category": category}
    info = reward(product, goal, 0.0, {})[1]
    assert (info["title_score"], info["r_type"]) == (title_score, r_type)


@pytest.mark.parametrize(
    ("common", "total", "query", "expected"),
    [(1, 11, "same", 0.1), (2, 12, "other", 0.5), (1, 5, "other", 0.5), (2, 9, "other", 1.0)],
)
def test_kind_of_product_by_share_of_nouns(common, total, query, expected):
    catalogue = shop()
    goal = catalogue.goals[0] | {
        "name": " ".join(f"w{number}x" for number in range(total)),
        "query": "same",
        "product_category": "",
    }
    product = catalogue.products["B000000006"] | {
        "name": " ".join(f"w{number}x" for number in range(common)), "query": query, "product_category": "",
    }  # fmt: skip
    assert reward(product, goal, 0.0, {})[1]["r_type"] == expected


def test_equal_category_parts_count_once():
    catalogue = shop()
    goal = catalogue.goals[0] | {"product_category": "Home › Home › Lamps"}
    product = catalogue.products["B000000006"] | {"product_category": "Home › Home › Mugs"}
    assert not reward(product, goal, 0.0, {})[1]["category_match"]


def test_official_scores_miss_a_value_with_a_color_inside_and_fixed_ones_do_not():
    for compat, worth in (("official", 4 / 5), ("fixed", 1.0)):
        catalogue = shop(compat=compat)
        goal = goal_number(catalogue, "B000000001", color="rectangular", size="8")
        assert _buy(catalogue, goal, *catalogue.solution(goal)[:1], color="rectangular", size="8") == worth


@pytest.mark.parametrize("human_goals", [False, True])
def test_every_goal_can_be_won_in_fixed_mode(human_goals):
    catalogue = shop(compat="fixed", human_goals=human_goals)
    for goal in range(len(catalogue.goals)):
        asin, options = catalogue.solution(goal)
        assert _buy(catalogue, goal, asin, **options) == 1.0
        assert _buy(catalogue, goal, "B000000006") < 1.0


def test_options_of_a_written_goal_are_looked_for_among_the_values():
    catalogue = shop(human_goals=True)
    product, goal = catalogue.products["B000000001"], {"goal_options": ["8 wide", "navy | white", "silk"]}
    assert exact_options(product, goal) == {"color": "navy | white", "size": "8 wide"}


def test_nouns_by_rule():
    assert nouns.rule("Women's 2-Pack Tee for the Gym, 12 x 4K (Red)") == (
        "women",
        "pack",
        "tee",
        "gym",
        "x",
        "4k",
        "red",
    )
    assert nouns.rule("") == ()


def test_nouns_from_a_table_and_beyond_it(tmp_path):
    path = tmp_path / "nouns.jsonl"
    path.write_text(json.dumps({"title": "Acme Cotton Tee", "nouns": ["tee"]}) + "\n")
    table = nouns.Nouns.load(path)
    assert table("Acme Cotton Tee") == ("tee",)
    assert table("Plain Mug") == nouns.rule("Plain Mug")


def test_recorded_comparisons():
    folder = recordings("webshop") / "invented"
    with gzip.open(folder / "fuzz.jsonl.gz", "rt", encoding="utf-8") as file:
        for row in map(json.loads, file):
            a, b = (tuple(text) if isinstance(text, list) else text for text in (row["a"], row["b"]))
            assert token_set_ratio(a, b) == row["token_set_ratio"], row
            assert matches(a, b) == (row["token_set_ratio"] > 85), row
    with gzip.open(folder / "normalize_color.jsonl.gz", "rt", encoding="utf-8") as file:
        for row in map(json.loads, file):
            assert normalize_color(row["s"]) == row["out"], row
    assert list(COLORS) == (folder.parent / "colors.txt").read_text().split()


def test_recorded_rewards():
    folder = recordings("webshop") / "invented"
    env = WebShopEnv.from_files(
        folder / "items_shuffle.json", folder / "items_ins_v2.json", folder / "items_human_ins.json",
        human_goals=True, seed=11, nouns=folder / "nouns.jsonl.gz",
    )  # fmt: skip
    with gzip.open(folder / "rewards.jsonl.gz", "rt", encoding="utf-8") as file:
        for row in map(json.loads, file):
            got = reward(env.products[row["product_asin"]], row["goal"], row["price"], row["options"])
            assert got == (row["reward"], row["info"]), row
    with gzip.open(folder / "perfect.jsonl.gz", "rt", encoding="utf-8") as file:
        for row in map(json.loads, file):
            got = env.catalogue.purchase(row["goal_idx"], *env.catalogue.solution(row["goal_idx"]))
            assert got == (row["reward"], row["info"]), row


def test_the_price_range_of_the_items_is_used():
    assert any(" - " in item["pricing"] for item in ITEMS)
    low, high = shop().products["B000000002"]["pricing"]
    assert low <= shop().product_prices["B000000002"] <= high

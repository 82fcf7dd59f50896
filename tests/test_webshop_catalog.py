"""Products, prices and goals from the data files, and what is said about bad files."""

import collections
import gzip
import json
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recordings import recordings
from webshop_shop import ATTRIBUTES, INSTRUCTIONS, ITEMS, item, shop

from rspo_jax.envs.webshop import Catalogue, files
from rspo_jax.envs.webshop.goals import cumulative_weights, draw_goal
from rspo_jax.envs.webshop.products import parse_products, search_text


def _parse(*items):
    return list(parse_products(items, {}, nouns=None))


def test_unusable_and_repeated_ids_are_skipped():
    assert list(shop().products) == [f"B00000000{number}" for number in range(1, 7)]
    assert shop().products["B000000001"]["Title"] == "Acme Cotton Tee"


@pytest.mark.parametrize(
    ("pricing", "numbers", "tag"),
    [
        (None, [100.0], "$100.0"),
        ("", [100.0], "$100.0"),
        ("$10.99", [10.99], "$10.99"),
        ("$1,249.00", [1249.0], "$1249.0"),
        ("$30.0 - $22.0", [30.0, 22.0], "$30.0 to $22.0"),
        ("$1$2$3", [1.0, 2.0], "$1.0 to $2.0"),
        ("from $5 each", [5.0], "$5.0"),
    ],
)
def test_prices(pricing, numbers, tag):
    product = _parse(item("B1", "Tee", pricing=pricing))[0]
    assert (product["pricing"], product["Price"]) == (numbers, tag)


def test_options_are_lower_case_with_spaced_slashes_and_the_later_of_equal_names():
    values = {
        "COLOR": [{"value": " Navy/White "}],
        "Size": None,
        "Fit": [{"value": "a / b"}],
        "color": [{"value": "Red"}],
    }
    product = _parse(item("B1", "Tee", customization_options=values))[0]
    assert product["options"] == {"color": ["red"], "fit": ["a  |  b"]}


def test_defaults_of_a_product():
    product = _parse(item("B1", "Tee", small_description="one", query=" Men's TEES "))[0]
    assert (product["BulletPoints"], product["Attributes"], product["query"]) == (["one"], ["DUMMY_ATTR"], "men's tees")


def test_text_that_is_searched():
    product = shop().products["B000000001"]
    assert (
        search_text(product)
        == "acme cotton tee about acme cotton tee. soft  color: navy | white, rectangular, and size: 8, 8 wide"
    )
    assert search_text(_parse(item("B1", "Tee", small_description=[]))[0]) == "tee about tee.  "


def test_one_synthetic_goal_per_combination_of_sorted_options():
    goals = [goal for goal in shop().goals if goal["asin"] == "B000000001"]
    assert len(goals) == 4
    for goal in goals:
        assert list(goal["goal_options"]) == ["color", "size"]
        limit = f", and price lower than {goal['price_upper']:.2f} dollars"
        color, size = goal["goal_options"].values()
        assert goal["instruction_text"] == (
            f"Find me slim fit men's shirts with machine wash with color: {color}, and size: {size}{limit}"
        )
        # "slim fit" is in 5 goals, "machine wash" in 4.
        assert goal["weight"] == (1 / 5 + 1 / 4) / 2
        assert list(goal) == [
            "asin",
            "category",
            "query",
            "name",
            "product_category",
            "instruction_text",
            "attributes",
            "price_upper",
            "goal_options",
            "weight",
        ]


def test_weights_are_added_from_left_to_right_on_every_python():
    wanted = {"B1": ["a", "b", "c"], "B2": ["b"], "B3": ["b"]}
    records = {asin: {"instruction": "Find", "instruction_attributes": names} for asin, names in wanted.items()}
    goals = Catalogue.from_records([item(asin, "Tee") for asin in wanted], records).goals
    # `sum` of Python 3.12 rounds (1 + 1/3 + 1) / 3 to ...778; the official environment has ...777.
    assert {goal["weight"] for goal in goals if goal["asin"] == "B1"} == {0.7777777777777777}


def test_no_price_limit_for_the_dearest():
    goal = next(goal for goal in shop().goals if goal["asin"] == "B000000004")
    assert (goal["price_upper"], goal["instruction_text"]) == (1000000, "Find me a lamp")


def test_human_goals_lose_their_full_stop_and_need_attributes():
    goals = shop(human_goals=True).goals
    assert sorted(goal["instruction_text"].split(",")[0] for goal in goals) == [
        "a lamp",
        "i need a slim fit tee in navy",
        "i need a tee in two colors",
    ]
    assert {goal["weight"] for goal in goals} == {1}
    assert [goal["goal_options"] for goal in goals if goal["asin"] == "B000000003"] == [[]]


def test_random_draws_come_in_the_official_order():
    rng = random.Random(5)
    price = rng.uniform(10.99, 25.5)
    # Synthetic goals: products 1, 2 and 4; the price of 4 leaves no candidates.
    limits = [max(rng.sample([20.0, 30.0, 40.0, 50.0], 2))]
    limits.append(max(rng.sample([limit for limit in (20.0, 30.0, 40.0, 50.0, 60.0) if limit > price][:4], 2)))
    catalogue = shop(seed=5)
    assert catalogue.product_prices["B000000002"] == price
    found = {goal["asin"]: goal["price_upper"] for goal in catalogue.goals}
    assert [found["B000000001"], found["B000000002"]] == limits


@given(st.integers(0, 2**32), st.integers(0, 2**32))
def test_goal_order_depends_on_the_shuffle_seed_only(a, b):
    orders = [[(goal["asin"], goal["goal_options"]) for goal in shop(seed=seed).goals] for seed in (a, b)]
    assert orders[0] == orders[1]
    assert [goal["asin"] for goal in shop(seed=a, shuffle_seed=b).goals] == [
        goal["asin"] for goal in shop(seed=b, shuffle_seed=b).goals
    ]


@given(st.lists(st.floats(0.01, 5), min_size=2, max_size=8), st.integers(0, 2**32))
def test_goals_are_drawn_one_place_too_far(weights, seed):
    cumulative = cumulative_weights([{"weight": weight} for weight in weights])
    assert cumulative == [0, *np.cumsum(weights).tolist()]
    position = random.Random(seed).uniform(0, cumulative[-1])
    goal = draw_goal(cumulative, random.Random(seed))
    segment = next(number for number in range(len(weights)) if position < cumulative[number + 1])
    assert goal == min(segment + 1, len(weights) - 1)


def test_goal_zero_is_never_drawn():
    rng = random.Random(0)
    counts = collections.Counter(draw_goal([0, 1, 2, 3], rng) for _ in range(300))
    assert counts.keys() == {1, 2} and counts[2] > counts[1]


def _write(folder, items=ITEMS, attributes=ATTRIBUTES):
    (folder / "items.json").write_text(items if isinstance(items, str) else json.dumps(items))
    (folder / "attributes.json").write_text(attributes if isinstance(attributes, str) else json.dumps(attributes))
    return {"items": folder / "items.json", "attributes": folder / "attributes.json"}


def test_files_give_what_records_give_plain_or_zipped(tmp_path):
    paths = _write(tmp_path)
    zipped = tmp_path / "items.json.gz"
    zipped.write_bytes(gzip.compress(paths["items"].read_bytes()))
    for path in (paths["items"], zipped):
        catalogue = Catalogue.from_files(path, paths["attributes"], seed=3)
        assert (catalogue.products, catalogue.goals) == (shop(seed=3).products, shop(seed=3).goals)
    assert len(Catalogue.from_files(**paths, num_products=2).products) == 2


@given(
    st.lists(st.dictionaries(st.text(max_size=4), st.text(max_size=9) | st.integers() | st.none()), max_size=9),
    st.integers(1, 40),
)
def test_a_list_is_read_in_pieces_of_any_size(tmp_path_factory, records, chunk):
    path = tmp_path_factory.mktemp("list") / "items.json"
    path.write_text(json.dumps(records, indent=chunk % 3 or None, ensure_ascii=chunk % 2 == 0), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "_CHUNK", chunk)
        assert list(files.iterate_list(path)) == records


@pytest.mark.parametrize(
    ("items", "attributes", "file", "problem"),
    [
        ("[{]", ATTRIBUTES, "items.json", "cannot be read as JSON"),
        ('[{"asin": "B1"}', ATTRIBUTES, "items.json", "no key 'small_description'"),
        ('[{"asin": "B1", "name": ', ATTRIBUTES, "items.json", "cannot be read as JSON"),
        ("{}", ATTRIBUTES, "items.json", "must hold a JSON list"),
        ("[7]", ATTRIBUTES, "items.json", "number 0 is malformed"),
        ([item("B1", "Tee", pricing="10.99")], {"B1": {}}, "items.json", "pricing '10.99'"),
        ([item("B1", "Tee", pricing="$1.2.3")], {"B1": {}}, "items.json", "pricing '$1.2.3'"),
        ([item("B1", "Tee", customization_options={"Size": ["8"]})], {"B1": {}}, "items.json", "number 0 is malformed"),
        (ITEMS, "[]", "attributes.json", "must hold a JSON object"),
        (ITEMS, "{", "attributes.json", "cannot be read as JSON"),
        (ITEMS, {}, "attributes.json", "no record for product B000000001"),
        ([item("B1", "Tee")], {"B1": {"instruction": "buy"}}, "attributes.json", "instruction_attributes"),
    ],
)
def test_malformed_files_are_named(tmp_path, items, attributes, file, problem):
    with pytest.raises(ValueError) as error:
        Catalogue.from_files(**_write(tmp_path, items, attributes))
    assert file in str(error.value) and problem in str(error.value)


@pytest.mark.parametrize("bad", [None, 7, True, {}, [None], [[7]]])
@pytest.mark.parametrize("key", ["name", "full_description", "small_description", "category", "product_category"])
def test_a_text_of_a_product_that_is_none_is_named(tmp_path, key, bad):
    with pytest.raises(ValueError, match=rf"items.json': product number 0 is malformed \(.*{key} must be a"):
        Catalogue.from_files(**_write(tmp_path, [item("B1", "Tee") | {key: bad}], {"B1": {}}))


@pytest.mark.parametrize(
    ("role", "record"),
    [
        ("attributes", 7),
        ("attributes", {"attributes": None}),
        ("attributes", {"attributes": ["soft", 7]}),
        ("attributes", {"instruction": "buy", "instruction_attributes": 7}),
        ("attributes", {"instruction": "buy", "instruction_attributes": [None]}),
        ("instructions", 7),
        ("instructions", [7]),
        ("instructions", [{"instruction": "buy", "instruction_attributes": 7, "instruction_options": []}]),
        ("instructions", [{"instruction": "buy", "instruction_attributes": ["soft"], "instruction_options": None}]),
        ("instructions", [{"instruction": 7, "instruction_attributes": ["soft"], "instruction_options": []}]),
    ],
)
def test_a_malformed_record_is_blamed_on_its_file_and_product(tmp_path, role, record):
    paths = _write(tmp_path, [item("B1", "Tee")], {"B1": {}})
    (tmp_path / f"{role}.json").write_text(json.dumps({"B1": record}))
    paths[role] = tmp_path / f"{role}.json"
    with pytest.raises(ValueError, match=f"{role}.json': .*B1 is malformed"):
        Catalogue.from_files(**paths, human_goals=role == "instructions")


def test_missing_files_and_parts_are_named(tmp_path):
    paths = _write(tmp_path)
    with pytest.raises(FileNotFoundError, match="absent.json"):
        Catalogue.from_files(tmp_path / "absent.json", paths["attributes"])
    with pytest.raises(FileNotFoundError, match="absent.jsonl"):
        Catalogue.from_files(**paths, nouns=tmp_path / "absent.jsonl")
    with pytest.raises(ValueError, match="num_products = -1 must be at least 1"):
        Catalogue.from_files(**paths, num_products=-1)
    with pytest.raises(ValueError, match="human_goals = True needs instructions"):
        Catalogue.from_files(**paths, human_goals=True)
    with pytest.raises(ValueError, match="holds no goal"):
        Catalogue.from_records([item("B1", "Tee")], {"B1": {}})
    with pytest.raises(ValueError, match="compat = 'strict'"):
        shop(compat="strict")
    with pytest.raises(ValueError, match="no key 'instruction_attributes'"):
        Catalogue.from_records(ITEMS, {}, {"B000000001": [{}]}, human_goals=True)
    whole = gzip.compress(json.dumps(ITEMS).encode())
    for damaged in (whole[:60], whole[:60] + bytes([255] * 60), b"no gzip"):
        (tmp_path / "broken.gz").write_bytes(damaged)
        for role in ("items", "attributes", "nouns"):
            with pytest.raises(ValueError, match="broken.gz"):
                Catalogue.from_files(**paths | {role: tmp_path / "broken.gz"})


def test_recorded_world():
    folder = recordings("webshop") / "invented"
    catalogue = Catalogue.from_files(
        folder / "items_shuffle.json",
        folder / "items_ins_v2.json",
        folder / "items_human_ins.json",
        human_goals=True,
        seed=11,
    )
    with gzip.open(folder / "world.json.gz", "rt", encoding="utf-8") as file:
        world = json.load(file)
    assert list(catalogue.products) == world["product_order"]
    for product in world["products"]:
        assert {key: catalogue.products[product["asin"]][key] for key in product} == product
    assert catalogue.product_prices == world["product_prices"]
    assert list(map(list, catalogue.goals)) == list(map(list, world["goals"]))
    assert catalogue.goals == world["goals"]
    assert [goal["weight"] for goal in catalogue.goals] == world["weights"]


def test_official_data_have_the_known_goals():
    folder = recordings("webshop") / "official1000"
    paths = [
        folder / name for name in ("items_shuffle_1000.json.gz", "items_ins_v2_1000.json.gz", "items_human_ins.json.gz")
    ]
    catalogue = Catalogue.from_files(*paths)
    assert (len(catalogue.products), len(catalogue.goals)) == (1000, 6910)
    most = collections.Counter(goal["asin"] for goal in catalogue.goals).most_common()
    assert (len(most), most[0][1], sum(count == 1 for _, count in most)) == (415, 558, 185)
    lost = sum(catalogue.purchase(goal, *catalogue.solution(goal))[0] < 1 for goal in range(len(catalogue.goals)))
    assert lost == 458
    fixed = Catalogue.from_files(*paths, compat="fixed")
    assert all(fixed.purchase(goal, *fixed.solution(goal))[0] == 1 for goal in range(len(fixed.goals)))
    assert len(Catalogue.from_files(*paths, human_goals=True).goals) == 13


def test_instructions_are_not_needed_for_synthetic_goals():
    assert (
        Catalogue.from_records(ITEMS, ATTRIBUTES).goals == Catalogue.from_records(ITEMS, ATTRIBUTES, INSTRUCTIONS).goals
    )

"""Generated WebShop tasks, their splits, and the scripted shopper."""

import itertools
import json
import pickle
import random
import re

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recordings import recordings

from rspo_jax.envs import EnvPool, prompts, webshop
from rspo_jax.envs.gym_suite import gym_suite
from rspo_jax.envs.webshop import generator
from rspo_jax.envs.webshop import suite as suites
from rspo_jax.envs.webshop.demonstrator import keywords
from rspo_jax.envs.webshop.fuzzy import matches, normalize_color
from rspo_jax.envs.webshop.reward import option_matches, reward

MAX_TURNS = 15


@pytest.fixture(scope="module")
def records():
    return generator.generate(0)


@pytest.fixture(scope="module")
def suite():
    return webshop.generated_suite()


@pytest.fixture(scope="module")
def shop(suite):
    return suite.make_env().catalogue


def content(goal):
    text = goal["instruction_text"].partition(", and price lower")[0]
    return json.dumps([goal["asin"], text, goal["attributes"], goal["goal_options"]])


def play(env, policy, task):
    """(info at the end, turns, every action that was not admissible, characters of plain prompts and actions)."""
    fmt = prompts.get("plain", "webshop")
    observation, info = env.reset(**task)
    characters, turns, terminated, inadmissible = len(fmt.first(observation, info)), 0, False, []
    while not terminated and turns < MAX_TURNS:
        action = policy(observation, info)
        search = action.startswith("search[") and "search[<your query>]" in info["admissible_actions"]
        if not search and action not in info["admissible_actions"]:
            inadmissible.append(action)
        previous = observation
        observation, _, terminated, _, info = env.step(action)
        turns += 1
        characters += len(action) + (0 if terminated else len(fmt.next(observation, info, previous)))
    return info, turns, inadmissible, characters


# The catalogue.


def test_a_seed_gives_one_catalogue_and_another_seed_another(records):
    assert generator.generate(0) == records
    assert generator.generate(1).items != records.items


@pytest.mark.parametrize("seed", [0, 1, 7])
def test_the_catalogue_has_the_promised_size_and_shape(seed):
    items, attributes, instructions, _ = generator.generate(seed)
    assert len(items) == len({item["asin"] for item in items}) == 500
    assert len({item["category"] for item in items}) == 5 and len({item["query"] for item in items}) == 40
    words, groups, ranges = set(), set(), 0
    for item in items:
        assert re.fullmatch(r"[A-Z0-9]{10}", item["asin"]) and 4 <= len(item["name"].split()) <= 6
        options = item["customization_options"]
        groups.add(len(options))
        assert all(2 <= len(values) <= 5 for values in options.values())
        texts = [item["name"], item["full_description"], *item["small_description"], item["product_category"]]
        texts += [record["instruction"] for record in instructions[item["asin"]]]
        texts += [*options, *(value["value"] for values in options.values() for value in values)]
        words |= set(re.findall(r"[a-z]+", " ".join(texts).lower()))
        ranges += " - " in item["pricing"]
        assert attributes[item["asin"]]["attributes"]
    assert groups == {0, 1, 2} and 0 < ranges < 250 and len(words) <= 500


@pytest.mark.parametrize("human_goals", [True, False])
@pytest.mark.parametrize("seed", [0, 1, 7])
def test_goals_are_many_distinct_and_of_every_difficulty(seed, human_goals):
    goals = webshop.generated_suite(seed, human_goals=human_goals).make_env().goals
    assert len(goals) >= 4000 and len({content(goal) for goal in goals}) == len(goals)
    assert {len(goal["goal_options"]) for goal in goals} == {0, 1, 2}
    if human_goals:
        assert {len(goal["attributes"]) for goal in goals} == {1, 2}
        shares = np.bincount([len(goal["goal_options"]) for goal in goals]) / len(goals)
        assert shares.min() > 0.2


def test_no_two_values_or_attributes_are_alike_to_the_reward():
    for department in generator._DEPARTMENTS:
        values = [(name, value) for name, pool in department.options.items() for value in pool]
        for (_, value), (other_name, other) in itertools.permutations(values, 2):
            assert not option_matches(value, other) and not option_matches(value, (other_name, other)), (value, other)
        for name, value in values:
            assert normalize_color(value) in (value, *generator._COLORS) and option_matches(value, value)
            assert option_matches(value, (name, value))
        for one, other in itertools.permutations(department.attributes, 2):
            assert not matches(one, other), (one, other)


@pytest.mark.parametrize("human_goals", [True, False])
def test_every_goal_is_worth_1_even_by_the_official_reward(human_goals):
    shop = webshop.generated_suite(human_goals=human_goals).make_env().catalogue
    for number, goal in enumerate(shop.goals):
        asin, options = shop.solution(number)
        assert reward(shop.products[asin], goal, shop.product_prices[asin], options)[0] == 1.0
        assert shop.purchase(number, asin, options)[0] == 1.0


def test_most_goals_have_a_product_that_misses_exactly_one_thing(shop):
    numbers = range(0, len(shop.goals), 20)
    close = 0
    for number in numbers:
        goal = shop.goals[number]
        parts = len(goal["attributes"]) + len(goal["goal_options"]) + 1
        _, options = shop.solution(number)
        worth = set()
        for asin, product in shop.products.items():
            if product["query"] == goal["query"]:
                possible = {name: value for name, value in options.items() if value in product["options"].get(name, ())}
                worth.add(round(shop.purchase(number, asin, possible)[0] * parts))
        close += parts - 1 in worth
    assert close > 0.95 * len(numbers)


def test_a_product_of_another_type_never_wins(shop):
    for number in range(0, len(shop.goals), 40):
        goal = shop.goals[number]
        _, options = shop.solution(number)
        others = [asin for asin, product in shop.products.items() if product["query"] != goal["query"]]
        assert all(shop.purchase(number, asin, options)[0] < 1.0 for asin in others)


def test_the_words_of_the_instruction_find_the_product_among_the_first_20(shop):
    found = [goal["asin"] in shop.search(" ".join(keywords(goal)), 20) for goal in shop.goals]
    assert np.mean(found) > 0.99


def test_written_files_hold_the_same_shop(tmp_path, shop):
    paths = {role: str(path) for role, path in generator.write(tmp_path / "shop").items()}
    again = webshop.files_suite(**paths, human_goals=True, compat="fixed").make_env().catalogue
    assert again.goals == shop.goals and again.products == shop.products
    assert [again.purchase(n, *again.solution(n)) for n in range(50)] == [
        shop.purchase(n, *shop.solution(n)) for n in range(50)
    ]


@pytest.mark.parametrize("num_products", [0, -4, 499])
def test_an_impossible_number_of_products_is_refused(num_products):
    with pytest.raises(ValueError, match=f"num_products = {num_products} must be a positive multiple of 4"):
        webshop.generated_suite(num_products=num_products)


# Splits.


def test_splits_are_large_and_disjoint_in_content(suite, shop):
    contents = {
        name: {content(shop.goals[t["options"]["goal"]]) for t in tasks} for name, tasks in suite.splits.items()
    }
    assert contents.keys() == {"train", "valid", "test"} and min(map(len, contents.values())) >= 300
    assert sum(map(len, contents.values())) == len(set.union(*contents.values())) == len(shop.goals)


@settings(max_examples=10, deadline=None)
@given(order=st.integers(0, 1000), seed=st.integers(0, 3))
def test_splits_depend_neither_on_the_order_of_goals_nor_on_their_drawn_price_limits(order, seed):
    goals = generated_goals()
    mixed = [
        {**g, "instruction_text": g["instruction_text"].replace("price lower than ", "price lower than 1")}
        for g in goals
    ]
    random.Random(order).shuffle(mixed)
    before, after = suites.split_by_content(goals, seed, 300), suites.split_by_content(mixed, seed, 300)
    for name in ("train", "valid", "test"):
        assert [content(goals[n]) for n in before[name]] == [content(mixed[n]) for n in after[name]]


def generated_goals():
    return webshop.generated_suite().make_env().goals


def test_equal_goals_share_a_split_and_another_seed_splits_otherwise(shop):
    doubled = shop.goals[:400] + shop.goals[:400]
    parts = suites.split_by_content(doubled, 0, 100)
    assert all({n % 400 for n in part} == {n % 400 for n in part if n < 400} for part in parts.values())
    assert len(parts["valid"]) == 200
    assert suites.split_by_content(doubled, 1, 100)["test"] != parts["test"]


@pytest.mark.parametrize("min_options", [1, 2])
def test_min_options_leaves_goals_out_and_moves_none(suite, shop, min_options):
    harder = webshop.generated_suite(min_options=min_options)
    for name, tasks in harder.splits.items():
        wanted = [t for t in suite.splits[name] if len(shop.goals[t["options"]["goal"]]["goal_options"]) >= min_options]
        assert tasks == wanted and len(tasks) >= 300


def test_human_goals_of_a_large_file_take_the_official_split_without_overlap(tmp_path):
    paths = {role: str(path) for role, path in generator.write(tmp_path).items()}
    suite = webshop.files_suite(**paths, human_goals=True)
    goals = suite.make_env().goals
    numbers = {name: [task["options"]["goal"] for task in tasks] for name, tasks in suite.splits.items()}
    assert numbers["test"] == list(range(500)) and numbers["valid"] == list(range(500, 1500))
    assert numbers["train"] == list(range(1500, len(goals)))
    # A goal that comes again later stays where it came first.
    again = [*goals, goals[3], goals[700], goals[2000]]
    split = suites._official_split(again)
    assert [n for n in split["train"] if n >= len(goals)] == [len(goals) + 2]
    # Part of the file is split by content.
    part = webshop.files_suite(**paths, human_goals=True, num_products=100)
    assert len(part.splits["test"]) == len(part.splits["valid"]) == len(part.make_env().goals) // 4


def test_impossible_arguments_are_refused(shop):
    with pytest.raises(ValueError, match="leave a split empty"):
        suites.split_by_content(shop.goals[:3], 0)
    with pytest.raises(ValueError, match="min_options = 3"):
        webshop.generated_suite(min_options=3)
    with pytest.raises(ValueError, match="observation_mode"):
        webshop.generated_suite(observation_mode="html")
    with pytest.raises(FileNotFoundError, match="nowhere.json"):
        webshop.files_suite("nowhere.json", "nowhere.json")


# Suites and the pool.


def test_environments_of_a_process_share_the_shop_and_can_be_sent_to_another(suite, shop):
    assert suite.make_env().catalogue is shop
    assert pickle.loads(pickle.dumps(suite.make_env))().catalogue is shop


def test_worker_processes_see_the_same_tasks(suite):
    tasks = list(suite.splits["valid"][:3])
    actions = ["search[hand sewn hoodie]", "click[next >]", "click[back to search]"]
    with EnvPool(suite.make_env, 3) as local, EnvPool(suite.make_env, 3, workers=2) as pool:
        assert pool.reset([0, 1, 2], tasks) == local.reset([0, 1, 2], tasks)
        for action in actions:
            assert pool.step([2, 0, 1], [action] * 3) == local.step([2, 0, 1], [action] * 3)


def test_phrases_are_distinct_lower_case_names_of_the_shop(suite, shop):
    phrases = set(suite.phrases)
    assert len(phrases) == len(suite.phrases) and all(phrase == phrase.lower() for phrase in phrases)
    assert {"search[", "click[", "]", "buy now", "next >", prompts.SAME_PAGE} <= phrases
    assert {asin.lower() for asin in shop.products} <= phrases
    assert {value for p in shop.products.values() for values in p["options"].values() for value in values} <= phrases


def test_the_environment_is_registered():
    env = gymnasium.make("rspo_jax/WebShop-v0")
    assert env.reset(options={"goal": 5})[1]["task"] == env.unwrapped.goals[5]["instruction_text"]
    assert gymnasium.make("rspo_jax/WebShop-v0", observation_mode="text_rich").reset(seed=1)[0].startswith("WebShop\n")
    observation, info = gym_suite("rspo_jax/WebShop-v0", 2, 2).make_env().reset(seed=1)
    assert info["task"] in observation
    for arguments in ({"human_goals": True}, {"instructions": "x.json"}):
        with pytest.raises(ValueError, match="give items and attributes"):
            gymnasium.make("rspo_jax/WebShop-v0", **arguments)
    for role in ("items", "attributes"):
        with pytest.raises(ValueError, match="give both files, or none"):
            gymnasium.make("rspo_jax/WebShop-v0", **{role: "x.json"})


# The scripted shopper.


def test_with_skill_1_it_wins_every_goal_in_a_few_turns(suite):
    env = suite.make_env()
    policy = webshop.demonstrator(env, np.random.default_rng(0), 1.0)
    played = [play(env, policy, task) for task in suite.splits["valid"]]
    assert all(info["won"] and info["score"] == 1.0 for info, *_ in played)
    assert max(turns for _, turns, *_ in played) <= 8
    assert np.mean([characters for *_, characters in played]) < 1000  # what a plain episode may cost to read


def test_less_skill_wins_less_and_every_action_is_admissible(suite):
    env = suite.make_env()
    success = []
    for skill in (1.0, 0.7, 0.4, 0.1):
        policy = webshop.demonstrator(env, np.random.default_rng(1), skill)
        played = [play(env, policy, task) for task in suite.splits["valid"][:150]]
        assert not [action for _, _, inadmissible, _ in played for action in inadmissible]
        success.append(np.mean([info["won"] for info, *_ in played]))
    assert success[0] == 1.0 and all(a > b + 0.1 for a, b in itertools.pairwise(success))


def test_goals_with_more_options_are_harder_for_luck(suite, shop):
    env = suite.make_env()
    policy = webshop.demonstrator(env, np.random.default_rng(2), 0.1)
    tasks = random.Random(0).sample(suite.splits["train"], 600)
    won = [play(env, policy, task)[0]["won"] for task in tasks]
    options = np.array([len(shop.goals[task["options"]["goal"]]["goal_options"]) for task in tasks])
    rates = [np.mean(np.array(won)[options == count]) for count in (0, 1, 2)]
    assert rates[0] > rates[1] >= rates[2] and rates[2] < 0.02


def test_it_wins_on_the_official_products_too():
    folder = recordings("webshop") / "official1000"
    names = {
        "items": "items_shuffle_1000.json.gz",
        "attributes": "items_ins_v2_1000.json.gz",
        "nouns": "nouns.jsonl.gz",
    }
    suite = webshop.files_suite(**{role: str(folder / name) for role, name in names.items()}, compat="fixed")
    env = suite.make_env()
    policy = webshop.demonstrator(env, np.random.default_rng(0), 1.0)
    played = [play(env, policy, task) for task in suite.splits["test"][:200]]
    assert all(info["won"] for info, *_ in played) and max(turns for _, turns, *_ in played) <= MAX_TURNS


def test_keywords_are_words_of_the_instruction_in_its_order(shop):
    goal = {
        "instruction_text": "find me a Hoodie, quick dry, size tall, and price lower than 30.00 dollars",
        "attributes": ["quick dry"],
        "query": "hoodie",
    }
    assert keywords(goal) == ["hoodie", "quick", "dry"]
    assert keywords({**goal, "instruction_text": "something nice"}) == ["dry", "hoodie", "quick"]
    assert all(set(keywords(goal)) <= set(re.findall(r"\w+", goal["instruction_text"])) for goal in shop.goals)


@pytest.mark.parametrize("skill", [-0.1, 1.5])
def test_an_impossible_skill_is_refused(suite, skill):
    with pytest.raises(ValueError, match="must be in"):
        webshop.demonstrator(suite.make_env(), np.random.default_rng(0), skill)

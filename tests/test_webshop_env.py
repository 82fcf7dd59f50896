"""The environment: pages, actions, quirks, and the recorded episodes."""

import gzip
import json
import random
import string

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st
from recordings import recordings
from webshop_shop import env, goal_number, item, options, shop

from rspo_jax.envs.webshop import Catalogue, WebShopEnv, parse_action
from rspo_jax.envs.webshop.pages import anchor, task_of

TEE = "B000000001"
BASE = "http://127.0.0.1:3000"


def _start(shop_env: WebShopEnv, asin: str = TEE) -> int:
    goal = goal_number(shop_env.catalogue, asin)
    shop_env.reset(options={"goal": goal})
    return goal


def _run(shop_env: WebShopEnv, *actions: str):
    """The last step's result."""
    for action in actions:
        result = shop_env.step(action)
    return result


def test_start_page():
    shop_env = env()
    goal = _start(shop_env)
    observation, info = shop_env.reset(options={"goal": goal})
    instruction = shop_env.goals[goal]["instruction_text"]
    assert observation == f"WebShop [SEP] Instruction: [SEP] {instruction} [SEP] Search"
    assert info == {
        "task": instruction,
        "admissible_actions": ["search[<your query>]"],
        "clickables": ["search"],
        "has_search_bar": True,
        "url": f"{BASE}/{goal}",
        "won": False,
        "score": 0.0,
        "progress": 0.0,
        "anchor": "'Search'",
        "task_type": "",
    }


def test_results_and_item_page():
    shop_env = env()
    goal = _start(shop_env)
    task = shop_env.goals[goal]["instruction_text"]
    observation, reward, terminated, truncated, info = shop_env.step("search[Acme TEE] please")
    assert observation == (
        f"Instruction: [SEP] {task} [SEP] Back to Search [SEP] Page 1 (Total results: 2) [SEP] Next > [SEP] "
        f"{TEE} [SEP] Acme Cotton Tee [SEP] $10.99 [SEP] B000000002 [SEP] Acme Linen Shirt [SEP] $10.99 to $25.5"
    )
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert info["clickables"] == ["back to search", "next >", "b000000001", "b000000002"]
    assert info["admissible_actions"] == [f"click[{label}]" for label in info["clickables"]]
    assert info["url"] == f"{BASE}/search_results/{goal}/acme+tee/1"
    assert info["anchor"].startswith("'Back to Search' [SEP] 'Page 1")
    observation, *_, info = shop_env.step(f"click[{TEE}]")
    assert observation == (
        f"Instruction: [SEP] {task} [SEP] Back to Search [SEP] < Prev [SEP] color [SEP] navy | white [SEP] "
        "rectangular [SEP] size [SEP] 8 [SEP] 8 wide [SEP] Acme Cotton Tee [SEP] Price: $10.99 [SEP] "
        "Rating: N.A. [SEP] Description [SEP] Features [SEP] Reviews [SEP] Buy Now"
    )
    assert info["clickables"] == [
        "back to search",
        "< prev",
        "description",
        "features",
        "reviews",
        "buy now",
        "navy | white",
        "rectangular",
        "8",
        "8 wide",
    ]
    assert info["url"] == f"{BASE}/item_page/{goal}/{TEE}/acme+tee/1/{{}}"
    assert _run(shop_env, "click[8]")[0] == observation


def test_rich_text_marks_choices_and_opened_products():
    shop_env = env("text_rich")
    goal = _start(shop_env)
    task = shop_env.goals[goal]["instruction_text"]
    assert _run(shop_env, "search[linen]")[0] == (
        f"Instruction:\n{task}\n[button] Back to Search [button_]\nPage 1 (Total results: 1)\n"
        "[button] Next > [button_]\n\n[button] B000000002 [button_]\nAcme Linen Shirt\n$10.99 to $25.5\n"
    )
    assert (
        "\n\n[clicked button] B000000002 [clicked button_]\n" in _run(shop_env, "click[b000000002]", "click[< prev]")[0]
    )
    observation = _run(shop_env, "search[tee]", f"click[{TEE}]", "click[8]", "click[navy | white]")[0]
    assert observation.startswith("You have clicked 8.\nYou have clicked navy | white.\nInstruction:\n")
    assert "\n  [clicked button] 8 [clicked button_]\n  [button] 8 wide [button_]\n" in observation
    assert "clicked" not in _run(shop_env, "click[back to search]", "search[linen]")[0]


def test_rich_text_finds_choices_in_the_address():
    shop_env = env("text_rich")
    _start(shop_env)
    observation, *_, info = _run(shop_env, 'search["both" mug]', "click[b000000005]", 'click[grö"ße]')
    assert info["url"].endswith('/{"style": "gr\\u00f6\\"\\u00dfe"}')
    assert "clicked button] grö" not in observation
    assert observation.startswith("You have clicked both.\nYou have clicked both.\n")


def test_sub_pages_and_white_space():
    shop_env = env(show_attributes=True)
    goal = _start(shop_env)
    head = f"Instruction: [SEP] {shop_env.goals[goal]['instruction_text']} [SEP] Back to Search [SEP] < Prev"
    _run(shop_env, "search[odd]", "click[b000000005]")
    observation, *_, info = shop_env.step("click[features]")
    assert observation == f"{head} [SEP]  [SEP] kept"
    assert info["url"] == f"{BASE}/item_sub_page/{goal}/B000000005/odd/1/Features/{{}}"
    assert _run(shop_env, "click[< prev]", "click[description]")[0] == f"{head} [SEP] "
    assert _run(shop_env, "click[< prev]", "click[reviews]")[0] == head
    _run(shop_env, "search[plain]", "click[b000000006]")
    assert (
        _run(shop_env, "click[attributes]")[0]
        == f"{head} [SEP] DUMMY_ATTR [SEP] kitchen [SEP] mugs [SEP] Kitchen › Mugs"
    )
    assert _run(shop_env, "click[< prev]", "click[description]")[0] == head
    assert shop_env.session.actions == {
        "search": 2,
        "asin": 2,
        "Features": 1,
        "Description": 2,
        "Reviews": 1,
        "Attributes": 1,
    }


def test_attributes_can_be_clicked_only_where_they_are_shown():
    shop_env = env()
    _start(shop_env)
    before = _run(shop_env, "search[tee]", f"click[{TEE}]")
    assert shop_env.step("click[attributes]") == before


def test_purchase():
    shop_env = env()
    goal = goal_number(shop_env.catalogue, TEE, color="navy | white", size="8")
    shop_env.reset(options={"goal": goal})
    _run(shop_env, "search[tee]", f"click[{TEE}]", "click[8]")
    *_, info = shop_env.step("click[navy | white]")
    assert (info["progress"], info["won"], info["score"]) == (1.0, False, 0.0)
    observation, reward, terminated, truncated, info = shop_env.step("click[Buy Now]")
    assert (reward, terminated, truncated, info["won"], info["score"]) == (10.0, True, False, True, 1.0)
    chosen = '{"color": "navy | white", "size": "8"}'
    assert observation == (
        "Thank you for shopping with us! [SEP] Your code: [SEP] None [SEP] (Paste it in your MTurk interface.) [SEP] "
        f"Purchased [SEP] asin [SEP] {TEE} [SEP] options [SEP] {chosen} [SEP] attrs [SEP] None [SEP] category [SEP] "
        "None [SEP] query [SEP] None [SEP] product category [SEP] None [SEP] Target [SEP] asin [SEP] options [SEP] "
        "attrs [SEP] price upper [SEP] instuction text [SEP] category [SEP] product category [SEP] query [SEP] "
        "Goal [SEP] None [SEP] "
        "Reward [SEP] Your score (min 0.0, max 1.0) [SEP] 1.0 [SEP] Reward Details [SEP] None"
    )
    assert info["url"] == f"{BASE}/done/{goal}/{TEE}/{{'size': '8', 'color': 'navy | white'}}"
    assert (info["clickables"], info["admissible_actions"], info["anchor"]) == ([], [], observation)
    # The shop stays open: only a search acts, and the same session can buy again.
    assert shop_env.step("click[back to search]")[0] == observation
    *_, terminated, _, info = _run(shop_env, "search[linen]", "click[b000000002]", "click[buy now]")
    assert terminated and 0 < info["score"] < 1 and not info["won"]
    assert shop_env.session.actions["purchase"] == 2


def test_progress_is_the_best_view_so_far():
    shop_env = env()
    goal = goal_number(shop_env.catalogue, TEE, color="navy | white", size="8")
    shop_env.reset(options={"goal": goal})
    steps = [
        "search[acme]",
        "click[b000000002]",
        "click[< prev]",
        f"click[{TEE}]",
        "click[8]",
        "click[8 wide]",
        "click[back to search]",
    ]
    seen = [shop_env.step(action)[-1]["progress"] for action in steps]
    other = shop_env.catalogue.purchase(goal, "B000000002", {})[0]
    assert seen == [0.0, other, other, 3 / 5, 4 / 5, 4 / 5, 4 / 5]
    assert shop_env.reset(options={"goal": goal})[1]["progress"] == 0.0


@pytest.mark.parametrize(
    "action",
    [
        "",
        " ",
        "search",
        "search[]",
        " search[tee]",
        "please search[tee]",
        "Search[tee]",
        "search[a][b]",
        "search[a\nb]",
        "click[]",
        "click[search]",
        "click[buy now ]",
        "click[absent]",
        "CLICK[back to search]",
        "click [8]",
        "click[8\n]",
    ],
)
def test_actions_that_change_nothing(action):
    for way in ([], ["search[acme]"], ["search[acme]", f"click[{TEE}]"]):
        shop_env = env()
        _start(shop_env)
        before = _run(shop_env, *way, "click[absent]")
        assert shop_env.step(action) == before


def test_values_with_brackets_cannot_be_clicked():
    catalogue = Catalogue.from_records(
        [item(TEE, "Tee", customization_options=options(Color=["a [b]"]))],
        {TEE: {"attributes": ["soft"], "instruction": "tee", "instruction_attributes": ["soft"]}},
    )
    shop_env = WebShopEnv(catalogue)
    before = (shop_env.reset(options={"goal": 0}), _run(shop_env, "search[tee]", f"click[{TEE}]"))[1]
    assert "a [b]" in before[-1]["clickables"]
    assert shop_env.step("click[a [b]]") == before


@given(st.text("abc [ ]\n", max_size=12))
def test_parsed_actions_rejoin_to_their_beginning(action):
    verb, argument = parse_action(action)
    if argument is None:
        assert verb == action
    else:
        assert (
            action.startswith(f"{verb}[{argument}]") and "]" not in action[len(f"{verb}[{argument}]") :].split("\n")[0]
        )


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("<q> men's shirts", ["B000000001", "B000000002", "B000000005"]),
        ("<q>  desk lamps", ["B000000003"]),
        ("<c> garden lamps", ["B000000003", "B000000004"]),
        ("<q>", []),
        ("x <q> zzz", []),
    ],
)
def test_magic_searches(query, found):
    shop_env = env()
    _start(shop_env)
    observation, *_, info = shop_env.step(f"search[{query}]")
    assert info["clickables"][2:] == list(map(str.lower, found))
    assert f"Page 1 (Total results: {len(found)})" in observation


@pytest.mark.parametrize("query", ["<a> slim fit", "<r>", "<c>"])
def test_searches_that_would_crash_change_nothing(query):
    shop_env = env()
    _start(shop_env)
    before = _run(shop_env, "search[tee]", f"click[{TEE}]", "click[8]")
    assert shop_env.step(f"search[{query}]") == before
    assert shop_env.session.options == {"size": "8"}


def _large_shop(count: int = 60) -> Catalogue:
    return Catalogue.from_records(
        [item(f"B{number:09d}", f"Tee number{number}") for number in range(count)],
        {
            f"B{number:09d}": {"attributes": ["a"], "instruction": "i", "instruction_attributes": ["a"]}
            for number in range(count)
        },
    )


def test_pages_turn_without_an_upper_end():
    shop_env = WebShopEnv(_large_shop())
    shop_env.reset(options={"goal": 0})
    first = shop_env.step("search[tee]")
    assert first[-1]["clickables"][2:] == [f"b{number:09d}" for number in range(10)]
    second = shop_env.step("click[next >]")
    assert second[-1]["clickables"] == [
        "back to search",
        "< prev",
        "next >",
        *(f"b{number:09d}" for number in range(10, 20)),
    ]
    assert "Page 2 (Total results: 50)" in second[0]
    seventh = _run(shop_env, *["click[next >]"] * 5)
    assert seventh[-1]["clickables"] == ["back to search", "< prev", "next >"]
    assert _run(shop_env, *["click[< prev]"] * 6)[0] == first[0]
    assert shop_env.session.actions == {"search": 13}


def test_back_from_a_product_keeps_the_page_and_drops_the_choice():
    shop_env = WebShopEnv(_large_shop())
    shop_env.reset(options={"goal": 0})
    second = _run(shop_env, "search[tee]", "click[next >]")
    third = _run(shop_env, "click[b000000012]", "click[features]", "click[< prev]", "click[< prev]")
    assert third[:-1] == second[:-1]
    assert (shop_env.session.page, shop_env.session.asin, shop_env.session.asins) == (2, None, {"B000000012"})


def test_words_of_the_query_can_mislead_the_previous_button():
    shop_env = WebShopEnv(_large_shop())
    shop_env.reset(options={"goal": 0})
    # On a product page whose address contains "search_results", "< prev" turns back the results: page 0, then page -1.
    observation, *_ = _run(shop_env, "search[tee search_results]", "click[b000000000]", "click[< prev]")
    assert "Page 0 (Total results: 50)" in observation
    # On a sub page whose address contains "item_page", "< prev" leads to the results.
    observation, *_ = _run(shop_env, "search[tee item_page]", "click[b000000000]", "click[features]", "click[< prev]")
    assert "Page 1 (Total results: 50)" in observation


def test_random_search_follows_the_random_stream():
    catalogue = _large_shop()
    shop_env = WebShopEnv(catalogue)
    shop_env.reset(seed=3)
    rng = random.Random(3)
    rng.choices(string.ascii_lowercase, k=10)
    rng.uniform(0, catalogue.cumulative_weights[-1])
    expected = [product["asin"].lower() for product in rng.sample(list(catalogue.products.values()), k=50)][:10]
    assert shop_env.step("search[<r>]")[-1]["clickables"][2:] == expected


def test_options_named_like_buttons():
    shop_env = env()
    _start(shop_env)
    *_, info = _run(shop_env, "search[odd]", "click[b000000005]")
    assert info["clickables"] == [
        "back to search",
        "< prev",
        "description",
        "features",
        "reviews",
        "buy now",
        'grö"ße',
        "both",
        "next >",
        "search",
    ]
    assert "click[search]" not in info["admissible_actions"]
    _run(shop_env, "click[both]", "click[next >]")
    assert shop_env.session.options == {"kind": "next >"}
    assert "/Description/" in _run(shop_env, "click[description]")[-1]["url"]


def test_done_page_escapes_options():
    catalogue = Catalogue.from_records(
        [item(TEE, "Tee", customization_options=options(Color=["<a> & 'b' é"]))],
        {TEE: {"attributes": ["soft"], "instruction": "tee", "instruction_attributes": ["soft"]}},
    )
    shop_env = WebShopEnv(catalogue)
    shop_env.reset(options={"goal": 0})
    observation = _run(shop_env, "search[tee]", f"click[{TEE}]", "click[<a> & 'b' é]", "click[buy now]")[0]
    assert ' [SEP] {"color": "\\u003ca\\u003e \\u0026 \\u0027b\\u0027 \\u00e9"} [SEP] ' in observation


def test_seed_repeats_goals_and_the_stream_goes_on():
    shop_env = env()
    runs = [[shop_env.reset(seed=8)[1]["url"], *(shop_env.reset()[1]["url"] for _ in range(5))] for _ in range(2)]
    assert runs[0] == runs[1] and len({*runs[0]}) == 6


def test_first_unseeded_goal_is_the_second_draw_after_construction():
    catalogue = shop()
    rng = random.Random()
    rng.setstate(catalogue.random_state)
    for _ in range(2):
        name = "".join(rng.choices(string.ascii_lowercase, k=10))
        position = rng.uniform(0, catalogue.cumulative_weights[-1])
    shop_env = WebShopEnv(catalogue)
    assert shop_env.reset()[1]["url"] == f"{BASE}/{name}"
    last = len(catalogue.goals) - 1
    assert shop_env.session.goal == min(last, sum(weight <= position for weight in catalogue.cumulative_weights))


def test_environments_share_a_shop_but_not_a_session():
    catalogue = shop()
    one, other = WebShopEnv(catalogue), WebShopEnv(catalogue, "text_rich")
    one.reset(options={"goal": 0})
    before, _ = other.reset(options={"goal": 1})
    _run(one, "search[tee]", f"click[{TEE}]", "click[8]")
    assert other.step("click[absent]")[0] == before


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="observation_mode = 'html'"):
        env("html")
    shop_env = env()
    with pytest.raises(gymnasium.error.ResetNeeded):
        shop_env.step("search[x]")
    for number in (-1, len(shop_env.goals), 1.5, "1", None):
        with pytest.raises(ValueError, match=f"goal = {number!r} does not exist"):
            shop_env.reset(options={"goal": number})
    with pytest.raises(ValueError, match="'gaol'"):
        shop_env.reset(options={"gaol": 1})
    shop_env.reset(seed=0)
    with pytest.raises(ValueError, match="An action is a string"):
        shop_env.step(3)


@pytest.mark.parametrize("mode", ["text", "text_rich"])
def test_gymnasium_interface(mode):
    check_env(env(mode), skip_render_check=True)


def test_anchor_of_an_instruction_with_a_separator():
    start = "WebShop [SEP] Instruction: [SEP] a [SEP] b [SEP] Search"
    assert task_of(start) == "a"
    assert anchor(start, "a") == "'b' [SEP] 'Search'"
    assert anchor("no task here", "a") == "no task here"


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_any_walk_keeps_the_invariants(data):
    shop_env = env(compat=data.draw(st.sampled_from(["official", "fixed"])))
    goal = data.draw(st.integers(0, len(shop_env.goals) - 1))
    _, info = shop_env.reset(options={"goal": goal})
    searches = [
        "search[acme]",
        "search[brio lamp]",
        "search[mug item_page]",
        "search[<c> garden]",
        "search[<q>]",
        "nonsense",
    ]
    for _ in range(12):
        progress = info["progress"]
        clicks = [f"click[{label}]" for label in info["clickables"]]
        observation, reward, terminated, truncated, info = shop_env.step(data.draw(st.sampled_from(clicks + searches)))
        assert isinstance(observation, str) and not truncated
        assert progress <= info["progress"] <= 1.0 and 0.0 <= info["score"] <= info["progress"]
        assert reward == (10.0 if info["won"] else 0.0) and info["won"] == (terminated and info["score"] == 1.0)
        assert terminated or info["score"] == 0.0
        assert info["has_search_bar"] == ("search[<your query>]" in info["admissible_actions"])
        assert info["url"].startswith(BASE) and info["task"] == shop_env.goals[goal]["instruction_text"]


def _sessions_equal(session, recorded) -> bool:
    got = {name: getattr(session, name) for name in ("asin", "page", "keywords", "options")}
    got |= {"asins": sorted(session.asins), "actions": dict(session.actions)}
    return got == recorded | {"asins": sorted(recorded["asins"])}


def test_recorded_episodes():
    folder = recordings("webshop") / "invented"
    catalogue = Catalogue.from_files(
        folder / "items_shuffle.json",
        folder / "items_ins_v2.json",
        folder / "items_human_ins.json",
        human_goals=True,
        seed=11,
        nouns=folder / "nouns.jsonl.gz",
    )
    plain, rich = WebShopEnv(catalogue), WebShopEnv(catalogue, "text_rich")
    with gzip.open(folder / "episodes.jsonl.gz", "rt", encoding="utf-8") as file:
        for row in map(json.loads, file):
            if row["t"] == 0:
                (text, info), (rich_text, _) = (each.reset(options={"goal": row["goal_idx"]}) for each in (plain, rich))
                terminated = False
            else:
                (text, _, terminated, _, info), (rich_text, *_) = (each.step(row["action"]) for each in (plain, rich))
            assert (text, rich_text) == (row["obs"], row["obs_rich"])
            assert [info[key] for key in ("url", "has_search_bar", "clickables")] == [
                row[key] for key in ("url", "has_search_bar", "clickables")
            ]
            assert (info["score"], terminated) == (row["reward"], row["done"])
            assert _sessions_equal(plain.session, row["session"])


def test_recorded_action_parses():
    with gzip.open(recordings("webshop") / "invented" / "parse_action.jsonl.gz", "rt", encoding="utf-8") as file:
        for row in map(json.loads, file):
            assert list(parse_action(row["action"])) == row["parsed"]

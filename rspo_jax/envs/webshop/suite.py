"""WebShop as task suites: from the generated catalogue, and from files in the official schema."""

import functools
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rspo_jax.envs.base import TaskSuite
from rspo_jax.envs.prompts import NOTHING, SAME_PAGE
from rspo_jax.envs.webshop import generator
from rspo_jax.envs.webshop.catalog import Catalogue
from rspo_jax.envs.webshop.env import WebShopEnv
from rspo_jax.envs.webshop.nouns import Nouns

Goal = Mapping[str, Any]

NUM_EVAL = 1000
"""Goals of the validation and of the test split, where there are enough."""

_OFFICIAL_TEST, _OFFICIAL_VALID = range(500), range(500, 1500)
_PRICE_CLAUSE = re.compile(r", and price lower than [\d.]+ dollars$")
_LABELS = (
    "search[", "click[", "]", "search", "back to search", "< prev", "next >", "description", "features", "reviews",
    "attributes", "buy now", SAME_PAGE, NOTHING, *(f"page {number}" for number in range(1, 6)),
)  # fmt: skip
_MANY_PRODUCTS = 2000


def generated_suite(
    seed: int = 0,
    *,
    num_products: int = 500,
    human_goals: bool = True,
    min_options: int = 0,
    observation_mode: str = "text",
    show_attributes: bool = False,
    num_eval: int = NUM_EVAL,
) -> TaskSuite:
    """The generated catalogue; every goal can be won (`compat = "fixed"`).

    Args:
      seed: of the catalogue, the hidden prices and the splits.
      num_products: a multiple of 4.
      human_goals: instructions for 1 or 2 attributes and 0 to 2 options of a product, in balanced shares; otherwise the
        synthetic goals, one for every combination of a product's options.
      min_options: leaves out the goals that ask for fewer options, which luck can win: 0, 1 or 2. It moves no goal to
        another split.
      num_eval: goals of `valid` and of `test` (at most a quarter of all goals each); the rest is `train`.
    """
    if min_options not in (0, 1, 2):
        raise ValueError(f"min_options = {min_options} must be 0, 1 or 2: no generated product has more options.")
    load = functools.partial(_generated, seed, num_products, human_goals)
    goals = load().goals
    splits = {
        name: [number for number in numbers if len(goals[number]["goal_options"]) >= min_options]
        for name, numbers in split_by_content(goals, seed, num_eval).items()
    }
    return _suite(load, observation_mode, show_attributes, splits)


def files_suite(
    items: str,
    attributes: str,
    instructions: str | None = None,
    *,
    human_goals: bool = False,
    seed: int = 0,
    nouns: str | None = None,
    num_products: int | None = None,
    compat: str = "official",
    observation_mode: str = "text",
    show_attributes: bool = False,
    num_eval: int = NUM_EVAL,
) -> TaskSuite:
    """Files in the official schema (see `Catalogue.from_files` for the arguments and errors).

    Human goals of all products, if they are as many as the official split needs, take the official split: test is the
    first 500 goals, valid the next 1,000, train the rest, less what an earlier split holds already. All other goals are
    split by content, as the generated ones.
    """
    load = functools.partial(
        _from_files, items, attributes, instructions, human_goals, seed, nouns, num_products, compat
    )
    goals = load().goals
    official = human_goals and num_products is None and len(goals) >= 2 * _OFFICIAL_VALID.stop
    splits = _official_split(goals) if official else split_by_content(goals, seed, num_eval)
    return _suite(load, observation_mode, show_attributes, splits)


def make_env(
    items: str | None = None,
    attributes: str | None = None,
    instructions: str | None = None,
    *,
    observation_mode: str = "text",
    show_attributes: bool = False,
    **options: Any,
) -> WebShopEnv:
    """One environment for `gymnasium.make`: on files (`options` as in `Catalogue.from_files`), or on generated products
    (`options`: seed)."""
    if (items is None) != (attributes is None):
        raise ValueError(f"items = {items!r} and attributes = {attributes!r}: give both files, or none of them.")
    if items is None:
        options |= {} if instructions is None else {"instructions": instructions}
        load = functools.partial(_generated, options.pop("seed", 0), 500, True)
        if options:
            raise ValueError(f"{sorted(options)} need a catalogue from files: give items and attributes, too.")
        return _env(load, observation_mode, show_attributes)
    return WebShopEnv.from_files(
        items,
        attributes,
        instructions,
        observation_mode=observation_mode,
        show_attributes=show_attributes,
        **options,
    )


def split_by_content(goals: Sequence[Goal], seed: int, num_eval: int = NUM_EVAL) -> dict[str, list[int]]:
    """Goal numbers of `train`, `valid` and `test`: disjoint in content, whatever order the goals come in.

    Goals are ordered by a hash of product, instruction (without the price limit, which is drawn at random), attributes
    and options; equal goals share a split. `valid` and `test` get `num_eval` distinct goals each, at most a quarter.

    Raises:
      ValueError: there are fewer than 4 distinct goals, or `num_eval` is not positive.
    """
    groups: dict[str, list[int]] = {}
    for number, goal in enumerate(goals):
        groups.setdefault(_content(goal, seed), []).append(number)
    count = min(num_eval, len(groups) // 4)
    if count < 1:
        raise ValueError(
            f"{len(groups)} distinct goals and num_eval = {num_eval} leave a split empty; give at least 4 goals."
        )
    ordered = [groups[key] for key in sorted(groups)]
    parts = {"train": ordered[2 * count :], "valid": ordered[count : 2 * count], "test": ordered[:count]}
    return {name: [number for group in part for number in group] for name, part in parts.items()}


def _official_split(goals: Sequence[Goal]) -> dict[str, list[int]]:
    ranges = {"test": _OFFICIAL_TEST, "valid": _OFFICIAL_VALID, "train": range(_OFFICIAL_VALID.stop, len(goals))}
    splits: dict[str, list[int]] = {}
    seen: set[str] = set()
    for name, numbers in ranges.items():
        contents = {number: _content(goals[number]) for number in numbers}
        splits[name] = [number for number, content in contents.items() if content not in seen]
        seen.update(contents.values())
    return splits


def _content(goal: Goal, seed: int = 0) -> str:
    """A hash of what is asked for, the same in every order of products and goals."""
    text = _PRICE_CLAUSE.sub("", goal["instruction_text"])
    parts = [seed, goal["asin"], text, sorted(goal["attributes"]), goal["goal_options"]]
    return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=16).hexdigest()


def _suite(
    load: Callable[[], Catalogue], mode: str, show_attributes: bool, splits: Mapping[str, list[int]]
) -> TaskSuite:
    _env(load, mode, show_attributes)  # a wrong argument must fail here, not in a worker
    return TaskSuite(
        make_env=functools.partial(_env, load, mode, show_attributes),
        splits={name: [{"options": {"goal": number}} for number in numbers] for name, numbers in splits.items()},
        phrases=_phrases(load()),
    )


def _phrases(catalogue: Catalogue) -> tuple[str, ...]:
    """Page labels and verbs; of a small shop also every product id, kind, attribute, option, price and price limit."""
    phrases: dict[str, None] = dict.fromkeys(_LABELS)
    if len(catalogue.products) > _MANY_PRODUCTS:
        return tuple(phrases)
    for product in catalogue.products.values():
        phrases |= dict.fromkeys([product["asin"].lower(), product["query"], *map(str.lower, product["Attributes"])])
        phrases |= dict.fromkeys(f"${price}" for price in product["pricing"])
        for name, values in product["options"].items():
            phrases |= dict.fromkeys([name, f"{name}:", *values])
    clauses = (_PRICE_CLAUSE.search(goal["instruction_text"]) for goal in catalogue.goals)
    return tuple(phrases | dict.fromkeys(match[0] for match in clauses if match))


def _env(load: Callable[[], Catalogue], mode: str, show_attributes: bool) -> WebShopEnv:
    return WebShopEnv(load(), mode, show_attributes)


# One catalogue a process, however many environments it makes.
@functools.lru_cache(maxsize=2)
def _generated(seed: int, num_products: int, human_goals: bool) -> Catalogue:
    records = generator.generate(seed, num_products)
    return Catalogue.from_records(
        records.items,
        records.attributes,
        records.instructions,
        human_goals=human_goals,
        seed=seed,
        nouns=Nouns(records.nouns),
        compat="fixed",
    )


@functools.lru_cache(maxsize=2)
def _from_files(
    items: str,
    attributes: str,
    instructions: str | None,
    human_goals: bool,
    seed: int,
    nouns: str | None,
    num_products: int | None,
    compat: str,
) -> Catalogue:
    return Catalogue.from_files(
        items,
        attributes,
        instructions,
        human_goals=human_goals,
        seed=seed,
        nouns=nouns,
        num_products=num_products,
        compat=compat,
    )

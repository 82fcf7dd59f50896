"""Hidden prices and goals, in the official order of random draws: prices, then one price limit per instruction."""

import bisect
import functools
import itertools
import operator
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rspo_jax.envs.webshop.files import DataError, text, texts

Goal = dict[str, Any]
Json = Mapping[str, Any]

NO_LIMIT = 1000000
_LIMITS = tuple(10.0 * tens for tens in range(1, 100))
_CANDIDATES = 4


def draw_prices(products: Iterable[Json], rng: random.Random) -> dict[str, float]:
    """The price of every product; a product with a price range gets one uniform draw from it."""
    return {
        product["asin"]: pricing[0] if len(pricing := product["pricing"]) == 1 else rng.uniform(*pricing)
        for product in products
    }


def _draw_limit(price: float, rng: random.Random) -> tuple[float, str]:
    """A price limit above `price`, and the clause that tells it; no limit for the dearest products."""
    start = bisect.bisect_right(_LIMITS, price)
    candidates = list(_LIMITS[start : start + _CANDIDATES])
    if len(candidates) < 2:
        return NO_LIMIT, ""
    limit = max(rng.sample(candidates, 2))
    return limit, f", and price lower than {limit:.2f} dollars"


def human_goals(
    products: Iterable[Json], prices: Mapping[str, float], instructions: Json, rng: random.Random
) -> list[Goal]:
    """One goal per written instruction that names an attribute; `goal_options` is a list of values, weight 1.

    Raises:
      DataError: an instruction record is malformed.
    """
    goals = []
    for product in products:
        asin = product["asin"]
        try:
            for record in instructions.get(asin, ()):
                if record["instruction_attributes"]:
                    limit, clause = _draw_limit(prices[asin], rng)
                    instruction = text(record["instruction"], "instruction").strip(".") + clause
                    wanted, options = (
                        texts(record[key], key) for key in ("instruction_attributes", "instruction_options")
                    )
                    goals.append(_goal(product, instruction, wanted, limit, options, 1))
        except KeyError as error:
            raise DataError("instructions", f"a record of {asin} has no key {error}.") from None
        except (TypeError, AttributeError) as error:
            raise DataError("instructions", f"a record of {asin} is malformed ({error}).") from None
    return goals


def synthetic_goals(
    products: Iterable[Json], prices: Mapping[str, float], attributes: Json, rng: random.Random
) -> list[Goal]:
    """One goal per product with an instruction and per combination of its option values.

    `goal_options` is a dictionary, names sorted; the weight is the mean of 1 / (goals with the attribute).

    Raises:
      DataError: a product is missing in `attributes`, or an instruction names no attribute.
    """
    goals: list[Goal] = []
    for product in products:
        asin = product["asin"]
        if (record := attributes.get(asin)) is None:
            raise DataError("attributes", f"no record for product {asin}; synthetic goals need one for each product.")
        if (instruction := record.get("instruction")) is None:
            continue
        if not (wanted := record.get("instruction_attributes")):
            raise DataError("attributes", f"the instruction of {asin} needs a non-empty 'instruction_attributes'.")
        try:
            wanted = texts(wanted, "instruction_attributes")
        except TypeError as error:
            raise DataError("attributes", f"the record of {asin} is malformed ({error}).") from None
        limit, clause = _draw_limit(prices[asin], rng)
        for options in _combinations(product["options"]):
            chosen = ", and ".join(f"{name}: {value}" for name, value in options.items())
            full = f"{instruction}{' with ' + chosen if chosen else ''}{clause}"
            goals.append(_goal(product, full, wanted, limit, options, 0))
    counts = Counter(attribute for goal in goals for attribute in goal["attributes"])
    for goal in goals:
        goal["weight"] = _mean([1.0 / counts[attribute] for attribute in goal["attributes"]])
    return goals


def _mean(numbers: Sequence[float]) -> float:
    """Added from left to right: since Python 3.12 `sum` rounds otherwise, and weights must equal the official ones."""
    return functools.reduce(operator.add, numbers) / len(numbers)


def _combinations(options: Mapping[str, Sequence[str]]) -> Iterator[dict[str, str]]:
    names = sorted(options)
    return (dict(zip(names, values, strict=True)) for values in itertools.product(*(options[name] for name in names)))


def _goal(product: Json, instruction: str, attributes: list[str], limit: float, options: Any, weight: float) -> Goal:
    return {
        **{key: product[key] for key in ("asin", "category", "query", "name", "product_category")},
        "instruction_text": instruction,
        "attributes": attributes,
        "price_upper": limit,
        "goal_options": options,
        "weight": weight,
    }


def cumulative_weights(goals: Sequence[Goal]) -> list[float]:
    """[0, w0, w0 + w1, ...]."""
    return [0, *itertools.accumulate(goal["weight"] for goal in goals)]


def draw_goal(cumulative: Sequence[float], rng: random.Random) -> int:
    """A goal in proportion to its weight, as the official environment draws it: one place too far.

    Goal 0 is never drawn, goal i has the weight of goal i - 1, and the last one its own in addition.
    """
    position = rng.uniform(0, cumulative[-1])
    return min(bisect.bisect(cumulative, position), len(cumulative) - 2)

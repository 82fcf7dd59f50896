"""The reward of a purchase: right kind of product, attributes, options and price.

S. Yao et al., "WebShop: Towards Scalable Real-World Web Interaction with Grounded Language Agents", NeurIPS 2022, as
the public environment computes it, quirks included: options of synthetic goals are compared as (name, value) pairs in
text form, so that a value that contains a colour word may not match itself.
"""

from collections.abc import Mapping
from typing import Any

from rspo_jax.envs.webshop import nouns
from rspo_jax.envs.webshop.fuzzy import matches, normalize_color

Json = Mapping[str, Any]


def reward(
    product: Json, goal: Json, price: float, options: Mapping[str, str], *, exact_options: bool = False
) -> tuple[float, dict[str, Any]]:
    """What buying `product` at `price` with `options` (name -> value) is worth for `goal`.

        r_type * (matched attributes + matched options + [price <= limit]) / (attributes + options + 1)

    Args:
      product: official keys; a `Product` brings its own nouns of titles, for any other mapping the rule finds them.
      exact_options: a wanted option also counts if exactly its name and value were chosen.

    Returns:
      The reward in [0, 1] and its parts: r_type, r_att, r_option, r_price with weights w_*, query_match,
      category_match, title_score. r_option and w_option only if the goal has options.
    """
    wanted = goal["goal_options"]
    attributes = count_attributes(product, goal["attributes"])
    chosen = count_options(options, wanted, exact_options)
    affordable = price <= goal["price_upper"]
    parts = len(goal["attributes"]) + len(wanted) + 1
    info = _kind(product, goal)
    total = (attributes + chosen + affordable) / parts * info["r_type"]
    info |= {"r_att": attributes / len(goal["attributes"]), "w_att": len(goal["attributes"]) / parts}
    if wanted:
        info |= {"r_option": chosen / len(wanted), "w_option": len(wanted) / parts}
    info |= {"r_price": affordable, "w_price": 1 / parts}
    return total, info


def _kind(product: Json, goal: Json) -> dict[str, Any]:
    """Whether the product is of the wanted kind, by search phrase, category path and nouns of the title."""
    query_match = product["query"] == goal["query"]
    category_match = len(_categories(product) & _categories(goal)) >= 2
    find_nouns = getattr(product, "nouns", nouns.rule)
    wanted = find_nouns(goal["name"])
    title_score = len({*find_nouns(product["name"])} & {*wanted}) / len(wanted) if wanted else 0.2
    if title_score == 0.0:
        r_type = 0.0
    elif title_score < 0.1:
        r_type = 0.1
    else:
        r_type = 1.0 if query_match or category_match or title_score > 0.2 else 0.5
    return {"r_type": r_type, "query_match": query_match, "category_match": category_match, "title_score": title_score}


def _categories(record: Json) -> set[str]:
    return {part.strip() for part in record["product_category"].split("›")}


def count_attributes(product: Json, wanted: list[str]) -> int:
    """How many wanted attributes the product has: among its attributes, or word for word in its texts."""
    texts = (product["Title"].lower(), " ".join(product["BulletPoints"]).lower(), product["Description"].lower())
    return sum(
        any(matches(own, attribute) for own in product["Attributes"]) or any(attribute in text for text in texts)
        for attribute in wanted
    )


def count_options(options: Mapping[str, str], wanted: Mapping[str, str] | list[str], exact: bool = False) -> int:
    """How many wanted options match a chosen value, of whichever option."""
    pairs = wanted.items() if isinstance(wanted, Mapping) else wanted
    return sum(
        any(option_matches(value, option) for value in options.values())
        or (exact and isinstance(option, tuple) and options.get(option[0]) == option[1])
        for option in pairs
    )


def option_matches(value: str, wanted: str | tuple[str, str]) -> bool:
    """Whether a chosen value counts as the wanted option: a text, or a (name, value) pair of a synthetic goal."""
    return matches(normalize_color(value), normalize_color(wanted))


def exact_options(product: Json, goal: Json) -> dict[str, str]:
    """The options to choose on the goal's product: of a synthetic goal those it names.

    A written goal lists values only: for each option the value that matches most of the values not yet matched, and of
    those an equal one.
    """
    if isinstance(goal["goal_options"], Mapping):
        return dict(goal["goal_options"])
    chosen, missing = {}, list(goal["goal_options"])
    for name, values in product["options"].items():
        found = {value: [option for option in missing if option_matches(value, option)] for value in values}
        best = max(values, key=lambda value: (len(found[value]), value in missing), default=None)
        if best is not None and found[best]:
            chosen[name] = best
            missing = [option for option in missing if option not in found[best]]
    return chosen

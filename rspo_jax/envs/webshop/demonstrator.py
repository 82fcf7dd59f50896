"""A scripted shopper that knows the goal, with adjustable skill: the teacher of the imitation mode."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np

from rspo_jax.envs.webshop.env import WebShopEnv
from rspo_jax.envs.webshop.pages import PAGE_SIZE

Info = Mapping[str, Any]

_WORD = re.compile(r"[^\W_]+")
_PRICE_CLAUSE = ", and price lower than "
_PATIENCE = 2
"""Result pages that the shopper is ready to read."""

# Chance of each kind of mistake, where the page allows it.
_ON_RESULTS = {"product": 0.7, "next >": 0.15, "back to search": 0.15}
_ON_ITEM = {"buy now": 0.35, "option": 0.3, "sub page": 0.15, "< prev": 0.1, "back to search": 0.1}


def demonstrator(env: gymnasium.Env, rng: np.random.Generator, skill: float) -> Callable[[str, Info], str]:
    """A policy (observation, info) -> action that reads the hidden state of `env`.

    At each decision it is right with probability `skill`: it searches with those words of the instruction that name
    attributes and kind of product, opens the goal's product, chooses every wanted option and buys. Otherwise it makes a
    plausible mistake: it searches with some of the words, opens another product, turns the page, chooses a wrong value,
    reads the description, goes back, or buys too early. What follows a mistake is again right with probability `skill`.

    Args:
      env: a `WebShopEnv`, wrapped or not, in this process.
      skill: in [0, 1].
    """
    if not 0.0 <= skill <= 1.0:
        raise ValueError(f"skill = {skill} must be in [0, 1].")
    shop: WebShopEnv = env.unwrapped

    def act(observation: str, info: Info) -> str:
        right = _right(shop, info)
        return right if rng.random() < skill else _mistake(shop, info, right, rng)

    return act


def keywords(goal: Mapping[str, Any]) -> list[str]:
    """Words of the instruction that name the goal's attributes or kind of product, in its order."""
    wanted = set(_WORD.findall(" ".join([*goal["attributes"], goal["query"]]).lower()))
    words = _WORD.findall(goal["instruction_text"].lower().partition(_PRICE_CLAUSE)[0])
    return list(dict.fromkeys(word for word in words if word in wanted)) or sorted(wanted)


def _right(shop: WebShopEnv, info: Info) -> str:
    asin, options = shop.catalogue.solution(shop.session.goal)
    clickables = info["clickables"]
    if info["has_search_bar"]:
        return f"search[{_best_query(shop, asin)}]"
    if "next >" in clickables:
        return f"click[{_towards(shop, asin, clickables)}]"
    if "buy now" not in clickables or shop.session.asin != asin:
        return "click[< prev]"
    chosen = shop.session.options.values()
    missing = [value for value in options.values() if value in clickables and value not in chosen and "[" not in value]
    return f"click[{missing[0] if missing else 'buy now'}]"


def _best_query(shop: WebShopEnv, asin: str) -> str:
    """The instruction's words if they lead to the product, else what is known of it."""
    goal = shop.goals[shop.session.goal]
    words = keywords(goal)
    options = goal["goal_options"]
    values = options.values() if isinstance(options, Mapping) else options
    queries = [words, [*words, *values], [goal["name"].lower()]]
    found = (" ".join(query) for query in queries if asin in shop.search(" ".join(query), _PATIENCE * PAGE_SIZE))
    return next(found, goal["name"].lower())


def _towards(shop: WebShopEnv, asin: str, clickables: list[str]) -> str:
    """What to click on a results page."""
    if asin.lower() in clickables:
        return asin.lower()
    found = shop.search(" ".join(shop.session.keywords))
    here, there = shop.session.page, found.index(asin) // PAGE_SIZE + 1 if asin in found else _PATIENCE + 1
    if there > _PATIENCE:
        return "back to search"
    return "next >" if there > here else "< prev"


def _mistake(shop: WebShopEnv, info: Info, right: str, rng: np.random.Generator) -> str:
    clickables = info["clickables"]
    if info["has_search_bar"]:
        words = keywords(shop.goals[shop.session.goal])
        kept = rng.permutation(len(words))[: rng.integers(1, max(2, len(words)))]
        return f"search[{' '.join(words[i] for i in sorted(kept))}]"
    if "next >" in clickables:
        products = [label for label in clickables if label not in ("back to search", "< prev", "next >")]
        choices, chances = {"product": products}, _ON_RESULTS
    elif "buy now" in clickables:
        sub_pages = ("description", "features")
        options = clickables[clickables.index("buy now") + 1 :]
        choices, chances = {"sub page": sub_pages, "option": options}, _ON_ITEM
    else:
        return "click[back to search]"
    kinds = {kind: [c for c in choices.get(kind, [kind]) if f"click[{c}]" != right] for kind in chances}
    kinds = {kind: labels for kind, labels in kinds.items() if labels}
    shares = np.array([chances[kind] for kind in kinds])
    labels = kinds[list(kinds)[rng.choice(len(kinds), p=shares / shares.sum())]]
    return f"click[{labels[rng.integers(len(labels))]}]"

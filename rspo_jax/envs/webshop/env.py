"""The WebShop text environment (S. Yao et al., NeurIPS 2022), in process and without a web server.

Observations, clickables, page addresses, rewards and the order of random draws equal those of the public environment;
what crashes that one is a no-op here: a search for "<a> ...", for "<c>" alone, for "<r>" with fewer than 50 products,
and a click that would open a product the shop does not have.
"""

import json
import random
import re
import string
from collections import Counter
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from typing import Any

import gymnasium

from rspo_jax.envs.base import FREE_TEXT, TextSpace
from rspo_jax.envs.webshop import goals, pages
from rspo_jax.envs.webshop.catalog import Catalogue

BASE_URL = "http://127.0.0.1:3000"
WIN_REWARD = 10.0
OBSERVATION_MODES = ("text", "text_rich")
_RANDOM_PRODUCTS = 50
_PAGE_NAMES = ("search_results", "item_page", "item_sub_page", "done")
_ACTION = re.compile(r"(.+)\[(.+)\]")

Info = dict[str, Any]


def parse_action(action: str) -> tuple[str, str | None]:
    """("verb", "argument") of "verb[argument]"; (action, None) for anything else."""
    match = _ACTION.match(action)
    return match.groups() if match else (action, None)


@dataclass
class Session:
    """What the shop remembers of a customer: the search, the product, the options chosen, and counts of page views."""

    name: str
    goal: int
    keywords: list[str] | None = None
    page: int | None = None
    asin: str | None = None
    asins: set[str] = field(default_factory=set)
    options: dict[str, str] = field(default_factory=dict)
    actions: Counter[str] = field(default_factory=Counter)


class WebShopEnv(gymnasium.Env):
    """Buy what the instruction asks for: "search[words]", "click[what a page shows]", "click[buy now]".

    Reward: 10 when a purchase is worth exactly 1, else 0; the purchase's own worth in [0, 1] is `info["score"]`. A
    purchase terminates the episode; as in the public environment, a later search goes on in the same session. There
    is no limit of steps. An action that cannot be carried out changes nothing.

    Info: task, admissible_actions, clickables, has_search_bar, url, won, score, progress (the highest worth so far of
    the product on view with the options chosen), anchor (the plain text without instruction), task_type.

    Args:
      catalogue: the shop; any number of environments can share one.
      observation_mode: "text" (segments between separators) or "text_rich" (lines with marked buttons and choices).
      show_attributes: whether product pages have an "Attributes" button.
    """

    metadata = {"render_modes": []}

    def __init__(self, catalogue: Catalogue, observation_mode: str = "text", show_attributes: bool = False):
        if observation_mode not in OBSERVATION_MODES:
            raise ValueError(f"observation_mode = {observation_mode!r} is unknown; use one of {OBSERVATION_MODES}.")
        self.catalogue = catalogue
        self.observation_mode = observation_mode
        self.show_attributes = show_attributes
        self.observation_space = self.action_space = TextSpace()
        self.session: Session | None = None
        self._random = random.Random()
        self._random.setstate(catalogue.random_state)
        self._draw_session()  # The public environment starts a session on construction.

    @classmethod
    def from_files(
        cls,
        items: str | Path,
        attributes: str | Path,
        instructions: str | Path | None = None,
        *,
        observation_mode: str = "text",
        show_attributes: bool = False,
        **options: Any,
    ) -> "WebShopEnv":
        """An environment with a shop of its own; `options` are those of `Catalogue.from_files`."""
        return cls(Catalogue.from_files(items, attributes, instructions, **options), observation_mode, show_attributes)

    @property
    def goals(self) -> list[goals.Goal]:
        return self.catalogue.goals

    @property
    def products(self) -> dict[str, dict[str, Any]]:
        return self.catalogue.products

    @property
    def product_prices(self) -> dict[str, float]:
        return self.catalogue.product_prices

    def search(self, query: str, k: int = 50) -> list[str]:
        """The asins of the `k` best products for a query, best first."""
        return self.catalogue.search(query, k)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        """Starts an episode.

        Args:
          seed: restarts the random stream, as `random.seed(seed)` would.
          options: {"goal": i} picks a goal by number; otherwise one is drawn by weight.

        Raises:
          ValueError: there is no such goal, or an option is unknown.
        """
        super().reset(seed=seed)
        if seed is not None:
            self._random.seed(seed)
        options = options or {}
        if unknown := options.keys() - {"goal"}:
            raise ValueError(f"reset options {sorted(unknown)} are unknown; the only option is 'goal'.")
        if "goal" in options:
            self.session = self._numbered_session(options["goal"])
        else:
            self.session = self._draw_session()
        self._best, self._score, self._won = 0.0, 0.0, False
        self._open_index()
        self._task = pages.task_of(pages.plain_text(self._page))
        return self._observe()

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """Carries out one action; see the class.

        Raises:
          ValueError: the action is not a string. gymnasium.error.ResetNeeded: the environment was never reset.
        """
        if self.session is None:
            raise gymnasium.error.ResetNeeded("Call reset() before step().")
        if not isinstance(action, str):
            raise ValueError(f"An action is a string such as 'search[red shoes]', not {type(action).__name__}.")
        self._score, self._won = 0.0, False
        verb, argument = parse_action(action)
        argument = (argument or "").lower()
        bought = False
        if verb == "search" and argument:
            self._open_results(argument.split(" "), 1)
        elif verb == "click" and argument in self._page.clickables and argument != "search":
            bought = self._click(argument)
        observation, info = self._observe()
        return observation, WIN_REWARD if self._won else 0.0, bought, False, info

    def _numbered_session(self, goal: int) -> Session:
        if not isinstance(goal, Integral) or not 0 <= goal < len(self.goals):
            raise ValueError(f"goal = {goal!r} does not exist; this shop has goals 0 to {len(self.goals) - 1}.")
        return Session(str(int(goal)), int(goal))

    def _draw_session(self) -> Session:
        name = "".join(self._random.choices(string.ascii_lowercase, k=10))
        return Session(name, goals.draw_goal(self.catalogue.cumulative_weights, self._random))

    @property
    def _instruction(self) -> str:
        return self.goals[self.session.goal]["instruction_text"]

    def _observe(self) -> tuple[str, Info]:
        text = pages.plain_text(self._page)
        clickables = list(self._page.clickables)
        admissible = [f"search[{FREE_TEXT}]"] if self._page.has_search_bar else []
        admissible += [f"click[{label}]" for label in clickables if label != "search"]
        info = {
            "task": self._task,
            "admissible_actions": admissible,
            "clickables": clickables,
            "has_search_bar": self._page.has_search_bar,
            "url": self._url,
            "won": self._won,
            "score": self._score,
            "progress": self._best,
            "anchor": pages.anchor(text, self._task),
            "task_type": "",
        }
        if self.observation_mode == "text_rich":
            text = pages.rich_text(self._page, self._url, self.session.asins)
        return text, info

    def _page_name(self) -> str:
        """The kind of page, by the first name that the address contains: words of a query can mislead it."""
        return next((name for name in _PAGE_NAMES if name in self._url), "")

    def _click(self, label: str) -> bool:
        """Follows a click; whether it was a purchase."""
        session, here = self.session, self._page_name()
        if label == pages.BUY.lower():
            self._buy()
            return True
        if label == pages.BACK.lower():
            self.session = Session(session.name, session.goal)
            self._open_index()
        elif here == "search_results" and label in (pages.NEXT.lower(), pages.PREVIOUS.lower()):
            self._open_results(session.keywords, session.page + (1 if label == pages.NEXT.lower() else -1))
        elif here == "item_page" and label == pages.PREVIOUS.lower():
            self._open_results(session.keywords, session.page)
        elif label in map(str.lower, pages.SUB_PAGES):
            self._open_sub_page(label)
        else:
            self._open_item(self._page.clickables[label], label)
        return False

    def _open_index(self) -> None:
        self._page = pages.index_page(self._instruction)
        self._url = f"{BASE_URL}/{self.session.name}"

    def _open_results(self, keywords: list[str], number: int) -> None:
        try:
            found = self._find(keywords)
        except LookupError:
            return
        session = self.session
        session.keywords, session.page, session.asin, session.options = keywords, number, None, {}
        session.actions["search"] += 1
        self._page = pages.results_page(self._instruction, number, found)
        self._url = f"{BASE_URL}/search_results/{session.name}/{'+'.join(keywords)}/{number}"

    def _find(self, keywords: list[str]) -> list[dict[str, Any]]:
        """The products of a search. A first word <q>, <c> or <r> asks for a query phrase, a category, or random
        products.

        Raises:
          LookupError: the public environment would crash.
        """
        kind, rest = keywords[0], keywords[1:]
        if kind == "<a>" or (kind == "<r>" and len(self.products) < _RANDOM_PRODUCTS):
            raise LookupError(kind)
        if kind == "<r>":
            return self._random.sample(list(self.products.values()), k=_RANDOM_PRODUCTS)
        if kind == "<c>":
            category = rest[0].strip()
            return [product for product in self.products.values() if product["category"] == category]
        if kind == "<q>":
            query = " ".join(rest).strip()
            return [product for product in self.products.values() if product["query"] == query]
        return [self.products[asin] for asin in self.search(" ".join(keywords))]

    def _open_item(self, clicked: pages.Node, label: str) -> None:
        session = self.session
        if clicked.kind == pages.LINK:
            asin = label.upper()
            if asin not in self.products:
                return
            session.asin = asin
            session.asins.add(asin)
            session.actions["asin"] += 1
        elif session.asin is None:
            return
        elif clicked.kind == pages.OPTION:
            session.options[clicked.group.lower()] = label
            session.actions["options"] += 1
        self._page = pages.item_page(self._instruction, self.products[session.asin], self.show_attributes)
        self._url = f"{BASE_URL}/item_page/{self._product_path()}/{json.dumps(session.options)}"
        self._track_progress()

    def _open_sub_page(self, label: str) -> None:
        session = self.session
        title = next(name for name in pages.SUB_PAGES if name.lower() == label)
        session.actions[title] += 1
        self._page = pages.sub_page(self._instruction, self.products[session.asin], title)
        self._url = f"{BASE_URL}/item_sub_page/{self._product_path()}/{title}/{session.options}"
        self._track_progress()

    def _product_path(self) -> str:
        session = self.session
        return f"{session.name}/{session.asin}/{'+'.join(session.keywords)}/{session.page}"

    def _buy(self) -> None:
        session = self.session
        session.actions["purchase"] += 1
        self._score, _ = self.catalogue.purchase(session.goal, session.asin, session.options)
        self._won = self._score == 1.0
        self._page = pages.done_page(session.asin, session.options, self._score)
        self._url = f"{BASE_URL}/done/{session.name}/{session.asin}/{session.options}"

    def _track_progress(self) -> None:
        worth, _ = self.catalogue.purchase(self.session.goal, self.session.asin, self.session.options)
        self._best = max(self._best, worth)

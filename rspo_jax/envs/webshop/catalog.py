"""The shop: products, prices, goals and search, shared by all environments of a process."""

import functools
import random
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from rspo_jax.envs.webshop import files, goals
from rspo_jax.envs.webshop.nouns import Nouns
from rspo_jax.envs.webshop.products import Product, parse_products, search_text
from rspo_jax.envs.webshop.reward import exact_options, reward
from rspo_jax.envs.webshop.search import Index

Json = Mapping[str, Any]

COMPAT = ("official", "fixed")
SHUFFLE_SEED = 233
_CACHED_REWARDS = 1 << 15


class Catalogue:
    """Products, prices, goals and the search index. Nothing in it changes after construction, except caches.

    Attributes:
      products: asin -> product with the official keys, in file order.
      product_prices: asin -> price.
      goals: goals with the official keys, in their final (shuffled) order.
      cumulative_weights: [0, w0, w0 + w1, ...] of the goals' weights.
      random_state: state of the random stream after construction; an environment goes on from here.
    """

    def __init__(self, products: Sequence[Product], goals_of: Any, *, seed: int, shuffle_seed: int, compat: str):
        rng = random.Random(seed)
        self.products = {product["asin"]: product for product in products}
        self.product_prices = goals.draw_prices(products, rng)
        self.goals: list[goals.Goal] = goals_of(products, self.product_prices, rng=rng)
        if not self.goals:
            raise ValueError(
                "The data holds no goal: no product has an instruction; human goals need them in the instructions "
                "file, synthetic ones in the attributes file."
            )
        rng.seed(shuffle_seed)
        rng.shuffle(self.goals)
        self.cumulative_weights = goals.cumulative_weights(self.goals)
        self.random_state = rng.getstate()
        self.compat = compat
        self._index = Index(list(self.products), map(search_text, products))
        self._rewards: OrderedDict[tuple, tuple[float, dict[str, Any]]] = OrderedDict()

    @classmethod
    def from_records(
        cls,
        items: Iterable[Json],
        attributes: Json,
        instructions: Json | None = None,
        *,
        human_goals: bool = False,
        seed: int = 0,
        shuffle_seed: int = SHUFFLE_SEED,
        nouns: Nouns | None = None,
        compat: str = "official",
    ) -> "Catalogue":
        """Builds the shop from records in the official schema.

        Args:
          items: product records. attributes: asin -> attributes and synthetic instruction. instructions: asin ->
            written instructions; needed if `human_goals`.
          human_goals: goals from `instructions` instead of synthetic ones.
          seed: the random stream of prices and price limits, as if `random.seed(seed)` came just before construction.
          shuffle_seed: the order of the goals.
          compat: "official" scores as the public environment does. In "fixed" a wanted option also counts if exactly
            its name and value were chosen, and the goal's own product with exactly the wanted options is worth 1:
            every goal can be won.

        Raises:
          DataError: a record is malformed or missing. ValueError: an argument is wrong, or there is no goal.
        """
        if compat not in COMPAT:
            raise ValueError(f"compat = {compat!r} is unknown; use one of {COMPAT}.")
        if human_goals and instructions is None:
            raise ValueError("human_goals = True needs instructions (items_human_ins.json).")
        products = list(parse_products(items, attributes, nouns or Nouns()))
        goals_of = (
            functools.partial(goals.human_goals, instructions=instructions)
            if human_goals
            else functools.partial(goals.synthetic_goals, attributes=attributes)
        )
        return cls(products, goals_of, seed=seed, shuffle_seed=shuffle_seed, compat=compat)

    @classmethod
    def from_files(
        cls,
        items: str | Path,
        attributes: str | Path,
        instructions: str | Path | None = None,
        *,
        nouns: str | Path | None = None,
        num_products: int | None = None,
        **options: Any,
    ) -> "Catalogue":
        """Builds the shop from the official files; a path may end in .gz.

        Args:
          nouns: JSON lines {"title", "nouns"}; "spacy" for the installed spaCy model; None for the rule.
          num_products: only the first so many records of `items`; None for all.
          options: see `from_records`.

        Raises:
          FileNotFoundError: a file is missing. ValueError: a file is malformed; the message names it.
        """
        if num_products is not None and num_products < 1:
            raise ValueError(f"num_products = {num_products} must be at least 1, or None for all.")
        paths = {"items": items, "attributes": attributes, "instructions": instructions}
        try:
            return cls.from_records(
                islice(files.iterate_list(items), num_products),
                files.read_object(attributes),
                None if instructions is None else files.read_object(instructions),
                nouns=Nouns.load(nouns),
                **options,
            )
        except files.DataError as error:
            raise ValueError(f"{str(paths[error.part])!r}: {error.problem}") from None

    def search(self, query: str, k: int = 50) -> list[str]:
        """The asins of the `k` best products for a query, best first."""
        return list(self._index.search(query, k))

    def purchase(self, goal: int, asin: str, options: Mapping[str, str]) -> tuple[float, dict[str, Any]]:
        """Reward and its parts for buying a product with `options` while pursuing goal number `goal`."""
        key = (goal, asin, *options.items())
        if (known := self._rewards.get(key)) is None:
            known = self._rewards[key] = self._purchase(self.goals[goal], self.products[asin], options)
            if len(self._rewards) > _CACHED_REWARDS:
                self._rewards.popitem(last=False)
        return known

    def _purchase(self, goal: Json, product: Json, options: Mapping[str, str]) -> tuple[float, dict[str, Any]]:
        fixed = self.compat == "fixed"
        score, info = reward(product, goal, self.product_prices[product["asin"]], options, exact_options=fixed)
        if fixed and product["asin"] == goal["asin"] and exact_options(product, goal).items() <= options.items():
            score = 1.0
        return score, info

    def solution(self, goal: int) -> tuple[str, dict[str, str]]:
        """The product and the options (name -> value) that goal number `goal` asks for."""
        wanted = self.goals[goal]
        return wanted["asin"], exact_options(self.products[wanted["asin"]], wanted)

"""A generated WebShop catalogue: invented products, attributes and instructions in the official file schema.

Products come in clusters of four of one type: a base product and three that miss exactly one thing of it (an
attribute, an option value, or a low price), so that a search ranks them side by side and only reading tells them apart.
The text is short and from a small closed vocabulary, so that a transformer of 0.1M parameters can learn to read it.
"""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product as cartesian
from pathlib import Path
from typing import Any, NamedTuple

Json = dict[str, Any]

CLUSTER = 4
"""Products of one cluster."""


class Records(NamedTuple):
    """The three official files, as Python objects.

    items: the products (`items_shuffle.json`).
    attributes: asin -> attributes and one synthetic instruction (`items_ins_v2.json`).
    instructions: asin -> instruction records, as people would have written them (`items_human_ins.json`).
    nouns: title -> the words of its product type. Without them (the rule takes every word for a noun) a product of
      another type that shares a few words is as good as the wanted one.
    """

    items: list[Json]
    attributes: dict[str, Json]
    instructions: dict[str, list[Json]]
    nouns: dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class _Department:
    """types: product types; attributes: what its products may be; options: option name -> values.

    root: first part of the category path; the type is the other. Two shared parts would make every product of the
    department as good as the wanted type.
    """

    category: str
    root: str
    types: tuple[str, ...]
    attributes: tuple[str, ...]
    options: Mapping[str, tuple[str, ...]]


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(","))


# No value contains a colour word other than itself, and no two values of a department are alike to the fuzzy matching
# of the reward ("x-large" would count as "large").
_COLORS = _words("navy, teal, black, white, purple, green, pink, gold, red, yellow, brown")

_DEPARTMENTS = (
    _Department(
        "fashion",
        "Clothing",
        _words("sneakers, sandals, hoodie, cardigan, leggings, raincoat, bucket hat, ankle boots"),
        _words(
            "machine washable, slip resistant, quick dry, moisture wicking, hand sewn, light weight, water repellent, "
            "soft lined, classic fit, daily wear, wind proof, recycled fabric"
        ),
        {"color": _COLORS, "size": _words("small, medium, large, petite, tall, plus")},
    ),
    _Department(
        "grocery",
        "Grocery",
        _words("granola, trail mix, herbal tea, crackers, fruit snacks, hot sauce, popcorn, protein bars"),
        _words(
            "gluten free, dairy free, low sodium, high fiber, non gmo, plant based, kosher certified, stone ground, "
            "hand picked, keto friendly, whole grain, slow roasted"
        ),
        {
            "flavor": _words("vanilla, honey, cinnamon, ginger, berry, cocoa, maple, garlic"),
            "pack": _words("single, twin, family, jumbo, sampler"),
        },
    ),
    _Department(
        "beauty",
        "Beauty",
        _words("shampoo, body lotion, lip balm, face serum, hand cream, bath salts, conditioner, hair mask"),
        _words(
            "cruelty free, paraben free, long lasting, deep moisture, sensitive skin, anti aging, plant extract, "
            "clinically tested, fast absorbing, damage repair, color safe, certified organic"
        ),
        {
            "scent": _words("cedar, jasmine, citrus, coconut, almond, eucalyptus, melon, unscented"),
            "bottle": _words("travel, regular, value, salon, refill"),
        },
    ),
    _Department(
        "garden",
        "Home",
        _words("desk lamp, throw pillow, area rug, bookshelf, wall clock, curtains, bar stool, blanket"),
        _words(
            "easy assembly, solid wood, space saving, stain resistant, non toxic, hand woven, mid century, "
            "noise reducing, eco friendly, heavy duty, scratch proof, spot clean"
        ),
        {"color": _COLORS, "finish": _words("matte, glossy, satin, brushed, woven")},
    ),
    _Department(
        "electronics",
        "Electronics",
        _words("headphones, phone case, power bank, keyboard, wall charger, speaker, tripod, smart watch"),
        _words(
            "fast charging, noise cancelling, splash proof, long battery, shock absorbing, hands free, ultra slim, "
            "dual band, high resolution, tangle free, travel friendly, low latency"
        ),
        {"color": _COLORS, "style": _words("basic, deluxe, compact, rugged, bundle")},
    ),
)

_BRANDS = _words("Nordvik, Tavola, Brightly, Oakmere, Lumora, Fennick, Solway, Kestrel, Marlow, Pindar")
_OPENINGS = _words("i need, i want, find me, i am looking for")
_LOW_PRICES = (8.99, 11.5, 14.99, 17.99, 22.5, 26.99, 31.99, 34.5, 38.99, 43.99, 47.5, 52.99)
_HIGH_PRICES = (64.99, 78.5, 89.99, 96.99, 112.5, 127.99)
_RANGE_SHARE = 0.15
# Option groups of 20 clusters; for a product with 0, 1 or 2 groups, how many records ask for 0, 1, 2 options.
_OPTION_GROUPS = (0,) * 2 + (1,) * 6 + (2,) * 12
_RECORDS = ((3,), (3, 6), (3, 5, 9))
_MIN_VALUES, _MAX_VALUES = 3, 5


@dataclass(frozen=True)
class _Product:
    department: _Department
    type: str
    brand: str
    attributes: tuple[str, str]
    options: Mapping[str, tuple[str, ...]]
    prices: tuple[float, ...]
    hidden_attribute: bool
    """The second attribute is missing from the title: only search and the features page tell."""


def generate(seed: int = 0, num_products: int = 500) -> Records:
    """Makes a catalogue: the same for the same arguments, on every machine.

    Every product has 2 attributes, 0 to 2 option groups of 3 to 5 values, and one price or a price range; every
    instruction asks for 1 or 2 of the attributes and for 0 to 2 of the options of its product.

    Args:
      seed: any integer.
      num_products: a multiple of 4 (products come in clusters of four). 500 give over 6,000 written goals and over
        4,000 synthetic ones.
    """
    if num_products < CLUSTER or num_products % CLUSTER:
        raise ValueError(f"num_products = {num_products} must be a positive multiple of {CLUSTER}.")
    rng = random.Random(seed)
    products = [product for cluster in range(num_products // CLUSTER) for product in _cluster(rng, cluster)]
    asins = _asins(rng, len(products))
    records = Records([], {}, {}, {})
    for asin, product in zip(asins, products, strict=True):
        records.items.append(_item(asin, product))
        records.nouns[records.items[-1]["name"]] = tuple(product.type.split())
        records.attributes[asin] = {
            "attributes": list(product.attributes),
            "instruction": f"{rng.choice(_OPENINGS)} {' and '.join(product.attributes)} {product.type}",
            "instruction_attributes": list(product.attributes),
        }
        records.instructions[asin] = _instructions(rng, asin, product)
    rng.shuffle(records.items)
    return records


def write(directory: str | Path, seed: int = 0, num_products: int = 500) -> dict[str, Path]:
    """Writes the catalogue as files and returns their paths, by their names in `files_suite`."""
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    items, attributes, instructions, nouns = generate(seed, num_products)
    rows = [{"title": title, "nouns": words} for title, words in nouns.items()]
    contents = {
        "items": ("items_shuffle.json", json.dumps(items, indent=1)),
        "attributes": ("items_ins_v2.json", json.dumps(attributes, indent=1)),
        "instructions": ("items_human_ins.json", json.dumps(instructions, indent=1)),
        "nouns": ("nouns.jsonl", "".join(json.dumps(row) + "\n" for row in rows)),
    }
    for name, text in contents.values():
        (folder / name).write_text(text, encoding="utf-8")
    return {role: folder / name for role, (name, _) in contents.items()}


def _cluster(rng: random.Random, index: int) -> list[_Product]:
    """A base product and three that miss one thing of it each."""
    department = _DEPARTMENTS[index % len(_DEPARTMENTS)]
    group_count = _OPTION_GROUPS[(index // len(_DEPARTMENTS)) * 7 % len(_OPTION_GROUPS)]
    names = rng.sample(sorted(department.options), group_count)
    base = _Product(
        department=department,
        type=department.types[index // len(_DEPARTMENTS) % len(department.types)],
        brand=rng.choice(_BRANDS),
        attributes=tuple(rng.sample(department.attributes, 2)),
        options={name: _values(rng, department.options[name]) for name in names},
        prices=_prices(rng, _LOW_PRICES),
        hidden_attribute=rng.random() < 0.3,
    )
    missing_attribute = replace(base, attributes=_swap(rng, base.attributes, department.attributes))
    if names:
        name = rng.choice(names)
        missing_value = _swap(rng, base.options[name], department.options[name])
        missing_option = replace(base, options={**base.options, name: missing_value})
    else:
        missing_option = replace(base, attributes=_swap(rng, base.attributes, department.attributes))
    too_expensive = replace(base, prices=(rng.choice([p for p in _HIGH_PRICES if p > max(base.prices) + 40]),))
    distractors = [replace(p, brand=rng.choice(_BRANDS)) for p in (missing_attribute, missing_option, too_expensive)]
    return [base, *distractors]


def _values(rng: random.Random, pool: Sequence[str]) -> tuple[str, ...]:
    return tuple(rng.sample(pool, rng.randint(_MIN_VALUES, min(_MAX_VALUES, len(pool) - 1))))


def _swap(rng: random.Random, chosen: Sequence[str], pool: Sequence[str]) -> tuple[str, ...]:
    """`chosen` with one member replaced by a member of `pool` that it does not have."""
    position = rng.randrange(len(chosen))
    other = rng.choice([member for member in pool if member not in chosen])
    return (*chosen[:position], other, *chosen[position + 1 :])


def _prices(rng: random.Random, pool: Sequence[float]) -> tuple[float, ...]:
    low, high = sorted(rng.sample(range(len(pool)), 2))
    return (pool[low], pool[min(high, low + 2)]) if rng.random() < _RANGE_SHARE else (pool[low],)


def _asins(rng: random.Random, count: int) -> list[str]:
    asins: dict[str, None] = {}
    while len(asins) < count:
        asins["B0" + "".join(rng.choices("ABCDEFGHJKLMNPQRSTUVWXYZ0123456789", k=8))] = None
    return list(asins)


def _item(asin: str, product: _Product) -> Json:
    first, second = product.attributes
    shown = [first] if product.hidden_attribute else [first, second]
    # Four to six words: the brand goes where it would be the seventh.
    words = " ".join([*shown, product.type]).split()
    words = [product.brand, *words] if len(words) < 6 else words
    return {
        "asin": asin,
        "name": " ".join(word.capitalize() for word in words),
        "full_description": f"{product.brand} {product.type}, {first} and {second}.",
        "small_description": [f"{first} {product.type}", f"{second} design"],
        "pricing": " - ".join(f"${price}" for price in product.prices),
        "images": [f"https://images.example/{asin}.jpg"],
        "product_category": f"{product.department.root} › {product.type.title()}",
        "category": product.department.category,
        "query": product.type,
        "customization_options": {
            name.capitalize(): [
                {"value": value.capitalize(), "image": f"https://images.example/{asin}-{value}.jpg"} for value in values
            ]
            for name, values in product.options.items()
        },
    }


def _instructions(rng: random.Random, asin: str, product: _Product) -> list[Json]:
    """Distinct requests that the product meets, each for 1 or 2 attributes and any part of the options."""
    first, second = product.attributes
    wanted_attributes = [(first,), (second,), (first, second)]
    wanted_options = cartesian(*([None, *values] for values in product.options.values()))
    requests = list(cartesian(wanted_attributes, wanted_options))
    by_count: list[list] = [[] for _ in range(len(product.options) + 1)]
    for request in rng.sample(requests, len(requests)):
        by_count[sum(value is not None for value in request[1])].append(request)
    quotas = _RECORDS[len(product.options)]
    picked = [request for group, quota in zip(by_count, quotas, strict=True) for request in group[:quota]]
    return [_instruction(rng, asin, product, *request) for request in picked]


def _instruction(
    rng: random.Random, asin: str, product: _Product, attributes: Sequence[str], values: Sequence[str | None]
) -> Json:
    options = {name: value for name, value in zip(product.options, values, strict=True) if value is not None}
    suffix = f" with {' and '.join(f'{name} {value}' for name, value in options.items())}" if options else ""
    return {
        "asin": asin,
        "instruction": f"{rng.choice(_OPENINGS)} {' and '.join(attributes)} {product.type}{suffix}.",
        "attributes": list(product.attributes),
        "options": [f"{name}: {value}" for name, value in options.items()],
        "instruction_attributes": list(attributes),
        "instruction_options": list(options.values()),
    }

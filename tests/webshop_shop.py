"""A handful of invented products with the corner cases of the official files, for the tests of WebShop."""

from typing import Any

from rspo_jax.envs.webshop import Catalogue, WebShopEnv

Json = dict[str, Any]


def item(asin: str, name: str, **keys: Any) -> Json:
    """A product record in the official schema; `keys` replace the defaults."""
    record = {
        "asin": asin,
        "name": name,
        "full_description": f"About {name}.",
        "small_description": ["Soft ", "Light "],
        "pricing": "$10.99",
        "images": ["https://img.example/1.jpg"],
        "product_category": "Clothing › Men › Shirts",
        "category": "fashion",
        "query": "Men's Shirts",
        "customization_options": "",
    }
    return record | keys


def options(**groups: list[str] | None) -> Json:
    return {name: values and [{"value": value, "image": None} for value in values] for name, values in groups.items()}


ITEMS = [
    item(
        "B000000001",
        "Acme Cotton Tee",
        customization_options=options(Color=["Navy/White", "Rectangular"], Size=["8", "8 Wide"]),
    ),
    item(
        "B000000002",
        "Acme Linen Shirt",
        pricing="$10.99 - $25.50",
        customization_options=options(Size=None, Fit=["regular"]),
    ),
    item(
        "B000000003",
        "Brio Desk Lamp",
        pricing="",
        category="garden",
        query=" Desk Lamps ",
        product_category="Home › Lamps › Desk",
    ),
    item(
        "B000000004",
        "Brio Floor Lamp",
        pricing="$1,249.00",
        category="garden",
        query="floor lamps",
        product_category="Home › Lamps › Floor",
    ),
    item(
        "B000000005",
        "Odd Mug",
        small_description=["", " \n ", "kept"],
        full_description=" ",
        customization_options=options(Style=["description", 'grö"ße', "both"], Kind=["both", "next >", "search"]),
    ),
    item(
        "B000000006",
        "Plain Mug",
        small_description="one text",
        full_description="",
        category="kitchen",
        query="mugs",
        product_category="Kitchen › Mugs",
    ),
    item("B000000001", "A second product of the same id"),
    item("B0000000007", "An id of eleven characters"),
    item("nan", "No id"),
]

ATTRIBUTES = {
    "B000000001": {
        "attributes": ["machine wash", "slim fit"],
        "instruction": "Find me slim fit men's shirts with machine wash",
        "instruction_attributes": ["slim fit", "machine wash"],
    },
    "B000000002": {
        "attributes": ["slim fit"],
        "instruction": "Find me slim fit shirts",
        "instruction_attributes": ["slim fit"],
    },
    "B000000003": {"attributes": ["easy assemble"], "instruction": None},
    "B000000004": {
        "attributes": ["easy assemble"],
        "instruction": "Find me a lamp",
        "instruction_attributes": ["easy assemble"],
    },
    "B000000005": {"attributes": []},
    "B000000006": {},
}

INSTRUCTIONS = {
    "B000000001": [
        {
            "instruction": "i need a slim fit tee in navy.",
            "instruction_attributes": ["slim fit"],
            "instruction_options": ["navy | white"],
        },
        {"instruction": "no attribute", "instruction_attributes": [], "instruction_options": []},
        {
            "instruction": "i need a tee in two colors.",
            "instruction_attributes": ["silk"],
            "instruction_options": ["navy", "rectangular"],
        },
    ],
    "B000000003": [
        {"instruction": "...a lamp...", "instruction_attributes": ["easy assemble"], "instruction_options": []}
    ],
}


def shop(**keys: Any) -> Catalogue:
    """The catalogue of these products; synthetic goals unless `human_goals`."""
    return Catalogue.from_records(ITEMS, ATTRIBUTES, INSTRUCTIONS, **keys)


def env(mode: str = "text", show_attributes: bool = False, **keys: Any) -> WebShopEnv:
    return WebShopEnv(shop(**keys), mode, show_attributes)


def goal_number(catalogue: Catalogue, asin: str, **chosen: str) -> int:
    """The number of the goal for a product and, for a synthetic goal, its options."""
    return next(
        number
        for number, goal in enumerate(catalogue.goals)
        if goal["asin"] == asin and (not chosen or goal["goal_options"] == chosen)
    )

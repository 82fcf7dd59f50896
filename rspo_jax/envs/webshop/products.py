"""Raw product records to the products of the shop, in the official keys."""

import re
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from rspo_jax.envs.webshop.files import DataError, text, texts
from rspo_jax.envs.webshop.nouns import Nouns

Json = Mapping[str, Any]

_REQUIRED = ("asin", "name", "full_description", "small_description", "product_category", "category", "query")
_NOT_PRICE = re.compile(r"[^\d.]")
DEFAULT_PRICE = 100.0


class Product(dict):
    """One product: a dictionary with the official keys. `nouns` lists the nouns of a title (see `Nouns`)."""

    __slots__ = ("nouns",)


def parse_products(items: Iterable[Json], attributes: Json, nouns: Nouns) -> Iterator[Product]:
    """Yields each usable product once: ids over ten characters and "nan" are skipped, and the first of equal ids wins.

    Raises:
      DataError: a record lacks a key or has a malformed text, price or option.
    """
    seen: set[str] = set()
    for number, item in enumerate(items):
        try:
            asin = item["asin"]
            if asin == "nan" or len(asin) > 10 or asin in seen:
                continue
            seen.add(asin)
            product = _product(item, _attributes(attributes, asin))
        except KeyError as error:
            raise DataError("items", f"product number {number} has no key {error}; needed: {_REQUIRED}.") from None
        except (TypeError, AttributeError, IndexError) as error:
            raise DataError("items", f"product number {number} is malformed ({error}).") from None
        product.nouns = nouns
        yield product


def _attributes(attributes: Json, asin: str) -> list[str]:
    try:
        return texts(attributes.get(asin, {}).get("attributes", ["DUMMY_ATTR"]), "attributes")
    except (TypeError, AttributeError) as error:
        raise DataError("attributes", f"the record of {asin} is malformed ({error}).") from None


def _product(item: Json, attributes: list[str]) -> Product:
    bullets = item["small_description"]
    title, description = (text(item[key], key) for key in ("name", "full_description"))
    pricing, tag = _price(item.get("pricing"), item["asin"])
    options, images = _options(item.get("customization_options"))
    return Product(
        asin=item["asin"],
        name=title,
        Title=title,
        Description=description,
        BulletPoints=texts(bullets if isinstance(bullets, list) else [bullets], "small_description"),
        Attributes=attributes,
        category=text(item["category"], "category"),
        query=item["query"].lower().strip(),
        product_category=text(item["product_category"], "product_category"),
        pricing=pricing,
        Price=tag,
        Rating="N.A.",
        Reviews=[],
        options=options,
        option_to_image=images,
        MainImage=next(iter(item.get("images") or ()), None),
    )


def _price(text: str | None, asin: str) -> tuple[list[float], str]:
    """The price, or both ends of a price range, and the text that pages show."""
    if not text:
        return [DEFAULT_PRICE], f"${DEFAULT_PRICE}"
    try:
        values = [float(Decimal(_NOT_PRICE.sub("", part))) for part in text.split("$")[1:]]
        first = values[0]
    except (InvalidOperation, IndexError):
        raise DataError(
            "items", f"product {asin} has pricing {text!r}; it must look like '$10.99' or '$10.99 - $25.50'."
        ) from None
    return (values, f"${first}") if len(values) == 1 else (values[:2], f"${first} to ${values[1]}")


def _options(customization: Any) -> tuple[dict[str, list[str]], dict[str, str | None]]:
    options: dict[str, list[str]] = {}
    images: dict[str, str | None] = {}
    for name, contents in (customization or {}).items():
        if contents is not None:
            values = [content["value"].strip().replace("/", " | ").lower() for content in contents]
            images.update(zip(values, (content.get("image") for content in contents), strict=True))
            options[name.lower()] = values
    return options, images


def search_text(product: Json) -> str:
    """What the search engine indexes of a product."""
    options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in product["options"].items())
    bullet = product["BulletPoints"][0] if product["BulletPoints"] else ""
    return " ".join([product["Title"], product["Description"], bullet, options]).lower()

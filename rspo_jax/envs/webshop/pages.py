"""The pages of the shop as lists of visible text nodes, and their two text forms.

A node has a kind: the rich form marks buttons, product links and options, and all of these can be clicked.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

Json = Mapping[str, Any]

TEXT, BUTTON, LINK, OPTION = "text", "button", "link", "option"
SEPARATOR = " [SEP] "

SEARCH, BACK, PREVIOUS, NEXT, BUY = "Search", "Back to Search", "< Prev", "Next >", "Buy Now"
DESCRIPTION, FEATURES, REVIEWS, ATTRIBUTES = SUB_PAGES = ("Description", "Features", "Reviews", "Attributes")
PAGE_SIZE = 10

_SPACE = " \t\n\f\r"
_HTML_SAFE = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "'": "\\u0027"})


class Node(NamedTuple):
    """A visible piece of text; `group` is the option name of an OPTION."""

    kind: str
    text: str
    group: str = ""


@dataclass(frozen=True)
class Page:
    """What a page shows. `clickables` maps what can be clicked, lower-case, to its node, in the official order."""

    nodes: Sequence[Node]
    clickables: Mapping[str, Node]
    has_search_bar: bool = False


def _page(nodes: Iterable[Node], has_search_bar: bool = False) -> Page:
    nodes = list(nodes)
    clickables = {node.text.lower(): node for node in nodes if node.kind == BUTTON}
    clickables |= {node.text.lower(): node for node in nodes if node.kind == LINK}
    clickables |= {node.text: node for node in nodes if node.kind == OPTION}
    visible = (_collapse(node) for node in nodes if node.text)
    return Page([node for node in visible if node.text != "\n"], clickables, has_search_bar)


def _collapse(node: Node) -> Node:
    """A node of nothing but ASCII white space shrinks to a line break, which is not shown, or to one space."""
    if node.text.strip(_SPACE):
        return node
    return node._replace(text="\n" if "\n" in node.text else " ")


def _header(instruction: str, *buttons: str) -> list[Node]:
    return [Node(TEXT, "Instruction:"), Node(TEXT, instruction), *(Node(BUTTON, label) for label in (BACK, *buttons))]


def index_page(instruction: str) -> Page:
    nodes = [Node(TEXT, "WebShop"), Node(TEXT, "Instruction: "), Node(TEXT, instruction), Node(BUTTON, SEARCH)]
    return _page(nodes, has_search_bar=True)


def results_page(instruction: str, number: int, products: Sequence[Json]) -> Page:
    """Page `number` of a search that found `products`. Any number is a page: slices beyond the end are empty."""
    shown = products[(number - 1) * PAGE_SIZE : number * PAGE_SIZE]
    nodes = _header(instruction)
    nodes.append(Node(TEXT, f"Page {number} (Total results: {len(products)})"))
    nodes += [Node(BUTTON, PREVIOUS)] * (number > 1) + [Node(BUTTON, NEXT)]
    for product in shown:
        nodes += [Node(LINK, product["asin"].upper()), Node(TEXT, product["Title"]), Node(TEXT, product["Price"])]
    return _page(nodes)


def item_page(instruction: str, product: Json, show_attributes: bool) -> Page:
    nodes = _header(instruction, PREVIOUS)
    for name, values in product["options"].items():
        nodes += [Node(TEXT, name), *(Node(OPTION, value, name) for value in values)]
    nodes += [Node(TEXT, product["Title"]), Node(TEXT, f"Price: {product['Price']}")]
    nodes.append(Node(TEXT, f"Rating: {product['Rating']}"))
    labels = (*SUB_PAGES, BUY) if show_attributes else (DESCRIPTION, FEATURES, REVIEWS, BUY)
    return _page(nodes + [Node(BUTTON, label) for label in labels])


def sub_page(instruction: str, product: Json, label: str) -> Page:
    """Description, features, reviews (there are none) or attributes of a product."""
    nodes = _header(instruction, PREVIOUS)
    if label == DESCRIPTION:
        nodes.append(Node(TEXT, product["Description"]))
    elif label == FEATURES:
        nodes += [Node(TEXT, f" {bullet}") for bullet in product["BulletPoints"]]
    elif label == ATTRIBUTES:
        nodes += [Node(TEXT, f" {attribute}") for attribute in product["Attributes"]]
        nodes += [Node(TEXT, product[key]) for key in ("category", "query", "product_category")]
    return _page(nodes)


def done_page(asin: str, options: Mapping[str, str], score: float) -> Page:
    """The page after a purchase: the text of a hidden form, with the reward and without the goal."""
    chosen = json.dumps(options, sort_keys=True).translate(_HTML_SAFE)
    texts = ["Thank you for shopping with us!", "Your code: ", "None", " (Paste it in your MTurk interface.)"]
    texts += ["Purchased", "asin", asin, "options", chosen, "attrs", "None", "category", "None", "query", "None"]
    texts += ["product category", "None", "Target", "asin", "options", "attrs", "price upper", "instuction text"]
    texts += ["category", "product category", "query", "Goal ", "None", "Reward", "Your score (min 0.0, max 1.0)"]
    texts += [str(score), "Reward Details ", "None"]
    return _page(Node(TEXT, text) for text in texts)


def plain_text(page: Page) -> str:
    """Mode "text": the nodes, stripped, between separators. A chosen option does not show."""
    return SEPARATOR.join(node.text.strip() for node in page.nodes)


def rich_text(page: Page, url: str, opened: Collection[str]) -> str:
    """Mode "text_rich": one node a line, what can be clicked in marks.

    An option counts as chosen if its value stands in double quotes in `url`; a product if it is in `opened`.
    """
    clicked, lines = [], []
    for kind, text, _ in page.nodes:
        if kind == TEXT:
            lines.append(text)
        elif kind == BUTTON:
            lines.append(f"[button] {text} [button_]")
        else:
            chosen = text in opened if kind == LINK else f'"{text}"' in url
            mark = "clicked button" if chosen else "button"
            lines.append(("\n" if kind == LINK else "  ") + f"[{mark}] {text} [{mark}_]")
            if chosen and kind == OPTION:
                clicked.append(f"You have clicked {text}.")
    return "".join(f"{line}\n" for line in [*reversed(clicked), *lines])


def task_of(start: str) -> str:
    """The instruction in the plain text of a start page: its third segment."""
    return start.split(SEPARATOR)[2]


def anchor(text: str, task: str) -> str:
    """The plain text after the instruction, each segment in quotes; all of the text if the instruction is not in it."""
    segments = text.split(SEPARATOR)
    if task not in segments:
        return text
    return SEPARATOR.join(f"'{segment}'" for segment in segments[segments.index(task) + 1 :])

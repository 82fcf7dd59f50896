"""The text an agent reads and how its response becomes an action: every prompt of the project is here.

Two formats, for three kinds of environment (`webshop`, `alfworld`, `generic`):

    plain   few lower-case tokens, the response is the action itself. Made for append context, where earlier turns stay
            visible, and for tiny models.
    verl    the slots and rules of verl-agent (reference code of GiGPO, arXiv 2505.10978) in our own words: task, last
            two turns, observation and admissible actions; the response is <think>...</think><action>...</action>.

Every function is pure: raw observation and info of the environment in, text out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rspo_jax.envs.base import FREE_TEXT
from rspo_jax.envs.projection import ALFWORLD_TAIL, WEBSHOP_TAIL, project_action

Info = Mapping[str, Any]
History = Sequence[tuple[str, str]]
"""(raw observation before the action, projected action) of the turns to show, oldest first (verl-agent: the last 2)."""

KINDS = ("webshop", "alfworld", "generic")

SAME_PAGE = "same page"
"""Plain text for an observation that equals the one before."""

NOTHING = "nothing here"
"""Plain text for a WebShop page without content: no results, no reviews."""

MAX_WEBSHOP_CHARACTERS = 13_000
"""A WebShop prompt with history that is longer falls back to the one without history."""

_SEPARATOR = " [SEP] "
_ALFWORLD_BANNER = "-= Welcome to TextWorld, ALFRED! =-"
_ALFWORLD_TASK = "Your task is to: "


class PromptFormat(Protocol):
    """What a rollout needs from a prompt format."""

    def first(self, obs: str, info: Info) -> str:
        """User message of an episode's first turn."""

    def next(self, obs: str, info: Info, previous_obs: str) -> str:
        """User message of a later turn in append context, where all earlier turns stay visible."""

    def window(self, obs: str, info: Info, task: str, history: History, step: int) -> str:
        """The only user message of a turn in window context. `step` counts the turns taken before (0 at first)."""

    def parse(self, response: str) -> tuple[str, bool]:
        """(action, valid) of a response without its end-of-turn token."""


def get(name: str, env_kind: str) -> PromptFormat:
    """The format `plain` or `verl` for an environment of kind `webshop`, `alfworld` or `generic`."""
    if name not in _FORMATS:
        raise ValueError(f"prompt format {name!r} is unknown: choose one of {', '.join(_FORMATS)}.")
    if env_kind not in KINDS:
        raise ValueError(f"environment kind {env_kind!r} is unknown: choose one of {', '.join(KINDS)}.")
    return _FORMATS[name](env_kind)


@dataclass(frozen=True)
class Plain:
    """Compact lower-case prompts."""

    kind: str

    def first(self, obs: str, info: Info) -> str:
        if self.kind == "alfworld" or obs == info["task"]:
            return self._page(obs, info)  # the opening text holds the task
        return "\n".join([info["task"].lower(), *_nonempty(self._page(obs, info))])

    def next(self, obs: str, info: Info, previous_obs: str) -> str:
        return SAME_PAGE if obs == previous_obs else self._page(obs, info)

    def window(self, obs: str, info: Info, task: str, history: History, step: int) -> str:
        lines = [task.lower(), *(f"> {action}" for _, action in history), *_nonempty(self._page(obs, info))]
        return "\n".join(lines)

    def parse(self, response: str) -> tuple[str, bool]:
        action = response.strip()
        return action, bool(action)

    def _page(self, obs: str, info: Info) -> str:
        if self.kind == "webshop":
            return _plain_webshop(obs, info)
        if self.kind == "alfworld":
            return "\n".join(_nonempty(obs.replace(_ALFWORLD_BANNER, "").lower()))
        return obs.lower()


@dataclass(frozen=True)
class Verl:
    """Prompts with verl-agent's slots and rules."""

    kind: str

    def first(self, obs: str, info: Info) -> str:
        return self._without_history(obs, info, self._task(obs, info["task"]))

    def next(self, obs: str, info: Info, previous_obs: str) -> str:
        return _VERL_NEXT.format(observation=self._observation(obs, info["task"]), actions=self._actions(info))

    def window(self, obs: str, info: Info, task: str, history: History, step: int) -> str:
        task = self._task(obs, task)
        if step == 0 or not history:
            return self._without_history(obs, info, task)
        lines = [
            f"[Observation {number}: '{self._observation(text, task)}', Action {number}: '{action}']"
            for number, (text, action) in enumerate(history, start=step - len(history) + 1)
        ]
        prompt = _VERL_HISTORY[self.kind].format(
            task=task,
            steps=step,
            shown=len(history),
            history="\n".join(lines),
            now=step + 1,
            observation=self._observation(obs, task),
            actions=self._actions(info),
        )
        if self.kind == "webshop" and len(prompt) > MAX_WEBSHOP_CHARACTERS:
            return self._without_history(obs, info, task)
        return prompt

    def parse(self, response: str) -> tuple[str, bool]:
        return project_action(response, WEBSHOP_TAIL if self.kind == "webshop" else ALFWORLD_TAIL)

    def _without_history(self, obs: str, info: Info, task: str) -> str:
        return _VERL_FIRST[self.kind].format(
            task=task, observation=self._observation(obs, task), actions=self._actions(info)
        )

    def _task(self, obs: str, task: str) -> str:
        """The task sentence; an ALFWorld opening text is cut down to what follows `Your task is to: `."""
        if self.kind == "alfworld":
            return task.split(_ALFWORLD_TASK)[-1].strip()
        return task

    def _observation(self, obs: str, task: str) -> str:
        if self.kind != "webshop":
            return obs
        segments = obs.split(_SEPARATOR)
        if task not in segments:
            return obs
        return _SEPARATOR.join(f"'{segment}'" for segment in segments[segments.index(task) + 1 :])

    def _actions(self, info: Info) -> str:
        if self.kind == "webshop":
            search = [f"search[{FREE_TEXT}]"] if info["has_search_bar"] else []
            return "\n".join(f"'{action}'," for action in search + [f"click[{name}]" for name in info["clickables"]])
        actions = info.get("admissible_actions")
        if actions is None:
            return "any text"
        return "\n ".join(f"'{action}'" for action in actions if self.kind != "alfworld" or action != "help")


def _plain_webshop(obs: str, info: Info) -> str:
    """A WebShop page without the instruction and without what never changes (labels of buttons, the rating)."""
    if info["task"] in (lines := obs.split("\n")):  # observation_mode = "text_rich": one node a line
        return "\n".join(lines[lines.index(info["task"]) + 1 :]).lower()
    segments = obs.split(_SEPARATOR)
    if info["task"] not in segments:
        return obs.lower()
    page = [segment.lower() for segment in segments[segments.index(info["task"]) + 1 :]]
    if page == ["search"]:
        return "search"
    if len(page) > 1 and page[1].startswith("page "):
        return _plain_results(page)
    price = next((i for i, segment in enumerate(page) if segment.startswith("price: ")), 0)
    if price > 2 and page[-1] == "buy now":
        return _plain_item(page[2:price], page[price].removeprefix("price: "), info["clickables"])
    return "\n".join(page[2:]) or NOTHING  # a description, features, ... page after "back to search", "< prev"


def _plain_results(page: list[str]) -> str:
    """`page 1`, then a line `title price asin` for each product.

    The code comes last, so that a causal model has read what it stands for when it reads the code.
    """
    number = page[1].partition(" (total results: ")[0]
    products = page[page.index("next >") + 1 :]
    lines = [f"{title} {price} {asin}" for asin, title, price in zip(*[iter(products)] * 3, strict=False)]
    return "\n".join([number, *(lines or [NOTHING])])


def _plain_item(options_and_title: list[str], price: str, clickables: Sequence[str]) -> str:
    """`title price`, then a line `name: value, value` for each option."""
    *options, title = options_and_title
    lines: list[list[str]] = []
    for segment in options:
        if segment in clickables and lines:
            lines[-1].append(segment)
        else:
            lines.append([segment])
    return "\n".join([f"{title} {price}", *(f"{name}: {', '.join(values)}" for name, *values in lines)])


def _nonempty(text: str) -> list[str]:
    return [line for line in text.split("\n") if line.strip()]


_RESPONSE = """\
Decide on your next action. First think it through step by step, inside <think> </think> tags. Then write exactly one of
the admissible actions, inside <action> </action> tags."""

_ROLE = {
    "webshop": "You are a skilled autonomous agent that shops in the WebShop online store.",
    "alfworld": "You are a skilled agent that does household tasks in the text world ALFWorld (ALFRED).",
    "generic": "You are a skilled agent that acts in a text environment.",
}

_NOW = """\
Admissible actions now:
[
{actions}
]

"""

# The opening text of ALFWorld states the task itself, so its first prompt has no slot for it.
_VERL_FIRST = {
    kind: role
    + ("\n" if kind == "alfworld" else "\nYour task is to: {task}\n")
    + "Your current observation is: {observation}\n"
    + _NOW
    + _RESPONSE
    for kind, role in _ROLE.items()
}

_VERL_HISTORY = {
    kind: role
    + "\nYour task is to: {task}\n"
    + "You have taken {steps} step(s) so far. The latest {shown} observation(s) and the action(s) you took on them:\n"
    + "{history}\n"
    + "This is step {now}. Your current observation is: {observation}\n"
    + _NOW
    + _RESPONSE
    for kind, role in _ROLE.items()
}

_VERL_NEXT = "Your current observation is: {observation}\n" + _NOW + _RESPONSE

_FORMATS = {"plain": Plain, "verl": Verl}

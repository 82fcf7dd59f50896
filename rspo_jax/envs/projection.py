"""From an agent's tagged response to an environment action: the projection rule of verl-agent.

Source: verl-agent (reference code of GiGPO, arXiv 2505.10978). Its numbers are kept so that rewards and penalties mean
the same here; the code is our own.
"""

WEBSHOP_TAIL, ALFWORLD_TAIL = 20, 30
"""Characters of an untagged response that become its action, per environment."""

_OPEN, _CLOSE = "<action>", "</action>"


def project_action(response: str, tail: int = WEBSHOP_TAIL) -> tuple[str, bool]:
    """Returns `(action, valid)` for a response that should read `<think>...</think><action>...</action>`.

    The action is the lower-cased text between the first `<action>` and the first `</action>`, stripped. Where either
    tag is missing it is the last `tail` characters of the lower-cased response. `valid` speaks of format only: both
    action tags (any case), `<think>` and `</think>` (this case, any order) and no character in U+4E00-U+9FFF. An
    invalid response still acts; an inadmissible action is still valid.

    Args:
      response: the agent's text.
      tail: `WEBSHOP_TAIL` or `ALFWORLD_TAIL`.
    """
    if tail < 1:
        raise ValueError(f"tail = {tail} must be at least 1 (20 for WebShop, 30 for ALFWorld).")
    lowered = response.lower()
    start, end = lowered.find(_OPEN), lowered.find(_CLOSE)
    if start < 0 or end < 0:
        return lowered[-tail:], False
    # Where the closing tag comes first the slice is empty, as in the source.
    action = lowered[start + len(_OPEN) : end].strip()
    return action, "<think>" in response and "</think>" in response and not _has_cjk(response)


def _has_cjk(text: str) -> bool:
    return any("\u4e00" <= char <= "\u9fff" for char in text)

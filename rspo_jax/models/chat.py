"""Chat templates as token ids that only ever grow.

A template is written for whole conversations and may render an earlier turn differently once a later one exists.
Training on sampled ids needs the opposite: what was sampled stays, and the next turn is appended. So the template is
rendered once with placeholders, and cut into the text around a first user message and the text between an answer and
the next prompt.
"""

import dataclasses

import jinja2
from transformers import PreTrainedTokenizerBase

from rspo_jax.models.tokenizer import encode

_USER, _ANSWER, _NEXT, _SYSTEM = "SENTINEL-USER", "SENTINEL-ANSWER", "SENTINEL-NEXT", "SENTINEL-SYSTEM"
_THOUGHT = "<think>\nSENTINEL-THOUGHT\n</think>\n\n"


@dataclasses.dataclass(frozen=True)
class ChatFormat:
    """Prompts of one tokenizer and system prompt, as token ids.

    end_token: id that ends the assistant's turn. The model samples it, or it is forced; `next` starts after it.
    rewrites_history: the template itself would render an earlier answer otherwise than it was sampled (Qwen3 drops its
    thoughts). Turns are appended at token level all the same, so a row then differs from the template's text.
    """

    tokenizer: PreTrainedTokenizerBase = dataclasses.field(repr=False)
    before_first: str
    after_first: str
    before_next: str
    after_next: str
    end_token: int
    strips: bool  # the template trims messages
    rewrites_history: bool

    @classmethod
    def from_tokenizer(cls, tokenizer: PreTrainedTokenizerBase, system: str | None = None) -> "ChatFormat":
        """Reads the tokenizer's chat template. `system` None leaves the template's own default system prompt, if any.

        A template without system messages gets `system` in front of the first user message. Raises ValueError where
        there is no template, or where it does not end the assistant's turn with one special token.
        """
        if not tokenizer.chat_template:
            raise ValueError(
                "The tokenizer has no chat template; use an instruction-tuned model or add chat_template.jinja to its "
                "directory."
            )
        head = _system_messages(tokenizer, system)
        lead = f"{system}\n\n" if system and not head else ""

        def render(first: str, *later: dict[str, str]) -> str:
            try:
                return _render(tokenizer, [*head, _user(lead + first), *later])
            except jinja2.TemplateError as error:
                raise ValueError(
                    f"The chat template cannot write a plain user-assistant conversation ({error}); correct it, or use "
                    "another one."
                ) from None

        opening = render(_USER)
        before_first, after_first = _cut(opening, _USER)
        _, rest = _cut(render(_USER, _assistant(_ANSWER), _user(_NEXT)), _ANSWER)
        between, after_next = _cut(rest, _NEXT)
        end_token, end_text = _end_token(tokenizer, between.lstrip())
        answers = [_ANSWER, _THOUGHT + _ANSWER]
        kept = [render(_USER, _assistant(a), _user(_NEXT)).startswith(opening + a + end_text) for a in answers]
        return cls(
            tokenizer=tokenizer,
            before_first=before_first,
            after_first=after_first,
            before_next=between.lstrip()[len(end_text) :],
            after_next=after_next,
            end_token=end_token,
            strips=f"{_USER} \n" not in render(f"{_USER} \n"),
            rewrites_history=not all(kept),
        )

    def first(self, text: str) -> list[int]:
        """Ids of a conversation that starts with the user message `text`, up to where the assistant's answer begins."""
        return encode(self.tokenizer, self.before_first + self._content(text) + self.after_first)

    def next(self, text: str) -> list[int]:
        """Ids of the next user message, from after the end-of-turn token to where the next answer begins."""
        return encode(self.tokenizer, self.before_next + self._content(text) + self.after_next)

    def _content(self, text: str) -> str:
        return text.strip() if self.strips else text


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def _assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def _render(tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, str]]) -> str:
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


def _cut(text: str, mark: str) -> tuple[str, str]:
    before, found, after = text.partition(mark)
    if not found:
        raise ValueError(
            "The chat template drops or changes a message of a plain user-assistant conversation; use a template that "
            "writes each message as it is."
        )
    return before, after


def _system_messages(tokenizer: PreTrainedTokenizerBase, system: str | None) -> list[dict[str, str]]:
    """The system message as a list, or [] where there is none or where the template cannot show one."""
    if system is None:
        return []
    try:
        shown = _SYSTEM in _render(tokenizer, [{"role": "system", "content": _SYSTEM}, _user(_USER)])
    except jinja2.TemplateError:  # the usual way of a template to refuse a role
        shown = False
    return [{"role": "system", "content": system}] if shown else []


def _end_token(tokenizer: PreTrainedTokenizerBase, between: str) -> tuple[int, str]:
    """Id and text of the special token at the start of what follows an answer."""
    ids = encode(tokenizer, between)
    known = tokenizer.added_tokens_decoder
    text = known[ids[0]].content if ids and ids[0] in known else ""
    if not text or not between.startswith(text):
        raise ValueError(
            f"The chat template writes {between[:20]!r} after an answer, which does not begin with a special token; "
            "use a template that ends the assistant's turn with one."
        )
    return ids[0], text

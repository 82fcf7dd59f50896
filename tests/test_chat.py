"""Prompts as token ids: they equal the chat template where it allows, and earlier turns never change."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rspo_jax.models.chat import ChatFormat
from rspo_jax.models.tokenizer import encode, train_tokenizer

# One structure per family, in our own words: default system prompt; bos and trimmed messages; thoughts cut from history
# and an empty one added to the last answer; no system role.
CHATML = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nBe useful.<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HEADERS = (
    "{{ bos_token }}{% for m in messages %}<|start|>{{ m.role }}<|stop|>\n\n{{ m.content | trim }}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant<|stop|>\n\n{% endif %}"
)
THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and not loop.last %}{{ m.content.split('</think>')[-1].lstrip('\n') }}"
    "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NO_SYSTEM = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'system' %}{{ raise_exception('no system role here') }}{% endif %}"
    "<|start|>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content }}<|eot|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>model\n{% endif %}"
)
TEMPLATES = {"chatml": CHATML, "headers": HEADERS, "thinking": THINKING, "no_system": NO_SYSTEM}
SPECIAL = ["<|bos|>", "<|im_start|>", "<|im_end|>", "<|start|>", "<|stop|>", "<|eot|>"]


def byte_tokenizer(template):
    """A byte-level tokenizer without merges that puts a bos token before every text, as some families do."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({char: i for i, char in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<|bos|>", eos_token="<|eot|>")
    tokenizer.chat_template = template
    return tokenizer


def tiny_tokenizer():
    return train_tokenizer(["go to fridge 1. open it."], ["go to", "fridge 1", "open"], 300)


TOKENIZERS = {name: byte_tokenizer(template) for name, template in TEMPLATES.items()} | {"tiny": tiny_tokenizer()}
PLAIN_TEXT = st.text(alphabet=st.characters(codec="utf-8", exclude_characters="<|>"), min_size=1, max_size=30).filter(
    lambda text: text.strip() == text
)


def template_ids(tokenizer, messages, generation=True):
    return encode(tokenizer, tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=generation))


def conversation(*texts, system=None):
    roles = ["user", "assistant"] * len(texts)
    turns = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]
    return ([] if system is None else [{"role": "system", "content": system}]) + turns


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=40, deadline=None)
@given(texts=st.lists(PLAIN_TEXT, min_size=5, max_size=5))
def test_appended_turns_equal_the_template_of_the_whole_conversation(name, texts):
    tokenizer = TOKENIZERS[name]
    chat = ChatFormat.from_tokenizer(tokenizer)
    ids = chat.first(texts[0])
    assert ids == template_ids(tokenizer, conversation(texts[0]))
    for answer, question in [texts[1:3], texts[3:5]]:
        ids = ids + encode(tokenizer, answer) + [chat.end_token] + chat.next(question)
    assert ids == template_ids(tokenizer, conversation(*texts))


@pytest.mark.parametrize(
    ("name", "end"), [("chatml", "<|im_end|>"), ("headers", "<|eot|>"), ("no_system", "<|eot|>"), ("tiny", "<|end|>")]
)
def test_the_end_token_is_the_one_the_template_writes(name, end):
    assert ChatFormat.from_tokenizer(TOKENIZERS[name]).end_token == TOKENIZERS[name].convert_tokens_to_ids(end)


def test_a_template_that_rewrites_history_is_detected_and_ids_still_only_grow():
    assert [n for n in TOKENIZERS if ChatFormat.from_tokenizer(TOKENIZERS[n]).rewrites_history] == ["thinking"]
    tokenizer = TOKENIZERS["thinking"]
    chat = ChatFormat.from_tokenizer(tokenizer)
    answer = "<think>\nwhere?\n</think>\n\ngo"
    kept = chat.first("a") + encode(tokenizer, answer) + [chat.end_token] + chat.next("b")
    assert "where?" in tokenizer.decode(kept)
    assert "where?" not in tokenizer.decode(template_ids(tokenizer, conversation("a", answer, "b")))
    assert (
        kept[-len(chat.next("b")) :] == template_ids(tokenizer, conversation("a", answer, "b"))[-len(chat.next("b")) :]
    )


@pytest.mark.parametrize("name", ["chatml", "headers", "thinking", "tiny"])
def test_a_system_prompt_is_a_system_message(name):
    tokenizer = TOKENIZERS[name]
    chat = ChatFormat.from_tokenizer(tokenizer, system="Act.")
    assert chat.first("hello") == template_ids(tokenizer, conversation("hello", system="Act."))
    assert "Be useful" not in tokenizer.decode(chat.first("hello"))


def test_without_a_system_role_the_system_prompt_leads_the_first_message():
    tokenizer = TOKENIZERS["no_system"]
    chat = ChatFormat.from_tokenizer(tokenizer, system="Act.")
    assert chat.first("hello") == template_ids(tokenizer, conversation("Act.\n\nhello"))
    assert "Act." not in tokenizer.decode(chat.next("again"))


def test_the_default_system_prompt_of_a_template_is_kept_and_an_empty_one_replaces_it():
    tokenizer = TOKENIZERS["chatml"]
    assert "Be useful." in tokenizer.decode(ChatFormat.from_tokenizer(tokenizer).first("x"))
    assert "Be useful." not in tokenizer.decode(ChatFormat.from_tokenizer(tokenizer, system="").first("x"))


def test_bos_is_written_once_and_trimming_templates_trim():
    tokenizer = TOKENIZERS["headers"]
    chat = ChatFormat.from_tokenizer(tokenizer)
    assert chat.first("x").count(tokenizer.bos_token_id) == 1
    assert tokenizer.bos_token_id not in chat.next("x")
    assert chat.first("  x\n") == chat.first("x") == template_ids(tokenizer, conversation("  x\n"))
    loose = TOKENIZERS["chatml"]
    assert ChatFormat.from_tokenizer(loose).first(" x\n") == template_ids(loose, conversation(" x\n"))


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "no chat template"),
        ("{% for m in messages %}{{ m.content }} {% endfor %}", "does not begin with a special token"),
        ("{{ messages[0].content }}", "drops or changes a message"),
        ("{% for m in %}", "cannot write a plain user-assistant conversation"),
        (
            "{% if messages|length > 1 %}{{ raise_exception('one message only') }}{% endif %}{{ messages[0].content }}",
            "one message only",
        ),
    ],
)
def test_unusable_templates_are_refused_with_one_sentence(template, message):
    with pytest.raises(ValueError, match=message):
        ChatFormat.from_tokenizer(byte_tokenizer(template))

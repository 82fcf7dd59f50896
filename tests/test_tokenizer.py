"""The trained tokenizer: exact, whole phrases, and names that look the same wherever they stand."""

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rspo_jax import build
from rspo_jax.models.chat import ChatFormat
from rspo_jax.models.tokenizer import encode, load_tokenizer, make_portable, train_tokenizer

TEXTS = [
    "you are in the middle of a room. looking around you, you see a fridge 1, a fridge 12, and a apple 1.",
    "your task is to: put a hot apple in fridge.\nyou arrive at fridge 1. the fridge 1 is closed.",
    "instruction: i need a slim fit tee in navy | white, and price lower than 40.00 dollars\nsearch",
]
PHRASES = [
    "fridge 1", "apple 1", "go to", "search[", "click[", "]", "slim fit", "navy | white", "navy", "< prev", ", a", "\n",
    "café", "",
]  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS, PHRASES, 600)


def pieces(tokenizer, text):
    return [tokenizer.decode([i]) for i in encode(tokenizer, text)]


@settings(max_examples=300, deadline=None)
@given(
    text=st.one_of(
        st.text(), st.text(alphabet=" \n[](|<>a1é\u2028go to"), st.lists(st.sampled_from(PHRASES)).map("".join)
    )
)
@example(text="  two  spaces\n\n [ ( [[ x |> y<|user|>  z\n")
@example(text="")
def test_every_text_comes_back(tokenizer, text):
    assert tokenizer.decode(encode(tokenizer, text)) == text


@pytest.mark.parametrize("phrase", [p for p in PHRASES if p.strip()])
def test_a_phrase_is_one_token(tokenizer, phrase):
    assert len(encode(tokenizer, phrase)) == 1


@pytest.mark.parametrize("name", ["fridge 1", "slim fit", "navy | white", "café", "dollars"])
@pytest.mark.parametrize(
    "around", ["{}", "a {}", "a: {}, a", "a\n{}", "a\n{}\n", "click[{}]", "a ({})", "<|user|>{}<|end|>"]
)
def test_a_name_has_the_same_ids_everywhere(tokenizer, name, around):
    alone = encode(tokenizer, name)
    ids = encode(tokenizer, around.format(name))
    assert any(ids[i : i + len(alone)] == alone for i in range(len(ids)))


def test_a_phrase_never_ends_or_begins_inside_a_word(tokenizer):
    whole = encode(tokenizer, "fridge 1")[0]
    for text in ["fridge 12", "fridge 1a", "afridge 1", "refridge 1"]:
        assert whole not in encode(tokenizer, text)
    assert encode(tokenizer, "navy")[0] not in encode(tokenizer, "navy | white")  # the longest phrase wins


def test_an_action_is_as_short_as_its_phrases(tokenizer):
    assert pieces(tokenizer, "click[navy | white]") == ["click[", "navy | white", "]"]
    assert pieces(tokenizer, "go to fridge 1") == ["go to", "fridge 1"]


def test_special_tokens_and_the_chat_template(tokenizer):
    messages = [{"role": "user", "content": "go to"}, {"role": "assistant", "content": "fridge 1"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    assert text == "<|user|>go to<|assistant|>fridge 1<|end|>"
    assert len(encode(tokenizer, text)) == 5
    assert tokenizer.eos_token == "<|end|>" and tokenizer.pad_token == "<|pad|>"


def test_training_is_deterministic(tokenizer):
    again = train_tokenizer(iter(TEXTS), PHRASES, 600)
    assert again.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()


def test_without_phrases_it_is_a_plain_byte_level_bpe():
    plain = train_tokenizer(TEXTS, [], 300)
    assert len(plain) == 300
    assert plain.decode(encode(plain, "Ünïcode ☃ fridge 1")) == "Ünïcode ☃ fridge 1"


def test_a_vocabulary_too_small_for_the_phrases_is_refused():
    with pytest.raises(ValueError, match="vocab_size = 265 is too small"):
        train_tokenizer(TEXTS, PHRASES, 265)


@pytest.mark.parametrize("model_type", [None, "qwen2", "qwen3", "llama"])
def test_saving_and_loading_keeps_every_id(tokenizer, tmp_path, model_type):
    tokenizer.save_pretrained(tmp_path)
    if model_type:  # some families make the library rebuild a tokenizer by their own rules
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    loaded = load_tokenizer(tmp_path)
    for text in TEXTS:
        assert encode(loaded, text) == encode(tokenizer, text) == tokenizer(text, add_special_tokens=False)["input_ids"]
        assert loaded.decode(encode(loaded, text)) == text
    assert loaded.chat_template == tokenizer.chat_template and loaded.eos_token_id == tokenizer.eos_token_id


def test_missing_tokenizers_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no model directory .*nowhere"):
        load_tokenizer(tmp_path / "nowhere")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match="has no tokenizer"):
        load_tokenizer(tmp_path)


def edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_length_to_cut_or_pad_to_that_was_saved_with_a_tokenizer_is_dropped(tokenizer, tmp_path):
    """Trainers leave one behind; the text of a prompt must reach the model whole, and nothing else."""
    tokenizer.save_pretrained(tmp_path)
    truncation = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    padding = {"strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": None}
    padding |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "<|pad|>"}
    edit(tmp_path / "tokenizer.json", truncation=truncation, padding=padding)
    loaded = load_tokenizer(tmp_path)
    assert encode(loaded, TEXTS[0]) == encode(tokenizer, TEXTS[0])
    assert len(encode(loaded, "go to")) == 1


@pytest.mark.parametrize("model_type", [None, "qwen2", "llama"])
@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", ["{", "version https://git-lfs.github.com/spec/v1"])
def test_unreadable_tokenizers_are_named_in_one_sentence(tokenizer, tmp_path, model_type, file, content):
    tokenizer.save_pretrained(tmp_path)
    if model_type:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
        edit(tmp_path / "tokenizer_config.json", tokenizer_class=f"{model_type.title()}Tokenizer")
    (tmp_path / file).write_text(content)
    with pytest.raises(ValueError, match=f"tokenizer of {tmp_path} cannot be read .*tokenizer.json") as error:
        load_tokenizer(tmp_path)
    assert "\n" not in str(error.value)


def test_what_is_saved_is_in_words_that_transformers_4_reads_as_well(tokenizer, tmp_path):
    """It knows no class TokenizersBackend, and wants a mapping where version 5 writes a list of special tokens."""
    tokenizer.save_pretrained(tmp_path)
    edit(tmp_path / "tokenizer_config.json", extra_special_tokens=["<|user|>", "<|assistant|>"])
    make_portable(tmp_path)
    fields = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert fields["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert isinstance(fields.get("extra_special_tokens", {}), dict)
    assert fields["additional_special_tokens"] == ["<|user|>", "<|assistant|>"]
    loaded = load_tokenizer(tmp_path)
    assert encode(loaded, TEXTS[0] + "<|user|>") == encode(tokenizer, TEXTS[0] + "<|user|>")
    assert {"<|user|>", "<|assistant|>"} <= set(loaded.all_special_tokens)


@pytest.mark.parametrize("agent", sorted(p.name for p in build.ASSETS.iterdir() if (p / "config.json").is_file()))
def test_shipped_agents_are_portable_and_say_where_an_answer_ends(agent):
    fields = json.loads((build.ASSETS / agent / "tokenizer_config.json").read_text())
    assert fields["tokenizer_class"] == "PreTrainedTokenizerFast"
    end = ChatFormat.from_tokenizer(load_tokenizer(build.ASSETS / agent)).end_token
    assert json.loads((build.ASSETS / agent / "generation_config.json").read_text()) == {"eos_token_id": [end]}

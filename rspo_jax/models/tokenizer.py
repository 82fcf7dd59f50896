"""Tokenizers: loading one from a directory, and training a small one whose vocabulary holds whole entities and verbs.

The trained tokenizer is a byte-level BPE, so every text comes back exactly. Two choices serve very small models, which
learn an environment by copying names from observations into actions:

1. A phrase ("fridge 1", "go to") is one token wherever it stands as whole words.
2. A name has the same id in a sentence, at the start of a line and inside an action. Words own the space before them,
   as in GPT-2, and text that begins, or follows a line break, "[", "(" or "|>", is given such a space, which decoding
   takes away again: "click[navy]" and "color: navy" share the token of " navy".
"""

import json
import pathlib
import re
from collections.abc import Iterable, Sequence

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

PAD, END, USER, ASSISTANT = "<|pad|>", "<|end|>", "<|user|>", "<|assistant|>"

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}<|assistant|>{{ message['content'] }}<|end|>"
    "{% else %}<|user|>{{ message['content'] }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

# After these, and at the very start, a space is put in; before spaces too, so that decoding may always take one away.
_OPENINGS = ("\n", "[", "(", "|>")
_WORD = r" ?\w+| ?[^\s\w]|\s"
_SELF_DESCRIBED = ("PreTrainedTokenizerFast", "TokenizersBackend")
_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")


def load_tokenizer(directory: str | pathlib.Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a Hugging Face model directory.

    A length to cut or pad to that its files were saved with is dropped: prompts are encoded whole. Raises
    FileNotFoundError where the directory or its tokenizer files are missing, ValueError where they cannot be read;
    nothing is ever downloaded.
    """
    path = pathlib.Path(directory)
    if not path.is_dir():
        raise FileNotFoundError(f"There is no model directory {path}; give the path of a local Hugging Face directory.")
    if not any((path / name).is_file() for name in _FILES):
        raise FileNotFoundError(
            f"Model directory {path} has no tokenizer; copy the model's tokenizer.json and tokenizer_config.json there."
        )
    try:
        tokenizer = _read(path)
    except Exception as error:  # the libraries raise classes of their own, and plain Exception
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"The tokenizer of {path} cannot be read ({reason}); copy the model's tokenizer.json and "
            "tokenizer_config.json there again."
        ) from None
    if tokenizer.is_fast:
        tokenizer.backend_tokenizer.no_truncation()
        tokenizer.backend_tokenizer.no_padding()
    return tokenizer


def _read(path: pathlib.Path) -> PreTrainedTokenizerBase:
    config = path / "tokenizer_config.json"
    declared = json.loads(config.read_text()).get("tokenizer_class") if config.is_file() else None
    # Files that describe themselves completely are read as they are: AutoTokenizer rebuilds them from their vocabulary,
    # by the rules of the model family in config.json, for some families (qwen2 with transformers 5).
    loader = PreTrainedTokenizerFast if declared in _SELF_DESCRIBED else AutoTokenizer
    return loader.from_pretrained(str(path), local_files_only=True)


def make_portable(directory: str | pathlib.Path) -> None:
    """Rewrites what transformers 5 saved of a tokenizer in the words of transformers 4, which both of them read."""
    path = pathlib.Path(directory) / "tokenizer_config.json"
    fields = json.loads(path.read_text()) if path.is_file() else {}
    if fields.get("tokenizer_class") == "TokenizersBackend":
        fields["tokenizer_class"] = "PreTrainedTokenizerFast"
    if isinstance(fields.get("extra_special_tokens"), list):
        fields["additional_special_tokens"] = fields.pop("extra_special_tokens")
    if fields:
        path.write_text(json.dumps(fields, indent=2, ensure_ascii=False, sort_keys=True) + "\n")


def encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Ids of `text` alone: special tokens that are written in it count, none is added around it."""
    if tokenizer.is_fast:  # the wrapper around this call costs five times as much as the call
        return tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
    return tokenizer.encode(text, add_special_tokens=False)


def train_tokenizer(texts: Iterable[str], phrases: Sequence[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Trains a byte-level BPE of at most `vocab_size` tokens on `texts`, with every phrase as a token of its own.

    A phrase is matched as whole words, the longest first; blanks around it are dropped. Same input, same tokenizer. Its
    chat template is "<|user|>{content}<|assistant|>{answer}<|end|>" and so on. Raises ValueError where vocab_size
    cannot hold the bytes and the phrases.
    """
    normalizer = _normalizer()
    words, marks = _phrase_forms(phrases, normalizer)
    forms = [_to_byte_level(form) for form in [*words, *marks, *(" " + mark for mark in marks)]]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges_room = vocab_size - len(forms)
    if merges_room < len(alphabet) + 4:
        raise ValueError(
            f"vocab_size = {vocab_size} is too small for {len(alphabet)} bytes, 4 special tokens and {len(forms)} "
            f"phrase tokens; raise it to more than {len(alphabet) + 4 + len(forms)} or pass fewer phrases."
        )
    phrase_pattern = _phrase_pattern(words, marks)
    bpe = Tokenizer(models.BPE())
    bpe.normalizer = normalizer
    bpe.pre_tokenizer = _pre_tokenizer(phrase_pattern, "removed")  # merges are for the words that no phrase covers
    special = [AddedToken(token, special=True, normalized=False) for token in (PAD, END, USER, ASSISTANT)]
    bpe.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=merges_room, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        ),
    )
    model = json.loads(bpe.to_str())["model"]
    vocab = model["vocab"]
    for form in forms:
        vocab.setdefault(form, len(vocab))
    merges = [tuple(pair) for pair in model["merges"]]
    tokenizer = Tokenizer(
        models.BPE(vocab, merges, ignore_merges=True)
    )  # a piece that is in the vocabulary is one token
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = _pre_tokenizer(phrase_pattern, "isolated")
    tokenizer.decoder = _decoder()
    tokenizer.add_special_tokens(special)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=END, clean_up_tokenization_spaces=False
    )
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


def _normalizer():
    """Puts the space in after every opening; but not at the end of a line, where no word could own it."""
    rules = [normalizers.Replace(Regex(re.escape(o) + r"(?=[^\n])"), o + " ") for o in _OPENINGS]
    return normalizers.Sequence([normalizers.Prepend(" "), *rules])


def _decoder():
    """Bytes to text, less one space after every opening."""
    opening = "|".join(re.escape(o) for o in _OPENINGS)
    return decoders.Sequence([decoders.ByteLevel(), decoders.Replace(Regex(rf"(?<=\A|{opening}) "), "")])


def _phrase_forms(phrases: Sequence[str], normalizer) -> tuple[list[str], list[str]]:
    """Phrases as they look in normalised text: (those that begin with a word, with its space; those that do not)."""
    words, marks = {}, {}
    for phrase in phrases:
        core = normalizer.normalize_str(phrase.strip(" ")).removeprefix(" ")
        if not core:
            continue
        if core[0].isalnum() or core[0] == "_":
            words[" " + core] = None
        else:
            marks[core] = None
    return list(words), list(marks)


def _pre_tokenizer(phrase_pattern: str | None, phrase_behavior: str):
    """Splits text into phrases and words, then writes each as byte-level characters."""
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if phrase_pattern is None:
        return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(_WORD), "isolated"), byte_level])
    if phrase_behavior == "removed":
        without = pre_tokenizers.Split(Regex(phrase_pattern), "removed")
        return pre_tokenizers.Sequence([without, pre_tokenizers.Split(Regex(_WORD), "isolated"), byte_level])
    pattern = Regex(f"{phrase_pattern}|{_WORD}")
    return pre_tokenizers.Sequence([pre_tokenizers.Split(pattern, "isolated"), byte_level])


def _phrase_pattern(words: Sequence[str], marks: Sequence[str]) -> str | None:
    """One regular expression for all phrases, the longest match first, never ending inside a word."""
    parts = [_prefix_tree_pattern(words)] if words else []
    parts += [" ?" + _prefix_tree_pattern(marks)] if marks else []
    return "|".join(parts) or None


def _prefix_tree_pattern(strings: Sequence[str]) -> str:
    """A regular expression that shares the strings' prefixes: a match costs a phrase's length, not their number."""
    tree: dict = {}
    for string in strings:
        node = tree
        for char in string:
            node = node.setdefault(char, {})
        node[""] = string

    def render(node: dict) -> str:
        branches = [_literal(char) + render(child) for char, child in node.items() if char]
        if "" in node:
            branches.append(r"(?!\w)" if node[""][-1].isalnum() or node[""][-1] == "_" else "")
        return branches[0] if len(branches) == 1 else "(?:" + "|".join(branches) + ")"

    return render(tree)


def _literal(char: str) -> str:
    return char if char.isalnum() or char in " \n" else "\\" + char


def _to_byte_level(text: str) -> str:
    """`text` in the byte-level alphabet, which has a printable character for every byte."""
    return "".join(piece for piece, _ in pre_tokenizers.ByteLevel(False, use_regex=False).pre_tokenize_str(text))

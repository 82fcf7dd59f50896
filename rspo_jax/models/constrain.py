"""Constrained decoding: lists of admissible actions, compiled to one prefix tree of token ids per row.

Host-side and NumPy only; `sampler.generate` walks the trees on the device. Letters: B rows, K children of a node at
most, V vocabulary.
"""

import functools
import string
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerBase

from rspo_jax.envs.base import FREE_TEXT
from rspo_jax.models.tokenizer import encode

_FREE_CHARS = frozenset(string.ascii_lowercase + string.digits + " .,'&/%+-$:#()\"")
_SLOT = -1  # stands for the free text in a path of token ids
_MIN_NODES, _MIN_CHILDREN = 64, 16


class Trie(NamedTuple):
    """Prefix trees of the token sequences that each row may produce. Node 0 is the root; paths end with the end token.

    child_token: i32[B, nodes, K]  next tokens, -1 pads.
    child_node:  i32[B, nodes, K]  where they lead (0 after the end token, where nobody looks).
    free:        bool[B, nodes]    the node takes free text: any of `free_tokens`, staying at the node, or, after at
                                   least one of them, one of its children. After `free_limit` of them only a child.
    decided:     bool[B, nodes]    one single path leads from here to the end.
    free_tokens: bool[V]           tokens of free text; none is ever a child of a free node.
    free_limit:  i32[]             longest free text, in tokens.
    """

    child_token: np.ndarray
    child_node: np.ndarray
    free: np.ndarray
    decided: np.ndarray
    free_tokens: np.ndarray
    free_limit: np.ndarray


class _Tree(NamedTuple):
    """One row's tree as flat edges: edge e leads from parent[e], as its rank[e]-th child, by token[e], to node[e]."""

    parent: np.ndarray
    rank: np.ndarray
    token: np.ndarray
    node: np.ndarray
    free: list[int]
    decided: list[int]
    nodes: int
    width: int


class ActionGrammar:
    """Compiles lists of admissible actions for one tokenizer; encodings and repeated lists are kept.

    Args:
      end_token: the end-of-turn id that follows every action.
      vocab_size: rows of the model's embedding (at least len(tokenizer)).
      free_limit: longest text in a FREE_TEXT slot, in tokens.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, end_token: int, vocab_size: int, free_limit: int):
        if vocab_size < len(tokenizer):
            raise ValueError(
                f"vocab_size = {vocab_size} of the model is below the tokenizer's {len(tokenizer)} tokens."
            )
        if free_limit < 1:
            raise ValueError(f"free_limit = {free_limit} leaves no room for free text; use 1 or more.")
        self._tokenizer = tokenizer
        self._end_token = end_token
        self._free_limit = np.int32(free_limit)
        self.free_tokens = free_text_tokens(tokenizer, vocab_size)
        self._free_ids = frozenset(np.flatnonzero(self.free_tokens).tolist())
        self._path = functools.lru_cache(maxsize=1 << 16)(self._encode_action)
        self._tree = functools.lru_cache(maxsize=1 << 12)(self._build_tree)

    def compile(self, actions: Sequence[Iterable[str]]) -> Trie:
        """The trees of the admissible actions of each row; a row without any may only end its turn.

        Sizes are powers of two, so that few shapes are compiled. Raises ValueError for an action whose free text could
        not be told from what follows it.
        """
        trees = [self._tree(tuple(row)) for row in actions]
        nodes = _power_of_two(max((t.nodes for t in trees), default=1), _MIN_NODES)
        width = _power_of_two(max((t.width for t in trees), default=1), _MIN_CHILDREN)
        child_token = np.full((len(trees), nodes, width), -1, np.int32)
        child_node = np.zeros((len(trees), nodes, width), np.int32)
        free, decided = np.zeros((2, len(trees), nodes), bool)
        for b, tree in enumerate(trees):
            child_token[b, tree.parent, tree.rank] = tree.token
            child_node[b, tree.parent, tree.rank] = tree.node
            free[b, tree.free] = True
            decided[b, tree.decided] = True
        return Trie(child_token, child_node, free, decided, self.free_tokens, self._free_limit)

    def _encode_action(self, action: str) -> tuple[int, ...]:
        """The one canonical tokenisation of an action: each part between slots on its own, then the end token."""
        first, *rest = action.split(FREE_TEXT)
        path = encode(self._tokenizer, first) if first else []
        for part in rest:
            path += [_SLOT, *continuation(self._tokenizer, part)]
        path.append(self._end_token)
        after_slot = [after for slot, after in zip(path, path[1:], strict=False) if slot == _SLOT]
        if any(after == _SLOT or after in self._free_ids for after in after_slot):
            raise ValueError(
                f"Action {action!r}: what follows {FREE_TEXT!r} could be part of the free text; let it begin with ']' "
                "or another character that free text cannot hold, or end the action there."
            )
        return tuple(path)

    def _build_tree(self, actions: tuple[str, ...]) -> _Tree:
        """Merges the paths of one row. An action that goes on like free text at another's slot is left to that slot."""
        children: list[dict[int, int]] = [{}]
        free: list[int] = []
        paths = [self._path(action) for action in actions] or [(self._end_token,)]
        for path in sorted(paths, key=lambda path: _SLOT not in path):
            node = 0
            for token in path:
                if token == _SLOT:
                    free.append(node)
                elif token in children[node]:
                    node = children[node][token]
                elif node in free and token in self._free_ids:
                    break
                else:
                    target = 0 if token == self._end_token else len(children)
                    children[node][token] = target
                    if target:
                        children.append({})
                    node = target
        return _flatten(children, free)


def _flatten(children: list[dict[int, int]], free: list[int]) -> _Tree:
    decided = [False] * len(children)
    for node in range(len(children) - 1, -1, -1):  # children are younger than their parents
        if len(children[node]) == 1 and node not in free:
            (target,) = children[node].values()
            decided[node] = target == 0 or decided[target]
    edges = [(n, k, t, c) for n, kids in enumerate(children) for k, (t, c) in enumerate(kids.items())]
    parent, rank, token, node = np.array(edges, np.int32).T
    return _Tree(
        parent, rank, token, node, free, np.flatnonzero(decided).tolist(), len(children), max(map(len, children))
    )


def continuation(tokenizer: PreTrainedTokenizerBase, text: str, after: str = "a") -> list[int]:
    """Ids of `text` where it follows the text `after` (by default a word), as far as no token spans both."""
    before, joined = encode(tokenizer, after), encode(tokenizer, after + text)
    return joined[len(before) :] if joined[: len(before)] == before else encode(tokenizer, text)


def free_text_tokens(tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> np.ndarray:
    """Tokens that free text is made of, bool[V]: lower-case letters, digits, spaces and plain punctuation, no brackets.

    So free text survives lower-casing, stays on one line, and cannot close or open an action.
    """
    anchor = encode(tokenizer, "a")
    start = len(tokenizer.decode(anchor))
    texts = tokenizer.batch_decode([[*anchor, i] for i in range(len(tokenizer))], clean_up_tokenization_spaces=False)
    out = np.zeros(vocab_size, bool)
    special = set(tokenizer.all_special_ids)
    for i, text in enumerate(texts):
        out[i] = i not in special and len(text) > start and _FREE_CHARS.issuperset(text[start:])
    return out


def _power_of_two(n: int, least: int) -> int:
    return max(least, 1 << (n - 1).bit_length())

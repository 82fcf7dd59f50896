"""Episodes of a scripted demonstrator, as text and as token rows for imitation."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rspo_jax.decoder import Policy
from rspo_jax.envs.base import FREE_TEXT, TaskSuite
from rspo_jax.envs.prompts import PromptFormat
from rspo_jax.models.constrain import ActionGrammar, continuation
from rspo_jax.models.tokenizer import encode
from rspo_jax.packing import Row
from rspo_jax.trajectory import FREE_TEXT as FREE
from rspo_jax.trajectory import LISTED


@dataclass(frozen=True)
class Demonstration:
    """One episode in append context: what the agent would read, could do, and what the demonstrator did."""

    prompts: list[str]
    admissible: list[tuple[str, ...]]
    actions: list[str]
    won: bool


def collect(
    suite: TaskSuite,
    demonstrator,
    prompt: PromptFormat,
    *,
    split: str,
    episodes: int,
    skill: float,
    max_turns: int,
    seed: int,
) -> list[Demonstration]:
    """Plays `episodes` tasks of a split (in a seeded order) with the demonstrator at `skill`."""
    rng = np.random.default_rng([seed, 0x5F7])
    env = suite.make_env()
    tasks = suite.splits[split]
    out = []
    for i in range(episodes):
        if i % len(tasks) == 0:
            order = rng.permutation(len(tasks))
        obs, info = env.reset(**tasks[int(order[i % len(tasks)])])
        act = demonstrator(env, np.random.default_rng([seed, i]), skill)
        prompts, admissible, actions, previous = [], [], [], None
        for turn in range(max_turns):
            prompts.append(prompt.first(obs, info) if turn == 0 else prompt.next(obs, info, previous))
            admissible.append(tuple(info["admissible_actions"]))
            actions.append(act(obs, info))
            previous = obs
            obs, _, terminated, truncated, info = env.step(actions[-1])
            if terminated or truncated:
                break
        out.append(Demonstration(prompts, admissible, actions, bool(info["won"])))
    env.close()
    return out


def action_tokens(tokenizer, action: str, admissible: Sequence[str], end_token: int) -> list[int]:
    """The canonical ids of an action, free text included, as the constrained sampler would produce them."""
    for template in admissible:
        before, slot, after = template.partition(FREE_TEXT)
        if slot and action.startswith(before) and action.endswith(after):
            query = action[len(before) : len(action) - len(after)]
            ids = encode(tokenizer, before) if before else []
            return [*ids, *continuation(tokenizer, query, before or "a"), *continuation(tokenizer, after), end_token]
    return [*encode(tokenizer, action), end_token]


def trace(grammar: ActionGrammar, tokens: Sequence[int], admissible: Sequence[str]):
    """How the constraint saw each token of an action: lists (sampled, constraint, allowed), as in `Generated`.

    Raises ValueError for tokens that the constraint would not have let through.
    """
    trie = grammar.compile([admissible])
    node, free_count = 0, 0
    sampled, constraint, allowed = [], [], []
    for token in tokens:
        at_slot = bool(trie.free[0, node])
        is_open = at_slot and free_count < int(trie.free_limit)
        children = trie.child_token[0, node]
        listed = [int(c) for c in children if c >= 0]
        if at_slot and free_count == 0:
            listed = []
        if token not in listed and not (is_open and trie.free_tokens[token]):
            raise ValueError(f"token {token} of an action is not admissible here")
        sampled.append(is_open or len(listed) > 1)
        constraint.append(FREE if is_open else LISTED)
        allowed.append(listed)
        if token in listed:
            node, free_count = int(trie.child_node[0, node][list(children).index(token)]), 0
        else:
            free_count += 1
    return sampled, constraint, allowed


def to_row(demo: Demonstration, policy: Policy, max_tokens: int) -> Row:
    """The episode as one append-context row, cut before the turn that does not fit; inadmissible actions stay
    as text that the model reads but is not trained on."""
    row = Row(episode=-1)
    for turn, (prompt, admissible, action) in enumerate(zip(demo.prompts, demo.admissible, demo.actions, strict=True)):
        ids = policy.chat.first(prompt) if turn == 0 else policy.chat.next(prompt)
        tokens = action_tokens(policy.tokenizer, action, admissible, policy.chat.end_token)
        if len(row) + len(ids) + len(tokens) > max_tokens:
            break
        row.add_prompt(ids, turn)
        zeros = [0.0] * len(tokens)
        if policy.grammar is None:
            row.add_response(tokens, zeros, [True] * len(tokens), [0] * len(tokens), [()] * len(tokens), turn)
            continue
        try:
            sampled, constraint, allowed = trace(policy.grammar, tokens, admissible)
        except ValueError:
            row.add_prompt(tokens, turn)
        else:
            row.add_response(tokens, zeros, sampled, constraint, allowed, turn)
    return row

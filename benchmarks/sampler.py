"""Tokens per CPU-second of rollout decoding: prefill of prompts, then sampled tokens, with and without a constraint.

    python benchmarks/sampler.py [--model=tiny|4m|all] [--peer]

`tiny` is an agent of the size that this project ships (64 rows, 2 layers, width 64), `4m` a Qwen2-like model of 4.2M
parameters (32 rows, prompts of 384 tokens). --peer adds Hugging Face `generate` on the same weights, prompts and number
of tokens (needs PyTorch). Times are CPU seconds of this process after a first, compiling run; random weights.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
import numpy as np

from rspo_jax.models import hf, sampler, transformer
from rspo_jax.models.constrain import ActionGrammar
from rspo_jax.models.tokenizer import train_tokenizer
from rspo_jax.models.transformer import ModelConfig

NO_TOKEN = -1  # never sampled: every row writes all its tokens, so that both programs do the same work
SIZES = {  # name -> (config, rows, prompt tokens, new tokens)
    "tiny": (ModelConfig(1024, 64, 192, 2, 2, 2, 32), 64, 96, 32),
    "4m": (ModelConfig(4096, 256, 768, 4, 4, 2, 64), 32, 384, 32),
}


def cpu_seconds(run, repeats: int) -> float:
    run()
    start = time.process_time()
    for _ in range(repeats):
        run()
    return (time.process_time() - start) / repeats


def ours(params, config, prompts, new_tokens, trie=None, end_token=NO_TOKEN):
    """A function that samples one response per prompt and returns the number of its tokens."""
    rows, length = prompts.shape
    mask, active = np.ones(prompts.shape, bool), np.ones(rows, bool)
    keys = jax.random.split(jax.random.key(0), rows)

    def run():
        cache = transformer.init_cache(config, rows, length + new_tokens)
        hidden, cache = sampler.prefill(params, config, cache, prompts, mask, 0)
        generated, _ = sampler.generate(
            params, config, cache, hidden, length, keys, trie=trie, active=active, max_tokens=new_tokens,
            temperature=1.0, end_token=end_token,
        )  # fmt: skip
        return int(np.asarray(generated.mask).sum())

    return run


def peer(params, config, prompts, new_tokens):
    """The same with Hugging Face `generate`, from the same weights."""
    import torch
    import transformers

    with tempfile.TemporaryDirectory() as directory:
        hf.save_hf(directory, config, params)
        model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    torch.set_num_threads(1)  # the fewest CPU-seconds: its threads wait for each other by spinning
    ids = torch.tensor(np.asarray(prompts), dtype=torch.long)
    options = {"do_sample": True, "top_k": 0, "min_new_tokens": new_tokens, "max_new_tokens": new_tokens}

    def run():
        with torch.inference_mode():
            model.generate(ids, attention_mask=torch.ones_like(ids), pad_token_id=0, **options)

    return run


def action_trie(config, rows, rng):
    """Thirty household actions per row, as in a turn of a tiny agent."""
    things = [f"{name} {i}" for name in ("cabinet", "drawer", "shelf", "mug", "apple") for i in range(1, 21)]
    verbs = ["go to", "open", "close", "examine", "take", "from"]
    tokenizer = train_tokenizer(["go to cabinet 1"], [*things, *verbs], 512)
    grammar = ActionGrammar(tokenizer, end_token=tokenizer.eos_token_id, vocab_size=config.vocab_size, free_limit=8)
    lists = []
    for _ in range(rows):
        here = rng.choice(things, 20, replace=False)
        taken = [f"take {a} from {b}" for a, b in zip(here[:8], here[8:], strict=False)]
        lists.append([*(f"go to {name}" for name in here), *taken, f"open {here[0]}", f"examine {here[0]}"])
    start = time.process_time()
    trie = grammar.compile(lists)
    print(f"  grammar: {1e3 * (time.process_time() - start) / rows:.2f} ms a row (30 actions, none seen before)")
    return trie, tokenizer.eos_token_id


def measure(name: str, with_peer: bool) -> None:
    config, rows, length, new_tokens = SIZES[name]
    rng = np.random.default_rng(0)
    params = transformer.init(jax.random.key(0), config)
    prompts = rng.integers(0, config.vocab_size, (rows, length)).astype(np.int32)
    print(f"{name}: {rows} rows, {length} prompt + {new_tokens} sampled tokens")
    repeats = 10 if name == "tiny" else 2
    seconds = cpu_seconds(ours(params, config, prompts, new_tokens), repeats)
    print(f"  free:        {rows * new_tokens / seconds:8.0f} sampled tokens per CPU-second, {seconds:.3f} s")
    trie, end_token = action_trie(config, rows, rng)
    turn = ours(params, config, prompts, new_tokens, trie, end_token)
    seconds = cpu_seconds(turn, repeats)
    print(f"  constrained: {turn() / seconds:8.0f} response tokens per CPU-second, {1e3 * seconds:.1f} ms a turn")
    if with_peer:
        seconds = cpu_seconds(peer(params, config, prompts, new_tokens), repeats)
        print(f"  generate:    {rows * new_tokens / seconds:8.0f} sampled tokens per CPU-second, {seconds:.3f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=[*SIZES, "all"], default="all")
    parser.add_argument("--peer", action="store_true")
    arguments = parser.parse_args()
    for name in SIZES if arguments.model == "all" else [arguments.model]:
        measure(name, arguments.peer)

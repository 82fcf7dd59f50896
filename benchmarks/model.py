"""Speed and memory of the model on this machine, beside PyTorch transformers on the same weights if torch is installed.

    python benchmarks/model.py [--size=tiny|small] [--threads=1]

Prints one JSON object per line: tokens per CPU-second and per wall-second, and the largest log-prob difference between
the two programs. `update` is forward and backward of the mean log-prob of 25 % of the tokens; `rollout` is a prefill
and single-token steps with a growing sequence. Peak memory is that of the process after the step, in MB.
"""

import argparse
import json
import os
import resource
import tempfile
import time

SIZES = {  # width, inner width, layers, heads, key/value heads, vocabulary, rows, tokens in a row
    "tiny": (64, 192, 2, 2, 2, 1500, 64, 112),
    "small": (256, 768, 4, 4, 2, 4096, 32, 512),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    os.sched_setaffinity(0, list(os.sched_getaffinity(0))[: options.threads])  # before JAX counts its processors
    measure(options)


def measure(options):
    import jax
    import numpy as np

    from rspo_jax import models

    width, inner, layers, heads, kv_heads, vocab, rows, length = SIZES[options.size]
    config = models.ModelConfig(vocab, width, inner, layers, heads, kv_heads, width // heads)
    params = models.init(jax.random.key(0), config)
    tokens = np.random.default_rng(0).integers(0, vocab, (rows, length)).astype(np.int32)
    trained = np.random.default_rng(1).random((rows, length)) < 0.25
    logp = {}
    for remat in (False, True):
        step = jax_update(config, tokens, trained, remat)
        logp["jax"] = report(f"jax update remat={remat}", lambda step=step: step(params), options.steps, tokens.size)
    report("jax rollout", jax_rollout(params, config, tokens), options.steps, rows * (length + 32))
    try:
        import torch
    except ImportError:
        return
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as directory:
        models.save_hf(directory, config, params)
        model = torch_model(directory)
    logp["torch"] = report("torch update", torch_update(model, tokens, trained), options.steps, tokens.size)
    report("torch rollout", torch_rollout(model, tokens), options.steps, rows * (length + 32))
    print(json.dumps({"largest log-prob difference": float(np.abs(logp["jax"] - logp["torch"])[trained].max())}))


def report(name, step, steps, tokens):
    """Runs `step` once to warm up and `steps` times measured; returns its last result."""
    result = step()
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(steps):
        result = step()
    cpu, wall = (time.process_time() - cpu) / steps, (time.perf_counter() - wall) / steps
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    figures = {"tokens/cpu-s": round(tokens / cpu), "tokens/s": round(tokens / wall), "peak MB": peak}
    print(json.dumps({"what": name} | figures), flush=True)
    return result


def jax_update(config, tokens, trained, remat):
    import jax
    import jax.numpy as jnp
    import numpy as np

    from rspo_jax import models

    @jax.jit
    def step(params, tokens, trained):
        def loss(params):
            states = models.hidden(params, config, tokens, remat=remat)[:, :-1].reshape(-1, config.hidden_size)
            mask, targets = trained[:, 1:].reshape(-1), tokens[:, 1:].reshape(-1)
            logp, _ = models.token_logprobs(states, models.head(params, config), targets, mask=mask)
            return jnp.sum(logp) / jnp.sum(mask), logp

        return jax.value_and_grad(loss, has_aux=True)(params)

    def run(params):
        (_, logp), grads = jax.block_until_ready(step(params, tokens, trained))
        return np.pad(np.asarray(logp).reshape(len(tokens), -1), ((0, 0), (1, 0)))

    return run


def jax_rollout(params, config, tokens):
    import functools

    import jax
    import jax.numpy as jnp

    from rspo_jax import models

    rows, length = tokens.shape
    slots = -(-(length + 32) // 256) * 256

    @functools.partial(jax.jit, donate_argnums=0)
    def prefill(cache):
        return models.extend(params, config, cache, tokens, jnp.ones_like(tokens, bool), 0)

    @functools.partial(jax.jit, donate_argnums=0)
    def decode(cache, hidden):
        def body(t, state):
            hidden, cache = state
            token = jnp.argmax(hidden @ models.head(params, config), axis=-1)[:, None]
            hidden, cache = models.extend(params, config, cache, token, jnp.ones((rows, 1), bool), length + t)
            return hidden[:, 0], cache

        return jax.lax.fori_loop(0, 32, body, (hidden, cache))

    def run():
        hidden, cache = prefill(models.init_cache(config, rows, slots))
        return jax.block_until_ready(decode(cache, hidden[:, -1])[0])

    return run


def torch_model(directory):
    import torch
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)


def torch_update(model, tokens, trained):
    import torch

    ids, mask = torch.tensor(tokens).long(), torch.tensor(trained[:, 1:])

    def run():
        model.zero_grad()
        logits = model(ids).logits[:, :-1]
        logp = torch.log_softmax(logits, dim=-1).gather(2, ids[:, 1:, None])[..., 0]
        ((logp * mask).sum() / mask.sum()).backward()
        return torch.nn.functional.pad(logp.detach(), (1, 0)).numpy()

    return run


def torch_rollout(model, tokens):
    import torch

    ids = torch.tensor(tokens).long()
    options = {"max_new_tokens": 32, "min_new_tokens": 32, "do_sample": False, "pad_token_id": 0}

    def run():
        with torch.no_grad():
            return model.generate(ids, attention_mask=torch.ones_like(ids), **options)

    return run


if __name__ == "__main__":
    main()

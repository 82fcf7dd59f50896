"""Episodes and one update on a mesh; run as a program, on the number of devices that JAX was given."""

import math
import sys

import jax
import numpy as np
import tiny

from rspo_jax import packing


def compute(data: int = 1, fsdp: int = 1, tensor: int = 1, context: str = "append") -> dict[str, np.ndarray]:
    """Sampled tokens and log-probs, and gradient and loss of one update."""
    mesh = {"mesh__data": data, "mesh__fsdp": fsdp, "mesh__tensor": tensor}
    tree = tiny.config(context__mode=context, optim__micro_rows=8, **mesh)
    policy, params = own = tiny.policy(tree)
    learner = tiny.learner(tree)
    state = learner.init(params)
    episodes = tiny.play(tree, (policy, policy.merged(state.params)))
    rows = packing.pack_rows([row for e in episodes for row in e.rows])
    batch = tiny.loss_batch(tree, own)
    state, metrics = learner.update(state, batch, jax.random.key(0), kl_coef=0.1)
    out = {"tokens": rows.tokens, "logp": rows.logp, "loss": metrics["loss"], "grad_norm": metrics["grad_norm"]}
    gradient = tiny.gradient_of(state)
    return out | {"embed": gradient["embed_tokens"], "q": gradient["layers"]["self_attn"]["q_proj"]["kernel"]}


if __name__ == "__main__":
    path, context, *sizes = sys.argv[1:]
    sizes = [int(size) for size in sizes]
    assert jax.device_count() == math.prod(sizes)
    np.savez(path, **compute(*sizes, context=context))

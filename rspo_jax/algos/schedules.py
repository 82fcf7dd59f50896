"""Rules that depend on the progress of training: share of off-policy data, KL coefficient, when the guide restarts."""

import jax
import jax.numpy as jnp

SCHEDULES = ("constant", "linear", "cosine")
GUIDE_RESETS = ("always", "until_success", "never")


def decay(kind: str, value, step, total_steps) -> jax.Array:
    """A quantity at update `step` in [0, total_steps] that starts at `value`; f32[].

    constant: value;  linear: value (1 - step / total);  cosine: value (1 + cos(pi step / total)) / 2.
    The last two end at 0. For the off-policy share alpha (the target is then trained on its own data alone at the end)
    and for the learning rate.
    """
    progress = jnp.clip(jnp.asarray(step, jnp.float32) / total_steps, 0.0, 1.0)
    if kind == "constant":
        return jnp.asarray(value, jnp.float32)
    if kind == "linear":
        return value * (1.0 - progress)
    if kind == "cosine":
        return value * 0.5 * (1.0 + jnp.cos(jnp.pi * progress))
    raise ValueError(f"A schedule must be one of {', '.join(SCHEDULES)}, got {kind!r}.")


def adaptive_kl(beta, observed, *, target, horizon, samples) -> jax.Array:
    """Next KL coefficient: beta (1 + clip(observed / target - 1, -0.2, 0.2) * samples / horizon); f32[].

    Source: Ziegler et al., arXiv 1909.08593, section 2.2.
    """
    error = jnp.clip(observed / target - 1.0, -0.2, 0.2)
    return jnp.asarray(beta * (1.0 + error * samples / horizon), jnp.float32)


def should_keep_guide(
    mode: str, successes_in_D: int, successes_of_A: int, min_successes: int, loops_kept: int, guide_max_loops: int
) -> bool:
    """Whether the next loop continues with the guide of this one instead of a copy of the target.

    always: no. never: yes. until_success: yes while the buffer D holds fewer than `min_successes` AND the target's own
    episodes of this loop do too, for at most `guide_max_loops` loops in a row (`loops_kept` so far). Where the target
    never succeeds, a guide that restarts from it begins at the same place for ever; without the second condition and
    the bound, a guide stuck in a reward hack would never be replaced.
    """
    if mode not in GUIDE_RESETS:
        raise ValueError(f"guide_reset must be one of {', '.join(GUIDE_RESETS)}, got {mode!r}.")
    if mode != "until_success":
        return mode == "never"
    failing = successes_in_D < min_successes and successes_of_A < min_successes
    return bool(failing and loops_kept < guide_max_loops)

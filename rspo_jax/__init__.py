"""RSPO in JAX: reward-swap policy optimization for multi-turn language agents."""

__version__ = "0.1.0"

"""RSPO in JAX: reward-swap policy optimization for multi-turn language agents."""

import os

# transformers reads tokenizers here and nothing else; that it finds no PyTorch is nothing to warn about.
os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")

__version__ = "0.1.0"

"""Packaging of rspo_jax; tool settings are in pyproject.toml."""

import setuptools

setuptools.setup(
    name="rspo_jax",
    version="0.1.0",
    description="Reward-Swap Policy Optimization for language-model agents, in JAX",
    long_description="RSPO on GRPO, PPO and GiGPO for multi-turn language-model agents on WebShop and ALFWorld.",
    license="MIT",
    author="The rspo_jax authors",
    packages=setuptools.find_packages(include=["rspo_jax", "rspo_jax.*"]),
    package_data={"rspo_jax": ["assets/**/*"]},
    include_package_data=True,
    python_requires=">=3.11",
    install_requires=[
        "absl-py>=2.1",
        "chex>=0.1.90",
        "flax>=0.12",
        "gymnasium>=1.0",
        "jax>=0.9",
        "jinja2>=3.1",
        "ml-collections>=1.0",
        "numpy>=2.0",
        "optax>=0.2.6",
        "orbax-checkpoint>=0.11.32",
        "rich>=13.7",
        "safetensors>=0.4.3",
        "scipy>=1.13",
        "tensorboardX>=2.6.2",
        "tokenizers>=0.20",
        "transformers>=4.51",
    ],
    extras_require={
        "test": ["hypothesis>=6.112", "pytest>=8.0", "ruff>=0.9", "setuptools>=70.1"],
        "torch": ["torch>=2.2"],
        "gpu": ["jax[cuda12]>=0.9"],
        "alfworld-official": ["alfworld>=0.4", "textworld[pddl]>=1.7"],
    },
)

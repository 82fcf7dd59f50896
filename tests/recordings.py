"""Where recordings of the official environments lie, for tests that replay them."""

import os
from pathlib import Path

import pytest


def recordings(environment: str) -> Path:
    """Folder of the recordings of `webshop` or `alfworld`; skips the test where they are not there.

    They are looked for in the folder that the variable RSPO_RECORDINGS names, else in `shared/data` beside the project.
    """
    default = Path(__file__).resolve().parents[1] / ".." / "shared" / "data"
    folder = Path(os.environ.get("RSPO_RECORDINGS", default)) / environment
    if not folder.is_dir():
        pytest.skip(f"no recordings of {environment} in {folder}")
    return folder

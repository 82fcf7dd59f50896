"""Settings of the whole suite."""

import hypothesis
import jax
import pytest

# No deadline: speed is measured by benchmarks/, and a busy machine must not fail a test. The same examples every time.
hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True)
hypothesis.settings.load_profile("repeatable")


@pytest.fixture(scope="module", autouse=True)
def _compiled_programs_end_with_their_module():
    """Each compiled program maps memory; those of the whole suite are more than Linux lets one process map."""
    yield
    jax.clear_caches()

"""Settings of the whole suite."""

import hypothesis

# No deadline: speed is measured by benchmarks/, and a busy machine must not fail a test. The same examples every time.
hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True)
hypothesis.settings.load_profile("repeatable")

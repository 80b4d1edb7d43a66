"""Loads the suite's own fixtures and sets the Hypothesis profiles; nothing else."""

import os

from hypothesis import settings

pytest_plugins = ["fixtures.servers", "fixtures.traffic"]

settings.register_profile("ci", deadline=None, derandomize=True, database=None, max_examples=100)
settings.register_profile("nightly", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

"""What all tests share: how long hypothesis may search, and what a sanitizer makes impossible."""

from __future__ import annotations

import gc
import os
import signal

import pytest
from hypothesis import settings

# No deadline: the machines that run this are shared, and a slow example is not a wrong one.
settings.register_profile("oncelog", deadline=None, max_examples=60, print_blob=True)
# Under sanitizers and in CI: fewer examples, the same ones each time.
settings.register_profile("ci", deadline=None, max_examples=20, derandomize=True, database=None)
# For a night: make test PYTEST_ARGS="--hypothesis-profile=long"
settings.register_profile("long", deadline=None, max_examples=2000, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "oncelog")

# A shell starts what it runs in the background with Ctrl-C ignored, and children inherit that. Tests that interrupt
# a child mean it.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Thousands of tests are as many objects as a program has: each collection of garbage would look at all of them."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def honest_memory() -> None:
    """Skips a test that measures memory where a sanitizer holds freed memory back."""
    if "libasan" in os.environ.get("LD_PRELOAD", ""):
        pytest.skip("the sanitizer's quarantine hides what is freed")

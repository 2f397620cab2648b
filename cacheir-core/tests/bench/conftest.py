"""The fake model of the runtime's tests, as the fixture ``fake``."""

from __future__ import annotations

from types import ModuleType

import pytest

from cacheir.testing import fake_model


@pytest.fixture(scope="session")
def fake() -> ModuleType:
    """``cacheir.testing.fake_model``."""
    return fake_model

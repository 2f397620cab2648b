"""The fake model of the runtime's tests, as the fixture ``fake``, and a runtime over it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def fake() -> ModuleType:
    """``../runtime/fake_executor.py``."""
    name = "cacheir_tests_fake_executor"
    if name not in sys.modules:
        path = Path(__file__).parent.parent / "runtime" / "fake_executor.py"
        found = importlib.util.spec_from_file_location(name, path)
        assert found is not None and found.loader is not None
        module = importlib.util.module_from_spec(found)
        sys.modules[name] = module
        found.loader.exec_module(module)
    return sys.modules[name]

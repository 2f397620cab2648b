"""The fake model for the tests of this folder, as the fixture ``fake``: a module, since these tests are no package."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def fake() -> ModuleType:
    """``fake_executor.py``."""
    name = "cacheir_tests_fake_executor"
    if name not in sys.modules:
        found = importlib.util.spec_from_file_location(name, Path(__file__).with_name("fake_executor.py"))
        assert found is not None and found.loader is not None
        module = importlib.util.module_from_spec(found)
        sys.modules[name] = module
        found.loader.exec_module(module)
    return sys.modules[name]

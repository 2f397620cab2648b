"""What the test kit adds to pytest: the option ``--accept``, with which ``PassTests`` writes what passes made."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option; pytest finds this module by the entry point of cacheir-core."""
    group = parser.getgroup("cacheir", "CacheIR's test kit")
    group.addoption("--accept", action="store_true", help="write NAME.after.cir of pass cases as passes make them")

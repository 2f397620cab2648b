"""How far a reused page may be off: as stated, more where pages are narrow, nothing where bits are promised."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cacheir.ir.types import KVType
from cacheir.runtime.engine.audit import tolerance_of
from cacheir.runtime.executor import Capabilities
from cacheir.testing.fake_model import FakeExecutor


def stated(**changes: object) -> Capabilities:
    return replace(FakeExecutor().capabilities(), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("capabilities", "dtypes", "expected"),
    [
        (stated(determinism="bit"), ("f32",), 0.0),
        (stated(determinism="bit"), ("int8",), 0.0),
        (stated(determinism="tolerance"), ("f32", "f32"), 2e-3),
        (stated(determinism="tolerance"), ("f32", "bf16"), 0.1),
        (stated(determinism="tolerance", rounding=0.3), ("f32",), 0.3),
        (stated(determinism="tolerance", rounding=0.3), ("fp8",), 0.3),
    ],
)
def test_tolerance(capabilities: Capabilities, dtypes: tuple[str, ...], expected: float) -> None:
    assert tolerance_of(capabilities, [KVType(1, 1, 8, dtype) for dtype in dtypes]) == expected

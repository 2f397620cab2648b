"""Weights on the device: what float16 cannot hold is refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed, and weights become its tensors")

from cacheir.errors import UsageError  # noqa: E402
from cacheir_cuda.residents import Residents  # noqa: E402


class Store:
    """One weight under every recipe."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def get(self, recipe: str) -> Any:
        return self.array


@pytest.mark.parametrize(
    ("largest", "dtype", "fits"), [(65504, "float16", True), (7e4, "bfloat16", True), (7e4, "float16", False)]
)
def test_a_weight_beyond_float16(largest: float, dtype: str, fits: bool) -> None:
    store = Store(np.full((2, 3), largest, np.float32))
    residents = Residents(store, torch.device("cpu"), getattr(torch, dtype))  # type: ignore[arg-type]
    if fits:
        assert residents.get("rows", ["a"]).isfinite().all()
        return
    with pytest.raises(UsageError, match="a has values that float16 cannot hold"):
        residents.get("rows", ["a"])

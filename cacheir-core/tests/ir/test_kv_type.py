"""What the keys and values of a token take."""

from __future__ import annotations

import pytest

from cacheir.ir.types import KVType


@pytest.mark.parametrize(("dtype", "nbytes"), [("f32", 4), ("f16", 2), ("bf16", 2), ("int8", 1), ("fp8", 1)])
def test_bytes_of_a_token_in_a_layer(dtype: str, nbytes: int) -> None:
    kind = KVType(layers=7, heads=3, head_dim=64, dtype=dtype)
    assert kind.token_bytes == (3 * 64 + 3 * 64) * nbytes  # keys and values

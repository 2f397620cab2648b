"""What the keys and values of a token take."""

from __future__ import annotations

import pytest

from cacheir.ir.type_parser import parse_type
from cacheir.ir.types import KVType


@pytest.mark.parametrize(("dtype", "nbytes"), [("f32", 4), ("f16", 2), ("bf16", 2)])
def test_bytes_of_a_token_in_a_layer(dtype: str, nbytes: int) -> None:
    kind = KVType(layers=7, heads=3, head_dim=64, dtype=dtype)
    assert kind.token_bytes == (3 * 64 + 3 * 64) * nbytes  # keys and values


@pytest.mark.parametrize("dtype", ["int8", "fp8"])
def test_codes_have_an_f32_scale_for_each_head(dtype: str) -> None:
    kind = KVType(layers=7, heads=3, head_dim=64, dtype=dtype)
    assert kind.token_bytes == 2 * 3 * (64 + 4)


@pytest.mark.parametrize("kind", [KVType(2, 3, 64, "f16", 512), KVType(2, 3, 64, "int8", 512, 4)])
def test_the_text_of_a_window_and_its_sinks_is_read_back(kind: KVType) -> None:
    assert parse_type(str(kind)) == kind

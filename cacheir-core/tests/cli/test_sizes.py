"""Sizes of memory as people write them."""

from __future__ import annotations

import pytest

from cacheir.cli.sizes import parse_size
from cacheir.errors import UsageError


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("2GiB", 2 * 2**30),
        ("1.5 GB", 1_500_000_000),
        ("800MB", 800_000_000),
        ("800mib", 800 * 2**20),
        ("64kB", 64_000),
        ("1TB", 10**12),
        ("4096", 4096),
        ("4096B", 4096),
    ],
)
def test_a_size(text: str, nbytes: int) -> None:
    assert parse_size(text, "--memory") == nbytes


@pytest.mark.parametrize(
    "text",
    ["", "GB", "-1GB", "2XB", "1e9", "0", "0GB", "2 G B", "nan", "\u0663GB", "2GiBs", "9" * 400, "9" * 300 + "TiB"],
)
def test_no_size(text: str) -> None:
    with pytest.raises(UsageError, match="--memory must be a size of memory"):
        parse_size(text, "--memory")

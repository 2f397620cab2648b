"""A product's bits do not depend on its rows or threads: every format on every instruction set, each in a process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cacheir_native.probe import why_unavailable

PRODUCTS = Path(__file__).with_name("bits_of_products.py")
ISAS = ("scalar", "avx2", "avx512", "avx512_vnni")


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> str:
    """An instruction set that this machine has."""
    if (reason := why_unavailable()) is not None:
        pytest.skip(reason)
    from cacheir_native import _cacheir_native as native

    if request.param not in native.supported_isas():
        pytest.skip(f"this CPU or operating system has no {request.param}")
    return str(request.param)


# With so many columns 512 rows are more than one block of activations of every kind (matmul.inc: rows_at_once), and of
# f32 for the slow scalar set. The last panel is not full; three threads get one, one and two panels.
def test_rows_and_threads_do_not_change_a_bit(isa: str) -> None:
    compare(isa, (59, 256 if isa == "scalar" else 1024), (80, 96))


@pytest.mark.slow
def test_nor_in_matrices_of_other_sizes(isa: str) -> None:
    compare(isa, (16, 256), (203, 512), (7, 64), (130, 1536), (49, 2080), (335, 2048))


@pytest.mark.slow
@pytest.mark.parametrize("file", ["test_executor_invariance.py", "test_executor_results.py"])
def test_whole_programs_too(isa: str, file: str) -> None:
    """What this process tests of executors on the best set that there is, on each of them."""
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(PRODUCTS.with_name(file))],
        env={**os.environ, "CACHEIR_NATIVE_ISA": isa},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0 and " passed" in ran.stdout, ran.stdout + ran.stderr


def compare(isa: str, *sizes: tuple[int, int]) -> None:
    seed = str(np.random.default_rng().integers(1 << 30))
    ran = subprocess.run(
        [sys.executable, str(PRODUCTS), seed, *(str(number) for size in sizes for number in size)],
        env={**os.environ, "CACHEIR_NATIVE_ISA": isa},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    # Super-blocks need whole blocks of 256. No other line: nothing differed.
    counts = [f"{19 if columns % 256 else 24} formats in [{rows}, {columns}]" for rows, columns in sizes]
    assert ran.stdout.splitlines() == [isa, *counts], f"seed {seed}"

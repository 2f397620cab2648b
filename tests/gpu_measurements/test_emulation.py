"""The CUDA C++ kernels for several rows on the processor, beside float64, and that a mistake in one is seen."""

from __future__ import annotations

import importlib
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks" / "cuda" / "emulation"
pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed, and it compiles the kernels"),
    pytest.mark.skipif(sys.platform != "linux", reason="the threads are fibers of glibc's ucontext"),
]
OUTPUT, EARLY = "rows_residual_k1536_t2_g2_p2_s4_w3_n3_b2_c4", "rows_residual_k1536_t1_g4_p1_s4_w6_n6_b3_c4_early"
DOWN = "rows_residual_k8960_t3_g2_p4_s6_w2_n3_b1_c4_early"
NO_ROOM = "rows_residual_k2048_t2_g2_p4_s4_w2_n2_b3_c4"  # for the residual while the product runs


@pytest.fixture
def emulate(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("emulate")


def test_a_kernel_is_beside_float64(emulate: ModuleType) -> None:
    told = emulate.run([OUTPUT, "rows_stream_swiglu_k1536_t1_w12_s8_c4"]).splitlines()
    assert len(told) == 6 and all(line.startswith("ok ") for line in told)  # the early one too; copies at once and late


@pytest.mark.parametrize(
    ("kernel", "change"),
    [
        (EARLY, ("await_groups(SLOTS - 1)", "await_groups(SLOTS)")),  # the first rows are not waited for
        (
            DOWN,
            ("if (!EARLY && (ALL || p == 0)) __syncwarp();", "if (ALL || p == 0) __syncwarp();"),
        ),  # nor those of other warps
        (
            OUTPUT,
            (
                "if (ROOM && finishes) gain = *(const float4 *)(a.gain + output);",
                "if (ROOM && finishes) residual = load_floats(a.residual + place);",
            ),
        ),  # it is read before the wait
        (NO_ROOM, ("if (!ROOM && finishes)", "if (false)")),  # it is not read at all
        (EARLY, ("to = of_quad / OWN", "to = 0")),  # every sum goes to the first block, and others wait without end
    ],
)
def test_a_mistake_is_seen(emulate: ModuleType, kernel: str, change: tuple[str, str]) -> None:
    assert "WRONG" in emulate.run([kernel], change)

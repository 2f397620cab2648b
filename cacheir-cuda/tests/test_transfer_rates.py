"""Transfer rates over a stand-in for the driver whose device memory is the host's: copies arrive, all is given back."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from cacheir_cuda import transfer_rates as module
from cacheir_cuda.driver import DriverProblem
from cacheir_cuda.transfer_rates import transfer_rates

C_COMPILER = shutil.which("cc") or shutil.which("gcc")
SOURCE = """
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
int held = 0, to_device = 0, to_host = 0;
int cuInit(unsigned int flags) { return INIT; }
int cuDriverGetVersion(int *version) { *version = 13010; return 0; }
int cuDeviceGetCount(int *count) { *count = COUNT; return 0; }
int cuDeviceGet(int *device, int number) { *device = number; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = &held; ++held; return 0; }
int cuDevicePrimaryCtxRelease_v2(int device) { --held; return 0; }
int cuCtxSetCurrent(void *context) { return 0; }
int cuMemAlloc_v2(uint64_t *address, size_t n) { if (FULL) return 2; *address = (uint64_t)malloc(n); ++held; return 0; }
int cuMemFree_v2(uint64_t address) { free((void *)address); --held; return 0; }
int cuMemAllocHost_v2(void **address, size_t n) { *address = malloc(n); ++held; return 0; }
int cuMemFreeHost(void *address) { free(address); --held; return 0; }
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t n) { memcpy((void *)to, from, n); ++to_device; return 0; }
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t n) { memcpy(to, (void *)from, n); ++to_host; return 0; }
"""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SAMPLE_BYTES", 1 << 16)


def build(folder: Path, *, init: int = 0, count: int = 1, full: int = 0) -> str:
    if C_COMPILER is None:
        pytest.skip("no C compiler (cc or gcc) to build a stand-in for the driver")
    source, library = folder / "driver.c", folder / "libdriver.so"
    source.write_text(SOURCE.replace("INIT", str(init)).replace("COUNT", str(count)).replace("FULL", str(full)))
    subprocess.run([C_COMPILER, "-shared", "-fPIC", "-o", str(library), str(source)], check=True, capture_output=True)
    return str(library)


def counters(library: str) -> dict[str, int]:
    loaded = ctypes.CDLL(library)
    return {name: ctypes.c_int.in_dll(loaded, name).value for name in ("held", "to_device", "to_host")}


def test_both_ways_over_both_kinds_of_memory(tmp_path: Path) -> None:
    library = build(tmp_path)
    rates = transfer_rates(library)
    assert set(rates) == {f"{way}{kind}_bytes_per_s" for way in ("h2d", "d2h") for kind in ("", "_unpinned")}
    assert all(1e3 < value < 1e15 for value in rates.values())
    copies = 2 * (module.REPEATS + 1)
    assert counters(library) == {"held": 0, "to_device": copies, "to_host": copies}


def test_without_a_gpu_there_is_nothing_to_measure(tmp_path: Path) -> None:
    assert transfer_rates(build(tmp_path, count=0)) == {}
    assert transfer_rates("libno-such-driver.so.1") == {}


def test_a_driver_that_refuses_is_named_and_nothing_is_kept(tmp_path: Path) -> None:
    library = build(tmp_path, full=1)
    with pytest.raises(DriverProblem, match="cuMemAlloc_v2 failed with CUDA error 2"):
        transfer_rates(library)
    assert counters(library)["held"] == 0

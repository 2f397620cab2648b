"""The driver is asked through a real shared library: one that is missing, one that is another, and small stand-ins."""

from __future__ import annotations

import ctypes.util
import shutil
import subprocess
from pathlib import Path

import pytest

from cacheir_cuda import driver, probe
from cacheir_cuda.driver import Driver, DriverProblem, ask_driver

C_COMPILER = shutil.which("cc") or shutil.which("gcc")

SOURCE = """
int cuInit(unsigned int flags) {{ return {init}; }}
int cuDriverGetVersion(int *version) {{ *version = {version}; return 0; }}
int cuDeviceGetCount(int *count) {{ *count = {count}; return 0; }}
"""


def build_driver(folder: Path, *, init: int = 0, version: int = 13010, count: int = 1) -> str:
    """Compile a library with the driver's three functions, which answer as told."""
    if C_COMPILER is None:
        pytest.skip("no C compiler (cc or gcc) to build a stand-in for the driver")
    source = folder / "driver.c"
    source.write_text(SOURCE.format(init=init, version=version, count=count))
    library = folder / "libdriver.so"
    subprocess.run([C_COMPILER, "-shared", "-fPIC", "-o", str(library), str(source)], check=True, capture_output=True)
    return str(library)


def test_a_missing_library_is_a_missing_driver() -> None:
    with pytest.raises(DriverProblem, match=r"libno-such-driver\.so\.1 cannot be loaded") as caught:
        ask_driver("libno-such-driver.so.1")
    assert caught.value.missing


def test_another_library_is_not_taken_for_the_driver() -> None:
    libc = ctypes.util.find_library("c")
    if libc is None:
        pytest.skip("the C library's file name cannot be found here")
    with pytest.raises(DriverProblem, match="no function cuInit") as caught:
        ask_driver(libc)
    assert not caught.value.missing


def test_an_answering_driver(tmp_path: Path) -> None:
    assert ask_driver(build_driver(tmp_path, version=12080, count=2)) == Driver(version=(12, 8), device_count=2)


def test_a_failing_driver_is_named_with_its_error(tmp_path: Path) -> None:
    with pytest.raises(DriverProblem, match="cuInit failed with CUDA error 803") as caught:
        ask_driver(build_driver(tmp_path, init=803))
    assert not caught.value.missing


def test_a_driver_without_a_gpu_is_in_order(tmp_path: Path) -> None:
    """The real driver's cuInit answers 100 where CUDA_VISIBLE_DEVICES hides every GPU; the version is still there."""
    assert ask_driver(build_driver(tmp_path, init=100, count=-1)) == Driver(version=(13, 1), device_count=0)


def test_check_passes_without_a_driver_and_fails_with_a_broken_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check_with(library: str) -> tuple[bool, str]:
        with monkeypatch.context() as patch:
            patch.setattr(driver, "ask_driver", lambda: ask_driver(library))
            result = driver.check_driver()
        return result.ok, result.detail

    ok, detail = check_with("libno-such-driver.so.1")
    assert ok
    assert "no NVIDIA driver" in detail
    ok, detail = check_with(build_driver(tmp_path, init=999))
    assert not ok
    assert "999" in detail


def test_check_reports_version_and_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = build_driver(tmp_path, version=13010, count=4)
    monkeypatch.setattr(driver, "ask_driver", lambda: ask_driver(library))
    result = driver.check_driver()
    assert result.ok
    assert result.detail == "driver for CUDA 13.1 with 4 GPU(s)"


def test_probe_gives_the_first_thing_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "cannot be loaded" in str(probe.why_unavailable("libno-such-driver.so.1"))
    assert "shows no GPU" in str(probe.why_unavailable(build_driver(tmp_path, count=0)))
    working = tmp_path / "working"
    working.mkdir()
    library = build_driver(working)
    monkeypatch.setattr(probe, "find_spec", lambda name: None)
    assert probe.why_unavailable(library) == "PyTorch (torch) is not installed"
    monkeypatch.setattr(probe, "find_spec", lambda name: object())
    assert probe.why_unavailable(library) is None

"""Builds and runs the C++ tests, plainly, under sanitizers and on older CPUs; slow, so `make soak` runs it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent


CLANG = next((name for name in ("clang++", "clang++-14", "clang++-15", "clang++-16") if shutil.which(name)), None)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed"),
]


@pytest.mark.skipif(CLANG is None, reason="libFuzzer comes with Clang, which is not installed")
def test_arbitrary_programs_and_all_kernels_stay_in_their_memory(tmp_path: Path) -> None:
    """With Clang the kernels themselves are under the sanitizers too."""
    build(tmp_path, f"-DCMAKE_CXX_COMPILER={CLANG}")
    assert "program_fuzz" in run(tmp_path, "-R", "address|thread|program_fuzz")


def test_cpp_tests_pass(tmp_path: Path) -> None:
    build(tmp_path, "-DCACHEIR_BUILD_MLIR=ON")
    said = run(tmp_path)
    assert ("Nehalem" in said) == (shutil.which("qemu-x86_64") is not None)


def build(folder: Path, *options: str) -> None:
    tests = ["-DCACHEIR_BUILD_PYTHON=OFF", "-DCACHEIR_BUILD_TESTS=ON"]
    subprocess.run(["cmake", "-S", str(SOURCE), "-B", str(folder), *tests, *options], check=True)
    subprocess.run(["cmake", "--build", str(folder), "--parallel", "2"], check=True)


def run(folder: Path, *which: str) -> str:
    """What ctest says, where all tests pass that this machine can run."""
    command = ["ctest", "--test-dir", str(folder), "--output-on-failure", "--timeout", "3600", *which]
    ran = subprocess.run(command, check=False, capture_output=True, text=True)
    assert ran.returncode == 0 and "100% tests passed" in ran.stdout, ran.stdout
    return ran.stdout

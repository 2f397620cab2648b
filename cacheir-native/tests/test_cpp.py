"""Builds and runs the C++ tests, plainly and under sanitizers; slow, so `make soak` runs it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent


CLANG = next((name for name in ("clang++", "clang++-14", "clang++-15", "clang++-16") if shutil.which(name)), None)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")
@pytest.mark.skipif(CLANG is None, reason="libFuzzer comes with Clang, which is not installed")
def test_arbitrary_programs_stay_in_their_memory(tmp_path: Path) -> None:
    options = [f"-DCMAKE_CXX_COMPILER={CLANG}", "-DCACHEIR_BUILD_PYTHON=OFF", "-DCACHEIR_BUILD_TESTS=ON"]
    subprocess.run(["cmake", "-S", str(SOURCE), "-B", str(tmp_path), *options], check=True)
    subprocess.run(["cmake", "--build", str(tmp_path), "--parallel", "2", "--target", "program_fuzz"], check=True)
    command = ["ctest", "--test-dir", str(tmp_path), "-R", "program_fuzz", "--output-on-failure"]
    ran = subprocess.run(command, check=False, capture_output=True, text=True)
    assert ran.returncode == 0 and "100% tests passed" in ran.stdout, ran.stdout


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")
def test_cpp_tests_pass(tmp_path: Path) -> None:
    options = ["-DCACHEIR_BUILD_PYTHON=OFF", "-DCACHEIR_BUILD_TESTS=ON", "-DCACHEIR_BUILD_MLIR=ON"]
    subprocess.run(["cmake", "-S", str(SOURCE), "-B", str(tmp_path), *options], check=True)
    subprocess.run(["cmake", "--build", str(tmp_path), "--parallel", "2"], check=True)
    ran = subprocess.run(
        ["ctest", "--test-dir", str(tmp_path), "--output-on-failure"], check=False, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stdout
    assert "100% tests passed" in ran.stdout

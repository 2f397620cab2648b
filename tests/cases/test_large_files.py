"""A model of 15 GB is opened and compiled by its headers: no page of its data is touched, nothing so large is made."""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cacheir_importers.gguf.reader import read_header

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="what a process reads is counted by Linux")

# Prints how many bytes went through read calls, and the peak of resident memory, of one command in this process.
COUNTED = """
import sys
from pathlib import Path
from cacheir.cli.main import run

def read_bytes():
    return int(Path("/proc/self/io").read_text().split()[1])

before = read_bytes()
code = run(sys.argv[1:])
status = Path("/proc/self/status").read_text().split()
print(code, read_bytes() - before, int(status[status.index("VmHWM:") + 1]) * 1024, file=sys.stderr)
"""


@pytest.fixture(scope="module")
def make() -> ModuleType:
    """The script that makes the files, told to give them a small vocabulary."""
    spec = spec_from_file_location("open_large_make", ROOT / "benchmarks" / "open_large_make.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    module.TOKENS = 3_000  # type: ignore[attr-defined]
    return module


def resident_bytes(path: Path, start: int) -> int:
    """The bytes from ``start`` on that the system holds in memory: what nobody reads of a hole is in none."""
    page = mmap.PAGESIZE
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        pages = -(-len(mapped) // page)
        held = (ctypes.c_ubyte * pages)()
        address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        library = ctypes.CDLL(None, use_errno=True)
        assert library.mincore(ctypes.c_void_p(address), ctypes.c_size_t(len(mapped)), held) == 0, ctypes.get_errno()
        return page * sum(each & 1 for each in held[-(-start // page) :])


def data_starts(path: Path) -> int:
    """Where the data of the file begins."""
    if path.suffix == ".gguf":
        return read_header(path).data_offset
    with path.open("rb") as file:
        return 8 + int(struct.unpack("<Q", file.read(8))[0])


@pytest.mark.parametrize(("form", "command"), [("safetensors", "compile"), ("gguf", "inspect")])
def test_the_data_of_a_large_model_stays_where_it_is(make: ModuleType, tmp_path: Path, form: str, command: str) -> None:
    write: Callable[[Path], int] = make.write_folder if form == "safetensors" else make.write_gguf_file
    path = tmp_path / ("qwen" if form == "safetensors" else "qwen.gguf")
    assert 15e9 < write(path) < 16e9
    files = sorted(path.glob("*.safetensors")) if form == "safetensors" else [path]
    assert sum(file.stat().st_blocks for file in files) * 512 < 50e6, "this file system keeps no holes"
    words: list[Any] = [command, path] + (["--output", tmp_path / "artifact"] if command == "compile" else [])
    done = subprocess.run(
        [sys.executable, "-c", COUNTED, *map(str, words)],
        env={**os.environ, "CACHEIR_CACHE_DIR": str(tmp_path / "cache"), "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    code, read, peak = map(int, done.stderr.splitlines()[-1].split())
    assert code == 0, done.stderr
    # Modules of Python are read as well; the kernel reads a little ahead of a header.
    assert read < 60e6 and peak < 500e6
    assert sum(resident_bytes(file, data_starts(file) + (1 << 20)) for file in files) == 0

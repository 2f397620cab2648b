"""Triton's compiler takes, for a Hopper GPU, what its interpreter ran: the two do not accept the same programs."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

# Triton is not imported here: TRITON_INTERPRET counts when it is, and other tests set it.
HAS_BOTH = all(map(find_spec, ("torch", "triton")))


@pytest.mark.slow
@pytest.mark.skipif(not HAS_BOTH, reason="PyTorch and Triton are not both installed")
def test_kernels_over_pages_compile_for_each_kind_of_pages(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    words = [sys.executable, str(Path(__file__).with_name("compile_triton.py"))]
    made = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    lines = [line.split() for line in made.stdout.splitlines()]
    assert len(lines) == 3 * 6 + 2 + 2 + 2  # for each kind of pages; others of prompts; a step's end
    assert all(int(shared) < 227 << 10 and int(size) for _, _, shared, size in lines)  # of a block's shared memory

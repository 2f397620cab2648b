"""A server process over SmolLM2, as a user starts one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class Served:
    """Where the server listens."""

    url: str
    process: subprocess.Popen[str]


@pytest.fixture(scope="session")
def served() -> Iterator[Served]:
    """``cacheir serve smollm2`` at a free port."""
    command = [sys.executable, "-m", "cacheir.cli.main", "serve", "smollm2", "--port", "0", "--max-seq", "1024"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ}) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if match := re.search(r"serving smollm2 at (http://\S+)", line):
                break
        else:
            raise AssertionError("".join(lines))
        yield Served(match[1], process)
        process.terminate()
        process.communicate(timeout=60)
        assert process.returncode == 0

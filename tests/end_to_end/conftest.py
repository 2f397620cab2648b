"""A tiny model made by ``cacheir make-tiny``, its artifact, an open runtime, and ``cacheir`` as a child process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cacheir import Runtime

CACHEIR = [sys.executable, "-m", "cacheir"]

Cli = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Compiled programs of these tests go to a cache of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CACHEIR_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def cacheir(own_cache: None) -> Cli:
    """``cacheir("run", ..., input="...")``: the finished child with its text streams."""

    def run(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*CACHEIR, *words], capture_output=True, text=True, timeout=300, check=False, **options)

    return run


@pytest.fixture(scope="session")
def start_cacheir(own_cache: None) -> Callable[..., subprocess.Popen[bytes]]:
    """``start_cacheir("run", ...)``: a child that is still running, with pipes."""

    def start(*words: str) -> subprocess.Popen[bytes]:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen([*CACHEIR, *words], env={**os.environ}, **pipes)

    return start


@pytest.fixture(scope="session")
def tiny(cacheir: Cli, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny Llama."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    made = cacheir("make-tiny", str(folder))
    assert made.returncode == 0, made.stderr
    return folder


@pytest.fixture(scope="session")
def artifact(cacheir: Cli, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of its artifact."""
    folder = tmp_path_factory.mktemp("artifacts") / "tiny"
    made = cacheir("compile", str(tiny), "--output", str(folder))
    assert made.returncode == 0, made.stderr
    return folder


@pytest.fixture(scope="session")
def runtime(tiny: Path) -> Iterator[Runtime]:
    """The tiny model, open."""
    with Runtime(tiny) as opened:
        yield opened

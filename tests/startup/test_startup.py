"""Bug report CIR-E05: what the command imports before it does anything. Modules are counted here, never time.

Stand-ins for the heavy packages lie first on the path and write their names to a file when they are imported, so that
the tests say the same whether or not the real ones are installed. benchmarks/startup.py measures the time.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# No help page and no version needs any of these.
FORBIDDEN_IN_HELP = ("numpy", "torch", "triton", "onnx", "gguf", "fastapi", "rich", "pydantic", "transformers")
# Nor does a command that looks at plugins; option parsing may need pydantic.
FORBIDDEN_ON_A_CPU = ("torch", "triton", "onnx", "gguf", "fastapi", "rich", "transformers", "numpy")

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def seen(tmp_path: Path) -> Path:
    """The file in which stand-ins write their names."""
    return tmp_path / "seen"


@pytest.fixture
def run(tmp_path: Path, seen: Path) -> Run:
    """Run Python with stand-ins for ``forbidden`` first on its path."""

    def start(*arguments: str, forbidden: tuple[str, ...], **variables: str) -> subprocess.CompletedProcess[str]:
        folder = tmp_path / "stand_ins"
        for name in forbidden:
            (folder / name).mkdir(parents=True, exist_ok=True)
            (folder / name / "__init__.py").write_text(
                f"open({str(seen)!r}, 'a').write({name!r} + ' ')\nraise ImportError('a stand-in')\n"
            )
        environment = {name: value for name, value in os.environ.items() if not name.startswith("CACHEIR_")}
        environment |= {"PYTHONPATH": str(folder), "CACHEIR_CACHE_DIR": str(tmp_path / "cache"), **variables}
        command = [sys.executable, *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)

    return start


COMMAND = ("-m", "cacheir.cli.main")


def test_the_stand_ins_are_noticed(run: Run, seen: Path) -> None:
    run("-c", "import numpy", forbidden=("numpy",))
    assert seen.read_text() == "numpy "


@pytest.mark.parametrize("arguments", [("--help",), ("--version",), ()])
def test_help_and_version(arguments: tuple[str, ...], run: Run, seen: Path) -> None:
    for state in ("cold", "warm"):
        done = run(*COMMAND, *arguments, forbidden=FORBIDDEN_IN_HELP)
        assert done.returncode == 0, done.stderr
        assert not done.stderr, f"with a {state} cache: {done.stderr}"
        assert not seen.exists(), f"with a {state} cache it imports {seen.read_text()}"


def test_warm_help_imports_no_plugin(run: Run) -> None:
    run(*COMMAND, "--help", forbidden=())
    trace = run("-X", "importtime", *COMMAND, "--help", forbidden=()).stderr
    imported = {line.rpartition("|")[2].strip() for line in trace.splitlines()}
    assert "cacheir.cli.main" in imported or "cacheir.cli.lazy" in imported
    plugins = {name for name in imported if name.startswith("cacheir_") or name == "cacheir.builtin"}
    assert not plugins
    assert not {"pluggy", "importlib.metadata", "cacheir.plugins.specs"} & imported


@pytest.mark.parametrize(
    "arguments", [("plugins", "list", "--kind", "commands"), ("plugins", "hooks"), ("plugins", "list")]
)
def test_looking_at_plugins_imports_nothing_heavy(arguments: tuple[str, ...], run: Run, seen: Path) -> None:
    done = run(*COMMAND, *arguments, forbidden=FORBIDDEN_ON_A_CPU)
    assert done.returncode == 0, done.stderr
    assert not seen.exists(), f"it imports {seen.read_text()}"


@pytest.mark.parametrize(
    "statement",
    ["import cacheir", "from cacheir.plugins import PassSpec, hookimpl", "import cacheir.ir", "import cacheir.errors"],
)
def test_importing_the_library(statement: str, run: Run, seen: Path) -> None:
    done = run("-c", statement, forbidden=(*FORBIDDEN_IN_HELP, "typer", "jinja2"))
    assert done.returncode == 0, done.stderr
    assert not seen.exists(), f"it imports {seen.read_text()}"


@pytest.mark.parametrize(
    "module",
    [
        "cacheir.builtin",
        "cacheir_cpu.plugin",
        "cacheir_cuda.plugin",
        "cacheir_importers.plugin",
        "cacheir_native.plugin",
        "cacheir_server.plugin",
    ],
)
def test_plugin_modules_are_thin(module: str, run: Run, seen: Path) -> None:
    done = run("-c", f"import {module}", forbidden=(*FORBIDDEN_IN_HELP, "typer", "jinja2"))
    assert done.returncode == 0, done.stderr
    assert not seen.exists(), f"it imports {seen.read_text()}"

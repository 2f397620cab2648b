"""`cacheir --help` stays light with everything installed: which modules it imports, cold and warm.

What it costs in time is measured in benchmarks/, since a time on a shared machine is no test.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

HEAVY = {"numpy", "torch", "triton", "onnx", "gguf", "fastapi", "rich", "pydantic", "transformers", "tokenizers"}
# Modules that this environment has, so that a stray import would be seen.
PRESENT = {"numpy", "torch", "gguf", "rich", "pydantic", "transformers", "tokenizers"}


def imported_by(arguments: list[str], cache: Path) -> set[str]:
    """The top-level modules that the installed command imports, told by the interpreter itself."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CACHEIR_")}
    environment |= {"PYTHONPROFILEIMPORTTIME": "1", "CACHEIR_CACHE_DIR": str(cache)}
    command = [str(Path(sys.executable).with_name("cacheir")), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Usage: cacheir" in done.stdout
    modules = re.findall(r"^import time:\s+\d+ \|\s+\d+ \|\s+(\S+)$", done.stderr, flags=re.MULTILINE)
    return {module.partition(".")[0] for module in modules}


def test_what_must_not_be_imported_is_here() -> None:
    assert not {name for name in PRESENT if find_spec(name) is None}


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], []], ids=["--help", "-h", "nothing"])
def test_help_imports_nothing_heavy(arguments: list[str], tmp_path: Path) -> None:
    cold = imported_by(arguments, tmp_path)
    warm = imported_by(arguments, tmp_path)
    assert "cacheir" in cold and "cacheir" in warm
    assert not cold & HEAVY
    assert not warm & HEAVY


def test_help_needs_no_plugin_module_but_shows_what_plugins_add(tmp_path: Path) -> None:
    """Plugins are asked in a process apart, once; after that the cache holds what they said."""
    plugins = {"cacheir_cpu", "cacheir_importers", "cacheir_native", "cacheir_cuda", "cacheir_server"}
    for _ in ("cold", "warm"):
        assert not imported_by(["--help"], tmp_path) & plugins
    command = [str(Path(sys.executable).with_name("cacheir")), "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "cacheir-importers:\n  make-tiny" in shown


def test_import_of_the_package_needs_the_standard_library_only(tmp_path: Path) -> None:
    code = "import sys, cacheir; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    foreign = {name for name in done.stdout.split() if name not in sys.stdlib_module_names and name[0] != "_"}
    # An editable install brings a finder of its own into every interpreter.
    assert {name for name in foreign if "editable" not in name} <= {"cacheir", "distutils-precedence", "sitecustomize"}

"""What opening a runtime costs before anything is asked of it: heavy modules are imported on use."""

from __future__ import annotations

import subprocess
import sys


def test_the_runtime_imports_nothing_heavy():
    code = "import sys, cacheir.runtime.runtime; print(*sorted({'numpy', 'jinja2', 'typer'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"

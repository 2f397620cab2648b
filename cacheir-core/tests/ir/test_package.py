"""The package: its public names, and that importing it costs only the standard library and pluggy."""

from __future__ import annotations

import subprocess
import sys

import cacheir.ir
from cacheir.ir.verify import verify


def test_public_names_exist_and_are_sorted() -> None:
    assert [name for name in cacheir.ir.__all__ if not hasattr(cacheir.ir, name)] == []
    assert cacheir.ir.__all__ == sorted(
        cacheir.ir.__all__, key=lambda name: (not name.isupper(), not name[0].isupper(), name)
    )


def test_verify_is_the_function_though_a_module_has_its_name() -> None:
    assert cacheir.ir.verify is verify


def test_import_needs_no_numpy() -> None:
    code = "import cacheir.ir, sys; print(sorted({name.partition('.')[0] for name in sys.modules} & set(sys.argv[1:])))"
    heavy = ["numpy", "typer", "jinja2", "hypothesis", "rich"]
    done = subprocess.run([sys.executable, "-c", code, *heavy], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

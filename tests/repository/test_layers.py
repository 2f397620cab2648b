"""Imports point one way: up the layers of core, and from the other packages to core's public names only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

# One row of docs/architecture.md each. A module may import its own row and the rows above it.
ROWS: tuple[tuple[str, ...], ...] = (
    ("errors", "settings", "arguments", "quick_dataclass"),
    ("plugins",),
    ("ir",),
    ("ops", "formats"),
    ("reference",),
    ("models",),
    ("passes",),
    ("pipeline",),
    ("schedule", "weights"),
    ("artifact",),
    ("quantisers",),
    ("compile", "compile_work", "stages"),
    ("runtime",),
    ("builtin",),
    ("bench", "quality", "bisection", "cli", "testing", "exporters"),
)
LEAVES = frozenset(ROWS[-1])
# What a package may import from core: these, and what lies in them.
PUBLIC = (
    "cacheir.errors",
    "cacheir.formats",
    "cacheir.ir",
    "cacheir.models",
    "cacheir.plugins",
    "cacheir.reference",
    "cacheir.runtime",
    "cacheir.schedule",
    "cacheir.testing",
    "cacheir.weights",
)
# What a package's command may import besides: the machine's calibration, and where it is kept.
FOR_COMMANDS = ("cacheir.bench", "cacheir.settings")
# What a pass may import: a third party's pass could import the same.
FOR_PASSES = ("cacheir.errors", "cacheir.ir", "cacheir.plugins", "cacheir.passes")


@dataclass(frozen=True)
class Import:
    """``importer`` imports from ``module`` at ``line``; ``names`` are what it takes, ``typing`` if for types only."""

    importer: str
    module: str
    names: tuple[str, ...]
    line: int
    typing: bool

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.module}"


def imports_of(path: Path, source: Path) -> Iterator[Import]:
    """Every import statement of a file, wherever it stands; nothing is executed."""
    importer = ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__")
    yield from _imports_in(ast.parse(path.read_text(encoding="utf-8")), importer, typing=False)


def _imports_in(node: ast.AST, importer: str, *, typing: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(importer, alias.name, (), child.lineno, typing)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"{importer}:{child.lineno} uses a relative import"
            names = tuple(alias.name for alias in child.names)
            yield Import(importer, child.module or "", names, child.lineno, typing)
        elif isinstance(child, ast.If) and ast.unparse(child.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for statement in child.body:
                yield from _imports_in(ast.Module([statement], []), importer, typing=True)
            for statement in child.orelse:
                yield from _imports_in(ast.Module([statement], []), importer, typing=False)
        else:
            yield from _imports_in(child, importer, typing=typing)


def core_parts(found: Import) -> set[str]:
    """The parts of core ("ir", "plugins", ...) that an import takes from; empty for a foreign module."""
    words = found.module.split(".")
    if words[0] != "cacheir":
        return set()
    return {words[1]} if len(words) > 1 else set(found.names)


def row_of(part: str) -> int | None:
    """The row of a part, or None for what is no part of core (such as a version number)."""
    return next((number for number, row in enumerate(ROWS) if part in row), None)


@pytest.fixture(scope="module")
def core_imports(root: Path) -> list[Import]:
    source = root / "cacheir-core" / "src"
    return [found for path in sorted(source.rglob("*.py")) for found in imports_of(path, source)]


def test_every_part_of_core_has_a_row(root: Path) -> None:
    source = root / "cacheir-core" / "src" / "cacheir"
    parts = {path.stem for path in source.glob("*.py")} | {path.parent.name for path in source.glob("*/__init__.py")}
    assert {part for part in parts if row_of(part) is None} <= {"__init__", "__main__"}


def test_core_imports_point_up(core_imports: list[Import]) -> None:
    bad = []
    for found in core_imports:
        own = found.importer.split(".")[1] if "." in found.importer else None
        if own in (None, "__main__"):
            continue  # the public front: cacheir/__init__.py names what it hands out
        own_row = row_of(own)
        for part in core_parts(found):
            row = row_of(part)
            # Hooks and passes name what they are handed from below in annotations, which import nothing.
            if row is None or own_row is None or (own in ("plugins", "passes") and found.typing):
                continue
            if row > own_row:
                bad.append(str(found))
    assert not bad


def test_nothing_but_a_command_imports_a_leaf(core_imports: list[Import]) -> None:
    """A command may call what it is the surface of: `cacheir benchmark` needs bench."""
    bad = [
        str(found)
        for found in core_imports
        for part in core_parts(found) & LEAVES
        if found.importer.split(".")[1:2] not in ([part], ["cli"], ["__main__"])
    ]
    assert not bad


def test_passes_import_what_a_third_party_could(core_imports: list[Import]) -> None:
    bad = [
        str(found)
        for found in core_imports
        if found.importer.startswith("cacheir.passes") and not found.typing and found.module.startswith("cacheir")
        if ".".join(found.module.split(".")[:2]) not in FOR_PASSES
    ]
    assert not bad


@pytest.mark.parametrize("package", ["cpu", "cuda", "importers", "native", "server"])
def test_packages_import_public_names_of_core_and_never_each_other(root: Path, package: str) -> None:
    source = root / f"cacheir-{package}" / "src"
    found = [each for path in sorted(source.rglob("*.py")) for each in imports_of(path, source)]
    assert found
    bad = []
    for each in found:
        top = each.module.split(".")[0]
        part = ".".join(each.module.split(".")[:2])
        command = each.importer == f"cacheir_{package}.command"
        public = each.module == "cacheir" or part in PUBLIC or (command and part in FOR_COMMANDS)
        if top == "cacheir" and not public:
            bad.append(f"{each}, which is core's own business")
        if top.startswith("cacheir_") and top != f"cacheir_{package}":
            bad.append(f"{each}, another package")
    assert not bad


@pytest.mark.parametrize("package", ["core", "cpu", "cuda", "importers", "native", "server"])
def test_a_packages_own_tests_import_no_other_package(root: Path, package: str) -> None:
    folder = root / f"cacheir-{package}" / "tests"
    own = {"cacheir", "cacheir" if package == "core" else f"cacheir_{package}"}
    bad = [
        str(each)
        for path in sorted(folder.rglob("*.py"))
        for each in imports_of(path, folder)
        if (top := each.module.split(".")[0]).startswith("cacheir") and top not in own
    ]
    assert not bad


def test_plugin_modules_are_thin(root: Path) -> None:
    """A plugin module is imported by every command, so it imports the records and the standard library only."""
    modules = [root / "cacheir-core/src/cacheir/builtin.py", *sorted(root.glob("cacheir-*/src/*/plugin.py"))]
    assert len(modules) == 6
    heavy = ("numpy", "torch", "triton", "typer", "jinja2", "safetensors", "tokenizers", "gguf", "fastapi", "pydantic")
    bad = [
        str(each)
        for path in modules
        for each in imports_of(path, path.parents[1])
        if not each.typing and each.module.split(".")[0] in heavy
    ]
    assert not bad


def test_an_arrow_that_points_down_is_seen(tmp_path: Path) -> None:
    """The reader of imports sees them at the top, in a function, and for types."""
    file = tmp_path / "cacheir" / "ir" / "graph.py"
    file.parent.mkdir(parents=True)
    file.write_text(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from cacheir.runtime import executor\n"
        "def f():\n    from cacheir import cli\n    import cacheir.passes.dead_code\n"
    )
    found = [each for each in imports_of(file, tmp_path) if each.module.startswith("cacheir")]
    parts = [(core_parts(each), each.typing) for each in found]
    assert parts == [({"runtime"}, True), ({"cli"}, False), ({"passes"}, False)]
    assert {each.importer for each in found} == {"cacheir.ir.graph"}

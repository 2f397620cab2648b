"""The example plugins: one for each kind, whole, quoted by the page, and two of them what ``plugins new`` writes."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from cacheir.plugins.scaffold import write_plugin
from cacheir.testing import plugin_host

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "plugins-example"
PAGE = (ROOT / "docs" / "writing-a-plugin.md").read_text(encoding="utf-8")

# name -> what its plugin registers, by the names of the registries
KINDS = {
    "drop-reshape": {"passes"},
    "net": {"importers"},
    "outer-layers": {"quantizers"},
    "relu-squared": {"ops", "kernels", "families"},
    "timed-kernels": set(),  # it selects, and registers nothing
    "top-n-sigma": {"samplers"},
    "weights": {"commands"},
}


def project(name: str) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((EXAMPLES / f"cacheir-{name}" / "pyproject.toml").read_text())
    return found


def test_the_examples_are_these() -> None:
    assert {path.name.removeprefix("cacheir-") for path in EXAMPLES.iterdir() if path.is_dir()} == set(KINDS)


@pytest.mark.parametrize("name", sorted(KINDS))
def test_it_is_whole(name: str) -> None:
    data, folder = project(name)["project"], EXAMPLES / f"cacheir-{name}"
    assert data["name"] == f"cacheir-{name}"
    assert data["requires-python"] == ">=3.10"
    assert any(line.startswith("cacheir-core>=0.1,<0.2") for line in data["dependencies"])
    assert any(line.startswith("cacheir-core[testing]") for line in data["optional-dependencies"]["test"])
    assert list(data["entry-points"]["cacheir"]) == [name]
    assert (folder / "README.md").read_text(encoding="utf-8").startswith(f"# cacheir-{name}\n")
    assert list((folder / "tests").glob("test_*.py"))


@pytest.mark.parametrize("name", sorted(KINDS))
def test_it_adds_what_it_is_an_example_of(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES / f"cacheir-{name}" / "src"))
    target = project(name)["project"]["entry-points"]["cacheir"][name]
    host = plugin_host(target)
    found = {
        registry.kind.attribute
        for registry in host.registries()
        for item in registry.contributions
        if item.plugin.target == target
    }
    assert found == KINDS[name]


@pytest.mark.parametrize(("kind", "name"), [("importer", "net"), ("quantizer", "outer-layers")])
def test_it_is_what_the_command_writes(kind: str, name: str, tmp_path: Path) -> None:
    made = write_plugin(kind, name, tmp_path)
    for path in sorted(made.rglob("*")):
        if path.is_file():
            kept = EXAMPLES / made.name / path.relative_to(made)
            assert kept.read_text(encoding="utf-8") == path.read_text(encoding="utf-8"), kept


@pytest.mark.parametrize("name", sorted(KINDS))
def test_the_page_names_and_quotes_it(name: str) -> None:
    assert f"../plugins-example/cacheir-{name}/README.md" in PAGE
    sources = [
        path.read_text(encoding="utf-8") for path in sorted((EXAMPLES / f"cacheir-{name}" / "src").rglob("*.py"))
    ]
    quoted = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert any(code.strip("\n") in source for code in quoted for source in sources), f"nothing of {name} is quoted"

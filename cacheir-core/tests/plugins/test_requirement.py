"""A failed import is explained by what is installed and what is required (bug report CIR-E13)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cacheir.errors import PluginError
from cacheir.plugins.distributions import Distribution
from cacheir.plugins.ref import resolve
from cacheir.plugins.requirement import Requirement, install_command, parse_requirement, unmet

Write = Callable[..., str]


def distribution(folder: Path, name: str, version: str, *requires: str) -> None:
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    lines = "".join(f"Requires-Dist: {line}\n" for line in requires)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{lines}\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed things, on the path."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    return folder


def message(reference: str) -> tuple[str, str | None]:
    with pytest.raises(PluginError) as caught:
        resolve(reference)
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is not None
    return str(caught.value), caught.value.hint


def test_a_missing_optional_package(site: Path, write_module: Write) -> None:
    distribution(site, "toy-plugin", "1", "toylib>=0.21; extra == 'toy'", "numpy")
    write_module("toy_plugin", "import toylib")
    text, hint = message("toy_plugin:run")
    assert text == "toy_plugin:run cannot be loaded: needs toylib>=0.21, which is not installed"
    assert hint == "pip install 'toylib>=0.21'"


def test_an_optional_package_that_is_too_old(site: Path, write_module: Write) -> None:
    distribution(site, "toy-plugin", "1", "toylib>=0.21,<1; extra == 'toy'")
    distribution(site, "toylib", "0.15.2")
    write_module("toylib", "old_name = 1")
    write_module("toy_plugin", "from toylib import new_name")
    text, hint = message("toy_plugin:run")
    assert text == "toy_plugin:run cannot be loaded: needs toylib>=0.21,<1, found 0.15.2"
    assert hint == "pip install 'toylib>=0.21,<1'"


def test_a_name_that_a_new_major_version_took_away(site: Path, write_module: Write) -> None:
    distribution(site, "toy-plugin", "1", "toylib>=1,<2")
    distribution(site, "toylib", "2.0.0")
    write_module("toylib", "")
    write_module("toy_plugin", "import toylib\nvalue = toylib.removed")
    assert "needs toylib>=1,<2, found 2.0.0" in message("toy_plugin:run")[0]


def test_a_fault_that_no_requirement_explains(site: Path, write_module: Write) -> None:
    distribution(site, "toy-plugin", "1", "toylib>=1")
    distribution(site, "toylib", "1.5")
    write_module("toylib", "")
    write_module("toy_plugin", "import toylib.absent")
    text, hint = message("toy_plugin:run")
    assert text.startswith("toy_plugin:run cannot be loaded: ModuleNotFoundError")
    assert hint is None


def test_an_attribute_that_is_not_there(write_module: Write) -> None:
    write_module("toy_plugin", "")
    assert "AttributeError" in message("toy_plugin:run")[0]


def test_what_is_no_reference() -> None:
    with pytest.raises(PluginError, match="must look like"):
        resolve("toy_plugin.run")


@pytest.mark.parametrize(
    "line, expected",
    [
        ("numpy>=1.26", Requirement("numpy", ">=1.26")),
        ("numpy (>=1.26,<3)", Requirement("numpy", ">=1.26,<3")),
        ('Some_Thing[fast]~=1.0 ; extra == "x"', Requirement("some-thing", "~=1.0", "x")),
        ("typer", Requirement("typer", "")),
        ("tomli>=2; python_version < '3.11'", None),
        ("x>=1; extra == 'a' and python_version < '3.11'", None),
        ("x @ file:///somewhere", None),
        ("", None),
    ],
)
def test_requirement_lines(line: str, expected: Requirement | None) -> None:
    assert parse_requirement(line) == expected


def test_unmet() -> None:
    here = [Distribution("numpy", "1.26.4", "")]
    assert unmet(Requirement("numpy", ">=1.26"), here) == ""
    assert unmet(Requirement("numpy", ">=2"), here) == "needs numpy>=2, found 1.26.4"
    assert unmet(Requirement("torch", ""), here) == "needs torch, which is not installed"


def test_packages_of_this_tree_come_from_a_checkout() -> None:
    numpy, cpu = Requirement("numpy", ">=2"), Requirement("cacheir-cpu", ">=0.1")
    assert install_command([]) == ""
    assert install_command([numpy]) == "pip install 'numpy>=2'"
    assert install_command([numpy, cpu]) == "pip install 'numpy>=2' ./cacheir-cpu in a checkout of CacheIR"

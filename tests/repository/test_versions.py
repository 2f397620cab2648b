"""One version number in the whole tree, and siblings that ask for it in one way."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

BOUND = re.compile(r"([a-z][a-z0-9-]+)>=([0-9][0-9.]*)")
HINT = re.compile(rf"pip install '{BOUND.pattern}'")
SIBLING = re.compile(r"(cacheir-[a-z]+)(\[[a-z,]+\])?(.*)")


def test_every_distribution_has_the_same_version(
    packages: dict[str, dict[str, Any]], metapackage: dict[str, Any]
) -> None:
    versions = {name: data["project"]["version"] for name, data in packages.items()}
    versions["cacheir"] = metapackage["project"]["version"]
    assert set(versions.values()) == {"0.1.0"}, versions


def test_what_is_installed_is_what_the_tree_says(packages: dict[str, dict[str, Any]]) -> None:
    assert {name: version(name) for name in packages} == {
        name: data["project"]["version"] for name, data in packages.items()
    }


def test_siblings_are_asked_for_within_the_minor_version(packages: dict[str, dict[str, Any]]) -> None:
    for name, data in packages.items():
        groups = [data["project"]["dependencies"], *data["project"].get("optional-dependencies", {}).values()]
        for line in (line for group in groups for line in group if line.startswith("cacheir")):
            match = SIBLING.fullmatch(line)
            assert match, f"{name}: {line}"
            assert match[1] == "cacheir-core", f"{name} depends on {match[1]}; packages share core and nothing else"
            assert match[3] == ">=0.1,<0.2", f"{name}: {line}"


def test_third_party_requirements_have_a_lower_bound(packages: dict[str, dict[str, Any]]) -> None:
    for name, data in packages.items():
        for line in data["project"]["dependencies"]:
            assert ">=" in line, f"{name}: {line} has no lower bound"


def test_a_package_is_asked_for_with_one_lower_bound(
    packages: dict[str, dict[str, Any]], metapackage: dict[str, Any], root: Path, source_files: list[Path]
) -> None:
    """In the packages, their extras, the tests' own list, and the hints that tell a user what to install."""
    asked = (root / "tests" / "requirements.txt").read_text(encoding="utf-8").split("\n")
    for data in (*packages.values(), metapackage):
        project = data["project"]
        asked += [
            *project["dependencies"],
            *(line for group in project["optional-dependencies"].values() for line in group),
        ]
    bounds: dict[str, set[str]] = {}
    for line in asked:
        if match := BOUND.fullmatch(line):
            bounds.setdefault(match[1], set()).add(match[2])
    assert {name: found for name, found in bounds.items() if len(found) > 1} == {}
    hints = {match for path in source_files for match in HINT.findall(path.read_text(encoding="utf-8"))}
    assert {"llguidance", "matplotlib"} <= {name for name, _ in hints}
    assert {(name, bound) for name, bound in hints if name in bounds and bounds[name] != {bound}} == set()

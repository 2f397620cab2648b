"""One version number in the whole tree, and siblings that ask for it in one way."""

from __future__ import annotations

import re
from importlib.metadata import version
from typing import Any

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

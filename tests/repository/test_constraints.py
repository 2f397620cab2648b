"""constraints.txt pins versions and nothing else: no hosts, no hashes, no options."""

from __future__ import annotations

import re
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

LINE = re.compile(r'([a-z0-9-]+)==([\w.]+)( ; python_version (<|>=) "3\.11")?')


def pinned(root: Path) -> list[re.Match[str]]:
    """The lines of constraints.txt, each checked for its form."""
    lines = [line for line in (root / "constraints.txt").read_text(encoding="utf-8").splitlines() if line[0] != "#"]
    matches = [LINE.fullmatch(line) for line in lines]
    assert all(matches), [line for line, match in zip(lines, matches, strict=True) if not match]
    return [match for match in matches if match]


def test_every_line_is_a_name_and_a_version(root: Path) -> None:
    names = [match[1] + (match[3] or "") for match in pinned(root)]
    assert names == sorted(set(names), key=names.index), "a name is pinned twice"
    assert not [name for name in names if name.startswith("cacheir")]


def test_every_requirement_of_the_tree_is_pinned(
    root: Path, packages: dict[str, dict[str, Any]], metapackage: dict[str, Any]
) -> None:
    names = {match[1] for match in pinned(root)}
    lines = [line for data in packages.values() for line in data["project"]["dependencies"]]
    lines += [line for data in packages.values() for line in data["build-system"]["requires"]]
    lines += metapackage["project"]["optional-dependencies"]["dev"]
    wanted = {re.split(r"[\[><=!~ @]", line)[0].lower() for line in lines if not line.startswith("cacheir")}
    assert wanted <= names, wanted - names


ORACLES = {"gguf", "numpy", "safetensors", "tokenizers", "transformers"}


def test_this_environment_has_the_pinned_versions(root: Path) -> None:
    """The numbers that tests here compare with come from these versions."""
    here = ">=" if sys.version_info >= (3, 11) else "<"
    for match in pinned(root):
        if match[1] in ORACLES and match[4] in (None, here):
            assert version(match[1]) == match[2], f"{match[1]}: run `make dev`"

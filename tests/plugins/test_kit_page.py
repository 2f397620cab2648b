"""docs/testing.md lists every check of the kit with what its docstring says; ``pytest --accept`` writes the tables."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import cacheir.testing

PAGE = Path(__file__).resolve().parents[2] / "docs" / "testing.md"
CLASSES = [name for name in cacheir.testing.__all__ if name.endswith("Tests")]
TABLE = re.compile(r"(?<=\n\n)\| check \|.*?(?=\n\n|\n\Z)", re.DOTALL)


def table(name: str) -> str:
    """The checks of a class of the kit, in the order in which they are written, its bases' first."""
    kit = getattr(cacheir.testing, name)
    checks = {
        check: function
        for base in reversed(inspect.getmro(kit))
        for check, function in vars(base).items()
        if check.startswith("test_")
    }
    rows = [f"| `{check}` | {_first_sentence(function)} |" for check, function in checks.items()]
    return "\n".join(["| check | what it is about |", "|---|---|", *rows])


def test_the_page_lists_every_check(request: pytest.FixtureRequest) -> None:
    text = PAGE.read_text(encoding="utf-8")
    parts = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    headings = {part.split("\n", 1)[0].strip("# `"): index for index, part in enumerate(parts)}
    for name in CLASSES:
        assert name in headings, f"docs/testing.md has no heading about {name}"
        part = parts[headings[name]]
        if request.config.getoption("--accept"):
            parts[headings[name]] = TABLE.sub(lambda found, name=name: table(name), part)
        else:
            assert table(name) in part, f"the table of {name} is of before: pytest {Path(__file__).name} --accept"
    if request.config.getoption("--accept"):
        PAGE.write_text("".join(parts), encoding="utf-8")


def _first_sentence(function: object) -> str:
    lines = (inspect.getdoc(function) or "").split("\n\n")[0].split("\n")
    return " ".join(lines).replace("``", "`").replace("|", "\\|")

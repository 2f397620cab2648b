"""docs/path.md lists the steps that ``pytest -m path`` runs, in its order and by its words."""

from __future__ import annotations

import ast
import re
from pathlib import Path

HERE = Path(__file__)


def test_the_page_and_the_tests_name_the_same_steps() -> None:
    tests = ast.parse(HERE.with_name("test_path.py").read_text(encoding="utf-8"))
    names = [node.name for node in tests.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    page = (HERE.parents[2] / "docs" / "path.md").read_text(encoding="utf-8")
    steps = re.findall(r"^(\d)\. \*\*(.+?)\*\*.*\n(?:   .*\n)*?   `(test_\w+)`", page, re.MULTILINE)
    assert [step[2] for step in steps] == names
    assert [int(number) for number, _, _ in steps] == list(range(1, 9))
    for number, title, name in steps:
        assert name == f"test_{number}_" + re.sub(r"\W+", "_", title.lower())

"""docs/ir.md names every rule that the verifier has, and no other; its example is read as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import cacheir.ir.rules
from cacheir.ir import parse_module, print_module

PAGE = Path(__file__).parents[3] / "docs" / "ir.md"

pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="docs/ir.md is not part of this package's source archive")


def test_every_rule_of_the_verifier_has_a_row() -> None:
    sources = [path.read_text(encoding="utf-8") for path in Path(cacheir.ir.rules.__file__).parent.glob("*.py")]
    in_code = {name for text in sources for name in re.findall(r'"([a-z]+(?:-[a-z]+)+)"', text)}
    table = PAGE.read_text(encoding="utf-8").partition("| rule |")[2].partition("\n\n")[0]
    in_page = {
        name for row in table.splitlines()[2:] for name in re.findall(r"`([a-z]+(?:-[a-z]+)+)`", row.split("|")[1])
    }
    assert in_page == in_code


def test_the_example_is_graph_text() -> None:
    block = re.search(r"((?:    .*\n|\n)+)", PAGE.read_text(encoding="utf-8").partition("read back exactly.")[2])
    assert block is not None
    text = re.sub("^    ", "", block[1], flags=re.M).strip() + "\n"
    # The example leaves out where %k, %v and %slots come from, and one weight's source.
    text = text.replace(
        "  weight @attn_norm", "  input %k: f32[T]\n  input %v: f32[T]\n  input %slots: i32[T]\n  weight @attn_norm", 1
    )
    assert print_module(parse_module(text)) == text

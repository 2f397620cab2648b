"""docs/ops.md is what the definitions of the ops say."""

from __future__ import annotations

from pathlib import Path

from cacheir.ops.page import ops_page
from cacheir.ops.table import core_ops


def test_the_page_of_ops_is_current(root: Path) -> None:
    page = (root / "docs" / "ops.md").read_text(encoding="utf-8")
    assert page == ops_page(core_ops()), "write it anew: python -m cacheir.ops.page > docs/ops.md"


def test_the_page_has_an_entry_for_each_op_with_its_operands_and_attributes() -> None:
    page = ops_page(core_ops())
    for name, definition in core_ops().items():
        entry = page.split(f"\n### {name}\n")[1].split("\n### ")[0]
        assert definition.doc in entry
        assert all(f"- `{operand.name}`: " in entry for operand in definition.operands)
        assert all(f"| `{attr.name}` |" in entry for attr in definition.attrs)

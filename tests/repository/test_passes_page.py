"""docs/passes.md lists the passes of core in the order in which they run, with what their records say."""

from __future__ import annotations

import re
from pathlib import Path

from cacheir.passes.table import core_passes
from cacheir.pipeline.choose import ChosenPass
from cacheir.pipeline.order import order_passes

ROW = re.compile(r"^\| `([a-z-]+)` \| (logical|mode|target) \| (.+) \|$", re.MULTILINE)


def test_the_table_of_passes_is_current(root: Path) -> None:
    page = (root / "docs" / "passes.md").read_text(encoding="utf-8")
    order = order_passes([ChosenPass(spec, "core") for spec in core_passes().values()], steps=())
    assert ROW.findall(page) == [(place.name, place.stage.value, place.summary) for place in order]

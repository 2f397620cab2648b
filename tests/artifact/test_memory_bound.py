"""The arena of every family's tiny model lies within a tenth of what is alive at once, whatever the plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from cacheir import compile_model
from cacheir.ir.graph import Module
from cacheir.schedule.memory_plan import MemoryPlan
from cacheir_importers.family_table import families
from cacheir_importers.tiny import write_tiny

FAMILIES = sorted(family.name for family in families())
LARGEST_SHARE = 1.1


@pytest.mark.parametrize("family", FAMILIES)
def test_the_arena_is_near_what_is_alive_at_once(family: str, tmp_path: Path) -> None:
    write_tiny(tmp_path / "model", family=family)
    program = compile_model(tmp_path / "model", target="cpu", max_seq=64, output=tmp_path / "artifact").program
    for mode, module in program.modules.items():
        plan = program.plans[mode]
        for root in (module.main, *module.heads):
            bound = alive(module, plan, root.name)
            taken = plan.frame(root.name).with_callees
            assert taken <= LARGEST_SHARE * bound + plan.alignment, f"@{root.name} of {mode}"


def alive(module: Module, plan: MemoryPlan, graph: str) -> int:
    """The most bytes that are alive at once from ``graph`` on, each buffer filled up to the alignment.

    Two values that share a place by design count once; a callee's own most comes on top of what its caller keeps.
    """
    frame, most = plan.frame(graph), 0
    for number, op in enumerate(module.graph(graph).ops):
        kept = {
            place.offset: -(-place.nbytes // plan.alignment) * plan.alignment
            for place in frame.places.values()
            if place.first <= number <= place.last
        }
        inner = alive(module, plan, op.callee) if op.callee else 0
        most = max(most, sum(kept.values()) + inner)
    return most

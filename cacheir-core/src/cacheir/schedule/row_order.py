"""Which ops, run by their meaning, may give a row other bits beside more rows: those with a matrix product in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cacheir.ir.graph import Op
from cacheir.ir.opdef import OpDef
from cacheir.plugins.ref import resolve
from cacheir.schedule.program import Program


def meaning_varies(op: Op, ops: Mapping[str, OpDef]) -> bool:
    """Whether the bits of a row of ``op``, run by its meaning, may depend on the number of rows.

    Products are NumPy's, whose BLAS sums in another order for other shapes. Every other primitive works row by row.
    """
    if op.name == "matmul":
        return True
    decompose = ops[op.name].decompose
    return decompose is not None and any(meaning_varies(inner, ops) for inner in resolve(decompose)(op).ops)


def varying_ops(program: Program, ops: Mapping[str, OpDef]) -> tuple[str, ...]:
    """Names of the ops of ``program`` that its schedules run by a meaning that varies, sorted."""
    return tuple(sorted({op.name for op in _by_meaning(program) if meaning_varies(op, ops)}))


def _by_meaning(program: Program) -> Iterable[Op]:
    for mode, module in program.modules.items():
        for launches, graph in zip(program.schedules[mode].graphs, module.graphs):
            for entry in launches.entries:
                if any(choice.kernel == "" for choice in entry.choices):
                    yield graph.ops[entry.op]

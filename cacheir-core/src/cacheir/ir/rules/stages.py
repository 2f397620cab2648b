"""Stages: what a graph of a later stage may no longer hold."""

from __future__ import annotations

from collections.abc import Iterator

from cacheir.ir.graph import Graph, Value
from cacheir.ir.printer import line_of_op, line_of_param
from cacheir.ir.rules.finding import Finding, Setting
from cacheir.ir.types import KVType

# Attention without a cache exists until prefill-decode-specialization has made the cache explicit.
_LOGICAL_ONLY = frozenset({"grouped_query_attention"})


def stages(graph: Graph, setting: Setting) -> Iterator[Finding]:
    """Findings ``wrong-stage`` and ``unbound-size``, in the stages ``mode`` and ``target``."""
    if setting.stage not in ("mode", "target"):
        return
    bounded = {name for name, _, _ in graph.dims}
    for number, value in enumerate(graph.params):
        yield from _unbounded(value, line_of_param(graph, number), bounded)
    for number, op in enumerate(graph.ops):
        line = line_of_op(graph, number)
        if op.name in _LOGICAL_ONLY:
            yield Finding(line, "wrong-stage", f"{op.name} belongs to the logical stage; this graph is past it")
        for value in op.results:
            yield from _unbounded(value, line, bounded)


def _unbounded(value: Value, line: int, bounded: set[str]) -> Iterator[Finding]:
    if isinstance(value.type, KVType):
        return
    for name in sorted({name for size in value.type.shape for name in size.names} - bounded):
        yield Finding(line, "unbound-size", f"{value}: size {name} has no 'dim {name} in [...]'")

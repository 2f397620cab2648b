"""The program step prefill-decode-specialization: from the logical module to the modules of prefill and decode.

It threads the KV states, slots, page tables and lengths of each KV group through main and the layer graphs, lowers
attention to appending and paged attention, gathers the rows that need a head, and adds the other heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from cacheir.errors import PassFailed
from cacheir.ir.dims import Dim
from cacheir.ir.graph import LAYER, Graph, Module, Op, Value
from cacheir.ir.rewriter import Rewriter
from cacheir.ir.types import KVType, TensorType, Type
from cacheir.models.decoder_graph import SizeLimits
from cacheir.pipeline.heads import all_heads
from cacheir.pipeline.kv_groups import KVGroups
from cacheir.pipeline.steps import SPECIALIZE
from cacheir.pipeline.threads import BATCH_INPUTS, Threads, threads_of

MODES = ("prefill", "decode")


def specialize(
    module: Module, mode: str, limits: SizeLimits, groups: KVGroups, threads: Threads | None = None
) -> Module:
    """The module of ``mode``; ``threads`` are those of ``module``, the same for all modes, made where none are given.

    Raises PassFailed where a graph holds more than one attention op, or uses row starts for anything but attention.
    """
    sizes = _Sizes(mode, limits)
    layers = tuple(_layer(graph, mode, groups.type_of(graph.name), sizes) for graph in module.layers)
    main = _main(module.main, mode, threads or threads_of(module, groups), sizes)
    return Module(mode, (main, *layers, *all_heads(module.heads)))


@dataclass(frozen=True)
class _Sizes:
    """The named sizes of a mode and their bounds. In decode a row is one token, so B is T."""

    mode: str
    limits: SizeLimits

    @property
    def rows(self) -> Dim:
        """The size that counts rows."""
        return Dim(0, (("B" if self.mode == "prefill" else "T", 1),))

    def dims(self, graph: Graph, *more: tuple[str, int, int]) -> tuple[tuple[str, int, int], ...]:
        """The sizes of a graph of this mode: the logical ones with their new bounds, then ``more``."""
        if self.mode == "prefill":
            return (*graph.dims, *more)
        kept = tuple((name, low, self.limits.max_rows if name == "T" else high) for name, low, high in graph.dims)
        return (*(bound for bound in kept if bound[0] != "B"), *more)

    def of(self, value: Value) -> Value:
        """A value of the logical graph with its type in this mode."""
        if self.mode == "prefill" or not isinstance(value.type, TensorType):
            return value
        if not any("B" in size.names for size in value.type.shape):
            return value
        shape = tuple(size.substitute({"B": self.rows}) for size in value.type.shape)
        return replace(value, type=TensorType(value.type.dtype, shape))

    def batch_types(self) -> tuple[Type, ...]:
        """The types of ``BATCH_INPUTS``."""
        return (
            TensorType.of("i32", "T"),
            TensorType.of("i32", self.rows, "M"),
            TensorType.of("i32", self.rows),
        )

    @property
    def pages(self) -> tuple[str, int, int]:
        """M: a page holds at least one token, so no row has more pages than positions."""
        return ("M", 1, self.limits.max_seq)


def _layer(graph: Graph, mode: str, kv_type: KVType | None, sizes: _Sizes) -> Graph:
    """One layer graph with its state and batch inputs, attention lowered."""
    names = Rewriter(graph)  # for names that are not taken
    params = [sizes.of(value) for value in graph.params if mode == "prefill" or value.name != "row_starts"]
    starts = next((value for value in graph.params if value.name == "row_starts"), None)
    if kv_type is None:
        _refuse_row_starts(graph, mode, starts)
        return replace(graph, dims=sizes.dims(graph), params=tuple(params), ops=_retyped(graph.ops, sizes))
    kv = Value(names.fresh("kv"), kv_type, "state")
    slots, table, lengths = (
        Value(names.fresh(name), type_, "input") for name, type_ in zip(BATCH_INPUTS, sizes.batch_types())
    )
    state = Value(names.fresh("kv"), kv_type)
    ops: list[Op] = []
    for op in graph.ops:
        if op.name != "grouped_query_attention":
            ops.append(op)
            continue
        q, k, v, positions, row_starts = op.operands
        ops.append(Op("kv_append", (kv, k, v, slots), (state,), (("layer", LAYER),), op.scope))
        rows = (row_starts, positions, lengths) if mode == "prefill" else (positions, lengths)
        attrs = tuple(sorted({**dict(op.attrs), "layer": LAYER}.items()))
        ops.append(Op(f"paged_attention_{mode}", (q, state, table, *rows), op.results, attrs, op.scope))
    lowered = replace(
        graph,
        dims=sizes.dims(graph, sizes.pages),
        params=(params[0], kv, *params[1:], slots, table, lengths),
        ops=_retyped(tuple(ops), sizes),
        outputs=(*graph.outputs, state),
    )
    _refuse_row_starts(lowered, mode, starts)
    return lowered


def _main(graph: Graph, mode: str, threads: Threads, sizes: _Sizes) -> Graph:
    """Main with the states and batch inputs of all groups, threaded through its calls."""
    starts = next((value for value in graph.params if value.name == "row_starts"), None)
    params = [sizes.of(value) for value in graph.params if mode == "prefill" or value.name != "row_starts"]
    batches: list[tuple[Value, ...]] = []
    for names, state in zip(threads.batch_names, threads.first):
        batches.append(tuple(Value(name, type_, "input") for name, type_ in zip(names, sizes.batch_types())))
        params += [*batches[-1], state]
    head_rows = Value(threads.head_rows, TensorType.of("i32", "R"), "input")
    hidden = graph.outputs[0]
    if not isinstance(hidden.type, TensorType) or len(hidden.type.shape) < 2:
        raise PassFailed(f"{SPECIALIZE.name}: @{graph.name} yields {hidden.type}, not the hidden rows [T, H]")
    rows = Value(threads.rows, TensorType(hidden.type.dtype, (Dim(0, (("R", 1),)), *hidden.type.shape[1:])))
    ops = list(graph.ops)
    for place, row_starts, group, states, results in threads.calls:
        op = ops[place]
        operands = op.operands
        if row_starts is not None and mode == "decode":
            operands = operands[:row_starts] + operands[row_starts + 1 :]
        if group is not None:
            operands = (operands[0], *states, *operands[1:], *batches[group])
        ops[place] = Op("call", operands, results, op.attrs, op.scope, op.hints)
    ops.append(Op("gather_rows", (hidden, head_rows), (rows,)))
    most = sizes.limits.max_tokens if mode == "prefill" else sizes.limits.max_rows
    more = [sizes.pages] if threads.first else []
    main = replace(
        graph,
        dims=sizes.dims(graph, *more, ("R", 0, most)),
        params=(*params, head_rows),
        ops=_retyped(tuple(ops), sizes),
        outputs=(rows, *graph.outputs[1:], *threads.last),
    )
    counts, taken = threads.use_counts, threads.names
    if mode == "decode" and starts is not None:
        counts, taken = _less(counts, threads.starts_read), taken - {starts.name}
    main = main.knowing(use_counts=counts, positions=threads.positions, names=taken)
    _refuse_row_starts(main, mode, starts)
    return main


def _retyped(ops: tuple[Op, ...], sizes: _Sizes) -> tuple[Op, ...]:
    if sizes.mode == "prefill":
        return ops
    types = {id(value.type): value for op in ops for value in op.results}  # most values share few of them
    if all(sizes.of(value) is value for value in types.values()):
        return ops
    return tuple(
        replace(op, operands=tuple(map(sizes.of, op.operands)), results=tuple(map(sizes.of, op.results))) for op in ops
    )


def _refuse_row_starts(graph: Graph, mode: str, starts: Value | None) -> None:
    """In decode there are no row starts: every row is one token."""
    if mode == "decode" and starts is not None and starts.name in graph.use_counts:
        for op in graph.uses().get(starts.name, ()):
            raise PassFailed(
                f"{SPECIALIZE.name}: {op.name} in @{graph.name} reads %{starts.name}, which decode does not have",
                hint="only grouped_query_attention may read row starts",
            )


def _less(counts: Mapping[str, int], gone: Mapping[str, int]) -> dict[str, int]:
    """``counts`` without those that are ``gone``, nor those of which none are left."""
    left = dict(counts)
    for name, number in gone.items():
        left[name] -= number
        if not left[name]:
            del left[name]
    return left

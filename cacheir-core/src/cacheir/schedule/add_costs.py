"""Writes into kernel choices what the chosen kernel and each other candidate would move and compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from cacheir.errors import PluginError
from cacheir.ir.graph import Graph, Module, Op
from cacheir.plugins.ref import resolve
from cacheir.plugins.specs import KernelSpec
from cacheir.schedule.op_cost import KEYS, Cost, CostModel
from cacheir.schedule.schedule import Candidate, Choice

RECORDED_KEYS = 1024  # keys of a row for which costs are recorded, fewer where the program has fewer positions

Kernels = Mapping[str, KernelSpec]
Choices = Mapping[tuple[str, str], tuple[Choice, ...]]


def add_costs(
    module: Module, choices: Choices, model: CostModel, kernels: Kernels
) -> dict[tuple[str, str], tuple[Choice, ...]]:
    """``choices`` with bytes and operations, in launches of the fewest rows in decode and the most in other modes.

    They depend on the program alone, never on the machine. Raises PluginError for a kernel's ``cost`` that raises.
    """
    found: dict[tuple[str, str], tuple[Choice, ...]] = {}
    for graph in module.graphs:
        for op in graph.ops:
            key = (graph.name, op.results[0].name if op.results else "")
            fewest, priced = 1, []
            for choice in choices[key]:
                rows = rows_of(module.mode, graph, fewest, choice.rows_up_to)
                sizes = sizes_of(graph, rows, recorded_keys(module))
                priced.append(choice if op.callee else _priced(choice, op, sizes, rows, model, kernels))
                fewest = choice.rows_up_to + 1
            found[key] = tuple(priced)
    return found


def kernel_cost(
    kernel: KernelSpec | None, op: Op, sizes: Mapping[str, int], model: CostModel, operations: int | None = None
) -> Cost:
    """What ``kernel`` (None: the op's meaning) moves and computes for ``op``, by its own ``cost`` where it has one.

    ``operations`` are the op's own for these sizes, where they are known already.
    """
    if kernel is None or kernel.cost is None:
        return model.cost(op, sizes, weight_bytes=kernel.weight_bytes if kernel else 0, operations=operations)
    try:
        moved, operations = resolve(kernel.cost)(op, sizes)
        return Cost(bytes=int(moved), operations=int(operations))
    except Exception as error:
        raise PluginError(f"kernel {kernel.name!r}: cost() raised {type(error).__name__}: {error}") from error


def sizes_of(graph: Graph, rows: int, keys: int) -> dict[str, int]:
    """A value for each size of ``graph`` in a step of ``rows`` tokens that belong to one row in prefill, each to its
    own in decode; other sizes have their upper bounds.
    """
    sizes = {name: upper for name, _, upper in graph.dims}
    for name in ("T", "R"):
        if name in sizes:
            sizes[name] = min(rows, sizes[name])
    if "B" in sizes:  # prefill: the tokens are one row's, whose last one needs a head
        sizes |= {"B": 1, "R": 1}
    return {**sizes, KEYS: keys}


def rows_of(mode: str, graph: Graph, fewest: int, most: int) -> int:
    """The rows for which costs are worked out: as few as the class has in decode, else as many; one in a head."""
    bounds = {name: upper for name, _, upper in graph.dims}
    if mode == "decode":
        return min(fewest, bounds.get("T", bounds.get("R", 1)))
    return min(most or bounds.get("T", 1), bounds.get("T", 1))


def recorded_keys(module: Module) -> int:
    """The keys of a row for which costs are recorded."""
    # A page holds a token or more, so the most pages are the most positions.
    most = next((upper for name, _, upper in module.main.dims if name == "M"), RECORDED_KEYS)
    return min(RECORDED_KEYS, most)


def _priced(choice: Choice, op: Op, sizes: Mapping[str, int], rows: int, model: CostModel, kernels: Kernels) -> Choice:
    operations = model.operations(op, sizes)
    cost = kernel_cost(kernels.get(choice.kernel), op, sizes, model, operations)
    return replace(
        choice,
        at_rows=rows,
        bytes=cost.bytes,
        operations=cost.operations,
        candidates=_priced_candidates(choice.candidates, op, sizes, model, kernels, operations),
    )


def _priced_candidates(
    candidates: Sequence[Candidate],
    op: Op,
    sizes: Mapping[str, int],
    model: CostModel,
    kernels: Kernels,
    operations: int,
) -> tuple[Candidate, ...]:
    priced = []
    for candidate in candidates:
        cost = kernel_cost(kernels.get(candidate.kernel), op, sizes, model, operations)
        priced.append(replace(candidate, bytes=cost.bytes, operations=cost.operations))
    return tuple(priced)

"""What a step of a program launches: nodes with their kernels, how often each runs, what it moves and computes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cacheir.ir.types import KVType, QuantType
from cacheir.plugins.specs import KernelSpec
from cacheir.schedule.add_costs import kernel_cost
from cacheir.schedule.flatten import Launch, flatten
from cacheir.schedule.op_cost import KEYS, Cost, CostModel
from cacheir.schedule.program import Program
from cacheir.schedule.schedule import Candidate


@dataclass(frozen=True, kw_only=True)
class StepShape:
    """A step of ``rows`` sequences with ``tokens`` tokens in all, each of whose rows then has ``keys`` keys."""

    mode: str
    rows: int
    tokens: int
    keys: int
    head: str = "head.greedy"


@dataclass(frozen=True, kw_only=True)
class NodeCost:
    """One node of a graph in one step: ``calls`` launches, one for each layer that calls the graph.

    ``cost`` is of one launch. ``rate_key`` names the kernel's rate in a calibration, "" for an op that runs by its
    meaning.
    """

    graph: str
    node: str
    op: str
    kernel: str
    reason: str
    rate_key: str
    numerics: str
    calls: int
    cost: Cost
    losers: tuple[Candidate, ...] = field(default=())

    @property
    def total(self) -> Cost:
        """The cost of all launches."""
        return Cost(bytes=self.calls * self.cost.bytes, operations=self.calls * self.cost.operations)


def step_costs(
    program: Program, shape: StepShape, kernels: Mapping[str, KernelSpec], model: CostModel
) -> tuple[NodeCost, ...]:
    """The nodes of main, of the graphs that it calls and of the head, in the order in which they first run."""
    main = flatten(program, shape.mode)
    head = flatten(program, shape.mode, shape.head)
    sizes = {"T": shape.tokens, "B": shape.rows, "R": shape.rows, "M": 1, KEYS: shape.keys}
    found: dict[tuple[str, str], NodeCost] = {}
    for launch, rows in (*((launch, shape.tokens) for launch in main), *((launch, shape.rows) for launch in head)):
        key = (launch.graph, launch.node)
        if key in found:
            found[key] = replace(found[key], calls=found[key].calls + 1)
        else:
            found[key] = _node(launch, rows, sizes, kernels, model)
    return tuple(found.values())


def rate_key(launch: Launch, kernel: KernelSpec | None) -> str:
    """The name of the kernel's rate: with the weight's storage format where the kernel reads it as it is stored."""
    if kernel is None:
        return ""
    formats = [
        place.type.format if isinstance(place.type, QuantType) else place.type.dtype
        for place in launch.reads
        if place.kind == "weight" and not isinstance(place.type, KVType) and len(place.type.shape) > 1
    ]
    return f"{kernel.name}@{formats[0]}" if formats and not kernel.weight_bytes else kernel.name


def _node(
    launch: Launch, rows: int, sizes: Mapping[str, int], kernels: Mapping[str, KernelSpec], model: CostModel
) -> NodeCost:
    choice = launch.choice(rows)
    kernel = kernels.get(choice.kernel)
    own = {name: size.evaluate(sizes) for name, size in launch.sizes.items()} | {KEYS: sizes[KEYS]}
    return NodeCost(
        graph=launch.graph,
        node=launch.node,
        op=launch.op.name,
        kernel=choice.kernel,
        reason=choice.reason,
        rate_key=rate_key(launch, kernel),
        numerics=kernel.numerics if kernel else "f32",
        calls=1,
        cost=kernel_cost(kernel, launch.op, own, model),
        losers=tuple(_with_costs(choice.candidates, launch, own, kernels, model)),
    )


def _with_costs(
    candidates: Sequence[Candidate],
    launch: Launch,
    sizes: Mapping[str, int],
    kernels: Mapping[str, KernelSpec],
    model: CostModel,
) -> Iterator[Candidate]:
    """The candidates that were not taken, with what each would move and compute in this step."""
    for candidate in candidates:
        if candidate.refusal:
            cost = kernel_cost(kernels.get(candidate.kernel), launch.op, sizes, model)
            yield replace(candidate, bytes=cost.bytes, operations=cost.operations)

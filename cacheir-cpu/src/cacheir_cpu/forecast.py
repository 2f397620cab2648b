"""What the NumPy executor will own and take for a while, from the program alone: no weight is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from cacheir.ir.dtypes import dtype_bytes
from cacheir.ir.graph import Graph
from cacheir.ir.types import KVType, TensorType
from cacheir.plugins import KernelSpec, QuantFormatSpec
from cacheir.plugins.installation import default
from cacheir.plugins.ref import resolve
from cacheir.runtime.executor import ExecutorOptions, MemoryForecast, MemoryUse
from cacheir.schedule.flatten import Launch, flatten
from cacheir.schedule.joined_operands import wanted_weights
from cacheir.schedule.op_cost import KEYS, CostModel
from cacheir.schedule.program import Program
from cacheir_cpu.residents import is_made, is_own_form, resident_key

# Resident bytes of a launch: its records, and its views and calls in the few sizes that stay bound. Measured, as is
# what BLAS keeps for its threads.
LAUNCH_BYTES = 8000
BLAS_BYTES = 12_000_000


def forecast(program: Program, options: ExecutorOptions, pages: Sequence[int]) -> MemoryForecast:
    """As ``BackendSpec.memory`` promises; ``pages`` are the KV pages of each group."""
    installation = options.installation or default()
    kernels, formats = installation.kernels.by_name(), installation.quant_formats.by_name()
    launches = {
        (mode, graph.name): flatten(program, mode, graph.name)
        for mode, module in program.modules.items()
        for graph in (module.main, *module.heads)
    }
    use = MemoryUse(
        weights=_weight_bytes(program, launches, kernels, formats),
        kv=sum(_pool_bytes(kind, count, options) for kind, count in zip(program.groups, pages)),
        arena=max(plan.arena_bytes for plan in program.plans.values()),
    )
    return MemoryForecast(
        use=use,
        # The files stay mapped until every weight was unpacked.
        loading=sum(source.nbytes for source in program.sources.values()),
        step=_step_bytes(program, launches, kernels),
        host=LAUNCH_BYTES * sum(len(list_) for list_ in launches.values()) + BLAS_BYTES,
        untouched=_untouched_bytes(program),
    )


def most_rows(program: Program, mode: str) -> int:
    """The rows of the largest step of ``mode``."""
    return program.max_rows if mode == "decode" else program.max_tokens


def _weight_bytes(
    program: Program,
    launches: Mapping[tuple[str, str], Sequence[Launch]],
    kernels: Mapping[str, KernelSpec],
    formats: Mapping[str, QuantFormatSpec],
) -> int:
    """Every weight as the kernels want it, f32 or a form of their own, and what recipes make; equal wishes once."""
    keys: dict[tuple[str, tuple[str, ...]], None] = {}
    for (mode, graph), list_ in launches.items():
        main = graph == program.modules[mode].main.name
        for rows in (1, most_rows(program, mode) if main else program.max_rows):
            keys |= dict.fromkeys(resident_key(*wanted) for wanted in wanted_weights(list_, rows, kernels))
    made = (recipes[0] for layout, recipes in keys if not layout and is_made(recipes[0], program.sources))
    costs = CostModel(ops={}, formats=formats)
    return sum(_form_bytes(program, layout, recipes) for layout, recipes in keys if layout) + sum(
        costs.stored_bytes(program.weights[recipe].type, {}) for recipe in made
    )


def _form_bytes(program: Program, layout: str, recipes: tuple[str, ...]) -> int:
    if not is_own_form(layout):
        return sum(4 * program.weights[recipe].elements for recipe in recipes)
    own: int = resolve(layout).nbytes([program.weights[recipe].type for recipe in recipes])
    return own


def _pool_bytes(kind: KVType, pages: int, options: ExecutorOptions) -> int:
    stored = replace(kind, dtype=options.kv_dtype or kind.dtype)
    return stored.layers * pages * options.page_tokens * stored.token_bytes


def _untouched_bytes(program: Program) -> int:
    """The arena beyond main, and beyond heads of as many rows as a step has; a head's frame grows with its rows."""
    touched = 0
    for mode, plan in program.plans.items():
        module = program.modules[mode]
        touched = max(touched, plan.frame(module.main.name).with_callees)
        for head in module.heads:
            most = next((upper for name, _, upper in head.dims if name == "R"), 1)
            touched = max(touched, plan.frame(head.name).with_callees * min(program.max_rows, most) // most)
    return max(plan.arena_bytes for plan in program.plans.values()) - touched


def _step_bytes(
    program: Program, launches: Mapping[tuple[str, str], Sequence[Launch]], kernels: Mapping[str, KernelSpec]
) -> int:
    """The most that a kernel takes for itself, with the results that the largest step hands from main to its head."""
    most = handed = 0
    for (mode, graph), list_ in launches.items():
        module = program.modules[mode]
        main = graph == module.main.name
        sizes = _sizes(module.main if main else module.graph(graph), program)
        if main:
            handed = max(handed, sum(_nbytes(value.type, sizes) for value in module.main.outputs))
        for launch in list_:
            spec = kernels.get(launch.choice(sizes.get("T", program.max_rows)).kernel)
            own = {name: size.evaluate(sizes) for name, size in launch.sizes.items()} | {KEYS: program.max_seq}
            if spec is not None and spec.workspace is not None:
                most = max(most, int(resolve(spec.workspace)(launch.op, own)))
            elif spec is None or not spec.writes_out:  # results in fresh arrays, which are copied into their places
                most = max(most, sum(_nbytes(place.type, own) for place in launch.writes))
    return most + handed


def _sizes(graph: Graph, program: Program) -> dict[str, int]:
    """Upper bounds; of rows with a head no more than there are rows, since no engine asks for more."""
    sizes = {name: upper for name, _, upper in graph.dims}
    return {**sizes, "R": min(sizes["R"], program.max_rows)} if "R" in sizes else sizes


def _nbytes(type_: object, sizes: Mapping[str, int]) -> int:
    if not isinstance(type_, TensorType):
        return 0
    return prod(type_.sizes(sizes)) * dtype_bytes(type_.dtype)

"""What the native runner will own, from the program alone: its code is written for a runner that only adds sizes up.

The sizes are those of cpp/include/cacheir_native/formats.h (panels), cpp/core/runner_build.cpp (workspace) and
cpp/core/kv_pool.cpp (pages); a test compares them with the runner's own account.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cacheir.errors import BackendError
from cacheir.ir.types import KVType, QuantType
from cacheir.plugins.installation import default
from cacheir.plugins.ref import resolve
from cacheir.runtime.executor import ExecutorOptions, MemoryForecast, MemoryUse
from cacheir.runtime.usable_cores import usable_cores
from cacheir.schedule.flatten import Launch, flatten
from cacheir.schedule.program import Program
from cacheir_native.assemble import assemble
from cacheir_native.instructions import WeightUse
from cacheir_native.options import read_options
from cacheir_native.own_formats import PANELS
from cacheir_native.precision import is_precise
from cacheir_native.screens import ScreenedHead
from cacheir_native.sizes import Workspace, panel_bytes, pool_bytes, rounded
from cacheir_native.weights import BATCH_BYTES

# A sampler's arrays for each element of the vocabulary and worker (cpp/core/sampling.cpp).
SAMPLER_BYTES = 20
# Resident bytes of a launch and its instruction, as Python objects and in the runner.
LAUNCH_BYTES = 2500


def forecast(program: Program, options: ExecutorOptions, pages: Sequence[int]) -> MemoryForecast:
    """As ``BackendSpec.memory`` promises; ``pages`` are the KV pages of each group."""
    if program.spec is None:
        raise BackendError(
            "the native backend runs decoders alone", hint="cacheir execute --backend cpu runs a plain graph on arrays"
        )
    own = read_options(options.extra)
    kernels = (options.installation or default()).kernels.by_name()
    names = {name for schedule in program.schedules.values() for name in schedule.kernels}
    launches: Mapping[tuple[str, str], Sequence[Launch]] = {
        (mode, graph.name): flatten(program, mode, graph.name)
        for mode, module in program.modules.items()
        for graph in (module.main, *module.heads)
    }
    runner, weights = _SizedRunner(), _SizedWeights(program)
    forms = {name: resolve(kernels[name].entry) for name in names}
    assemble(runner, program, launches, forms, weights)  # type: ignore[arg-type]
    few_rows = _SizedRunner()
    assemble(few_rows, _with_heads_of(program, program.max_rows), launches, forms, weights)  # type: ignore[arg-type]
    threads = options.threads or usable_cores()
    workspace = Workspace(
        threads=threads, rows=max(program.max_tokens, program.max_rows), max_seq=program.max_seq
    ).nbytes(runner.emitted, weights.shapes, [kind.head_dim for kind in program.groups])
    precise = is_precise(launches, {name: kernels[name] for name in names})
    screens = [head for head in _heads(runner.emitted, weights, precise) if head.takes_part(own.screen)]
    workspace += sum(head.workspace(threads) for head in screens)
    kv = sum(
        pool_bytes(kind, count, options.page_tokens, options.kv_dtype or kind.dtype)
        for kind, count in zip(program.groups, pages)
    )
    stored = sum(source.nbytes for source in program.sources.values())
    largest = max((source.nbytes for source in program.sources.values()), default=0)
    samplers = threads * SAMPLER_BYTES * program.spec.vocab_size if runner.samples else 0
    return MemoryForecast(
        use=MemoryUse(
            weights=weights.nbytes + sum(head.nbytes for head in screens),
            kv=kv,
            arena=runner.nbytes,
            workspace=workspace,
        ),
        # Pages of the files are given back after each batch.
        loading=min(stored, BATCH_BYTES + largest),
        host=samplers + LAUNCH_BYTES * sum(len(list_) for list_ in launches.values()),
        untouched=runner.nbytes - few_rows.nbytes,
    )


def _heads(
    emitted: Sequence[tuple[str, Mapping[str, Any]]], weights: _SizedWeights, precise: bool
) -> list[ScreenedHead]:
    """The heads of greedy steps that a screen may serve, each weight once."""
    heads = {}
    for opcode, operands in emitted:
        handle = operands.get("weight", -1)
        if opcode == "head_argmax" and "bias" not in operands and len(weights.formats[handle]) == 1:
            (format,), (rows, columns) = weights.formats[handle], weights.shapes[handle]
            int8 = format == "q8_0" and not precise
            heads[handle] = ScreenedHead(format=format, rows=rows, columns=columns, int8=int8)
    return list(heads.values())


def _with_heads_of(program: Program, rows: int) -> Program:
    """``program`` with heads that take at most ``rows`` rows, of which only sizes may be asked."""
    modules = {}
    for mode, module in program.modules.items():
        for head in module.heads:
            dims = tuple((name, low, min(high, rows) if name == "R" else high) for name, low, high in head.dims)
            module = module.replacing(replace(head, dims=dims))
        modules[mode] = module
    return replace(program, modules=modules)


@dataclass
class _SizedRunner:
    """What ``assemble`` asks of a runner, without a runner: places are given, instructions are kept."""

    nbytes: int = 0
    emitted: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)

    @property
    def samples(self) -> bool:
        """Whether an instruction draws tokens."""
        return any(opcode == "sample" for opcode, _ in self.emitted)

    def reserve(self, nbytes: int) -> int:
        place = self.nbytes
        self.nbytes = rounded(place + nbytes)
        return place

    def emit(self, section: str, opcode: str, **operands: Any) -> int:
        self.emitted.append((opcode, operands))
        return len(self.emitted) - 1

    def set_output(self, *_: Any) -> None:
        """Where the rows lie takes no memory of its own."""

    set_input = set_logits = set_output


class _SizedWeights:
    """Handles of weights that are never packed: ``shapes`` (rows, columns) and the ``formats`` of panels by handle."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._handles: dict[WeightUse, int] = {}
        self.shapes: list[tuple[int, int]] = []
        self.formats: list[tuple[str, ...]] = []
        self.nbytes = 0

    def handle(self, use: WeightUse) -> int:
        """The handle of ``use``, as ``PackedWeights.handle`` gives it."""
        if use not in self._handles:
            self._handles[use] = len(self.shapes)
            self._add(use)
        return self._handles[use]

    def _add(self, use: WeightUse) -> None:
        types = [self._program.weights[recipe].type for recipe in use.recipes]
        shapes = [tuple(size.constant for size in type_.shape) for type_ in types if not isinstance(type_, KVType)]
        if use.kind in ("frequencies", "vector"):
            count = len(use.values) if use.kind == "frequencies" else sum(shape[0] for shape in shapes)
            self.shapes.append((count, 1))
            self.formats.append(())
            self.nbytes += rounded((count + 16) * 4)
            return
        self.shapes.append((sum(shape[0] for shape in shapes), shapes[0][1]))
        formats = [type_.format if isinstance(type_, QuantType) else getattr(type_, "dtype", "") for type_ in types]
        panels = tuple(PANELS.get(name, name) for name in formats)
        self.formats.append(panels)
        self.nbytes += rounded(sum(panel_bytes(name, *shape) for name, shape in zip(panels, shapes)))

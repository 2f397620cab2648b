"""The NumPy executor: weights resident, page pools owned, one program walked launch by launch."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacheir.errors import BackendError, DeviceOutOfMemory, UsageError
from cacheir.ir.dtypes import numpy_dtype
from cacheir.ir.types import TensorType
from cacheir.models.imported import PLAIN_MODE
from cacheir.plugins import KernelSpec
from cacheir.plugins.installation import Installation, default
from cacheir.plugins.ref import resolve
from cacheir.reference.interpreter import Interpreter
from cacheir.reference.kv_storage import FORMATS
from cacheir.runtime.executor import (
    CallTiming,
    Capabilities,
    ExecutorOptions,
    MemoryUse,
    Row,
    Sink,
    Step,
    StepOutput,
)
from cacheir.runtime.row_outputs import WANTED
from cacheir.runtime.slots import Slots
from cacheir.runtime.step_inputs import Staged, check_limits, stage
from cacheir.schedule.flatten import Launch, flatten
from cacheir.schedule.joined_operands import wanted_weights
from cacheir.schedule.program import Program
from cacheir.schedule.row_order import varying_ops
from cacheir.schedule.unfuse import unfuse
from cacheir.weights.store import WeightStore
from cacheir_cpu.binding import BoundLaunch, Surroundings, bind
from cacheir_cpu.blas_threads import BlasThreads
from cacheir_cpu.heads import HeadRunner
from cacheir_cpu.plain_graph import run_plain_graph
from cacheir_cpu.pool import Pool
from cacheir_cpu.residents import Residents

ARENA_ALIGNMENT = 64
# Bound steps kept: decode at a few batch sizes and the usual prefill chunk. A bound step is a few thousand views.
KEPT_BINDINGS = 8


@dataclass(frozen=True)
class _Bound:
    """Main bound for given sizes: where its inputs go, where its rows come from, what to call."""

    inputs: Mapping[str, NDArray[Any]]
    rows: NDArray[np.float32]
    launches: Sequence[BoundLaunch]


class NumpyExecutor:
    """``cacheir.runtime.executor.Executor`` on NumPy. ``submit`` runs the step at once; one thread calls it."""

    def __init__(self, options: ExecutorOptions, installation: Installation | None = None) -> None:
        if options.kv_dtype and options.kv_dtype not in FORMATS:
            raise UsageError(f"the NumPy backend keeps KV as {', '.join(FORMATS)}, not {options.kv_dtype!r}")
        self._options = options
        self._installation = installation or options.installation or default()
        self._program: Program | None = None
        self._pools: list[Pool] = []
        self._slots = Slots()
        self._blas = BlasThreads()
        self._bound: OrderedDict[tuple[str, int, int, int], _Bound] = OrderedDict()

    def load(self, program: Program, weights: WeightStore) -> None:
        """Flatten the program and make its weights resident.

        Raises BackendError where it needs what is not installed, UsageError where ``unfuse`` names no node.
        """
        self._kernels = self._kernels_of(program)
        self._entries = {name: resolve(spec.entry) for name, spec in self._kernels.items()}
        self._residents = Residents(weights, program.sources, self._options.threads)
        self._interpreter = Interpreter(self._installation.ops.by_name())
        launches = {
            (mode, graph.name): flatten(program, mode, graph.name)
            for mode, module in program.modules.items()
            for graph in (module.main, *module.heads)
        }
        if self._options.unfuse:
            launches = unfuse(launches, self._options.unfuse)
        self._main = {mode: launches.pop((mode, module.main.name)) for mode, module in program.modules.items()}
        self._arena = _aligned(max(plan.arena_bytes for plan in program.plans.values()))
        self._heads = HeadRunner(program, launches, self._surroundings)
        self._blas.limit(self._options.threads)
        self._residents.make_all(self._wanted_weights(program))
        weights.release()
        self._program = program

    def open_pools(self, pages: Sequence[int]) -> None:
        """One pool for each KV group. DeviceOutOfMemory where NumPy cannot have the bytes."""
        program = self._loaded()
        if len(pages) != len(program.groups):
            raise UsageError(
                f"open_pools takes a page count for each of {len(program.groups)} KV groups, not {len(pages)}"
            )
        self._bound.clear()
        try:
            self._pools = [
                Pool(kind, layers, count, self._options.page_tokens, self._options.kv_dtype)
                for kind, layers, count in zip(program.groups, program.group_layers, pages)
            ]
        except MemoryError as error:
            raise DeviceOutOfMemory(f"the KV pools of {list(pages)} pages do not fit into memory: {error}") from error

    def capabilities(self) -> Capabilities:
        """What this executor takes."""
        program = self._loaded()
        return Capabilities(
            determinism="bit" if self._is_invariant(program) else "tolerance",
            heads=WANTED,
            page_tokens=(),
            kv_formats=FORMATS,
            row_classes=tuple(program.schedules["decode"].row_classes),
            max_rows=program.max_rows,
            max_tokens=program.max_tokens,
            run_ahead=True,
            masks=True,
        )

    def submit(self, step: Step) -> StepOutput:
        """Run ``step``; the ticket is its output."""
        return self._run(step, None)

    def wait(self, ticket: Any) -> StepOutput:
        """The output of ``submit``."""
        assert isinstance(ticket, StepOutput)
        return ticket

    def run_ahead(self, step: Step, n: int, sink: Sink) -> int:
        """Up to ``n`` decode steps of the step's rows, each fed the token before; stops early where a row fails."""
        for row in step.rows:
            if row.want != "token" or row.mask is not None:
                raise UsageError(f"slot {row.slot} cannot run ahead: what it wants ({row.want}, a mask) needs the host")
        rows = step.rows
        for number in range(n):
            output = self._run(Step(mode="decode", rows=rows), None)
            sink(output.rows)
            if any(row.error for row in output.rows):
                return number + 1
            rows = tuple(_next(row) for row in rows)
        return n

    def run_module(self, inputs: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], ...]:
        """The outputs of main of a plain graph."""
        return run_plain_graph(self._loaded(), self._main[PLAIN_MODE], inputs, self._surroundings)

    def copy_pages(self, group: int, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole pages, (source, target) each."""
        self._pools[group].copy_pages(pairs)

    def read_pages(self, group: int, pages: Sequence[int]) -> NDArray[np.float32]:
        """f32 [pages, layers, 2, heads, page_tokens, head_dim]."""
        return self._pools[group].read_pages(pages)

    def write_pages(self, group: int, pages: Sequence[int], data: NDArray[np.float32]) -> None:
        """``data`` as ``read_pages`` gives it."""
        self._pools[group].write_pages(pages, data)

    def measure(self, step: Step) -> Sequence[CallTiming]:
        """Run ``step`` once and time each launch; launches of one node of a layer graph are added up."""
        totals: dict[tuple[str, str, str], tuple[int, float]] = {}
        self._run(step, totals)
        return [
            CallTiming(graph=graph, node=node, kernel=kernel, calls=calls, seconds=seconds)
            for (graph, node, kernel), (calls, seconds) in totals.items()
        ]

    def memory(self) -> MemoryUse:
        """Owned bytes now."""
        self._loaded()
        return MemoryUse(
            weights=self._residents.nbytes,
            kv=sum(pool.nbytes for pool in self._pools),
            arena=self._arena.nbytes,
        )

    def close(self) -> None:
        """Let go of weights, pages and bindings."""
        self._blas.restore()
        self._bound.clear()
        self._pools = []
        if self._program is not None:
            self._heads.clear()
            self._residents.clear()
            self._program = None

    def _run(self, step: Step, timings: dict[tuple[str, str, str], tuple[int, float]] | None) -> StepOutput:
        program = self._loaded()
        if not self._pools and program.groups:
            raise BackendError("the executor has no KV pages yet", hint="call open_pools first")
        tokens = [self._slots.tokens(row) for row in step.rows]
        check_limits(step, tokens, program)
        page_tokens = self._options.page_tokens
        width = -(-program.max_seq // page_tokens)
        staged = stage(step.rows, tokens, len(program.groups), page_tokens, width)
        bound = self._bind(step.mode, staged)
        for name, array in bound.inputs.items():
            array[...] = staged.inputs[name]
        for pool in self._pools:
            pool.begin_step()
        call = partial(_call, timings=timings)
        # Infinities and NaN end in a row's error, which says more than NumPy's warnings on standard error.
        with np.errstate(all="ignore"):
            call(bound.launches)
            return StepOutput(rows=self._heads.run(step, staged, bound.rows, self._slots, call))

    def _is_invariant(self, program: Program) -> bool:
        """Whether no row's bits depend on the others: a product in the meaning of an op does not promise it."""
        if not self._options.batch_invariant or self._options.unfuse:
            return False
        return not varying_ops(program, self._installation.ops.by_name())

    def _bind(self, mode: str, staged: Staged) -> _Bound:
        key = (mode, staged.tokens, staged.rows, staged.head_rows)
        if key in self._bound:
            self._bound.move_to_end(key)
            return self._bound[key]
        main = self._loaded().modules[mode].main
        sizes = {"T": staged.tokens, "B": staged.rows, "R": staged.head_rows, "M": staged.inputs["page_table"].shape[1]}
        inputs = {value.name: np.empty_like(staged.inputs[value.name]) for value in main.inputs}
        first = main.outputs[0].type
        assert isinstance(first, TensorType)
        rows = np.empty(first.sizes(sizes), numpy_dtype(first.dtype))
        around = self._surroundings(inputs, {"0": rows}, staged.tokens, sizes)
        bound = _Bound(inputs, rows, bind(self._main[mode], around))
        self._bound[key] = bound
        if len(self._bound) > KEPT_BINDINGS:
            self._bound.popitem(last=False)
        return bound

    def _surroundings(
        self, inputs: Mapping[str, Any], outputs: Mapping[str, Any], rows: int, sizes: Mapping[str, int]
    ) -> Surroundings:
        return Surroundings(
            arena=self._arena,
            inputs=inputs,
            outputs=outputs,
            pools=self._pools,
            residents=self._residents,
            kernels=self._kernels,
            entries=self._entries,
            by_meaning=self._by_meaning,
            rows=rows,
            sizes=sizes,
        )

    def _by_meaning(self, launch: Launch, operands: Sequence[Any], sizes: Mapping[str, int]) -> Sequence[Any]:
        return self._interpreter.apply(launch.op, operands, sizes, launch.layer)

    def _wanted_weights(self, program: Program) -> Iterator[tuple[str, tuple[str, ...]]]:
        for mode, launches in self._main.items():
            for rows in (1, program.max_rows if mode == "decode" else program.max_tokens):
                yield from wanted_weights(launches, rows, self._kernels)
        yield from self._heads.wanted_weights(self._kernels)

    def _kernels_of(self, program: Program) -> dict[str, KernelSpec]:
        names = {name for schedule in program.schedules.values() for name in schedule.kernels}
        return {name: self._installation.kernels[name] for name in names}

    def _loaded(self) -> Program:
        if self._program is None:
            raise BackendError("the executor has no program yet", hint="call load first")
        return self._program


def _call(launches: Sequence[BoundLaunch], timings: dict[tuple[str, str, str], tuple[int, float]] | None) -> None:
    if timings is None:
        for bound in launches:
            bound.run()
        return
    for bound in launches:
        start = time.perf_counter()
        bound.run()
        took = time.perf_counter() - start
        key = (bound.launch.graph, bound.launch.node, bound.kernel)
        calls, seconds = timings.get(key, (0, 0.0))
        timings[key] = (calls + 1, seconds + took)


def _next(row: Row) -> Row:
    return Row(
        slot=row.slot,
        tokens=(),
        position=row.position + max(1, len(row.tokens)),
        pages=row.pages,
        want=row.want,
        draw=row.draw + 1,
    )


def _aligned(nbytes: int) -> NDArray[np.uint8]:
    raw = np.empty(nbytes + ARENA_ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ARENA_ALIGNMENT
    return raw[start : start + nbytes]

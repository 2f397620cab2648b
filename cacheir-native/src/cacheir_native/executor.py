"""The native executor: one runner in C++ holds weights, pages and slots; a step is one call of it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacheir import settings
from cacheir.errors import BackendError, BackendUnavailable, DeviceOutOfMemory, RequestError, UsageError
from cacheir.plugins import KernelSpec
from cacheir.plugins.installation import Installation, default
from cacheir.plugins.ref import resolve
from cacheir.reference.interpreter import Interpreter
from cacheir.runtime.executor import (
    WANTS,
    CallTiming,
    Capabilities,
    ExecutorOptions,
    MemoryUse,
    Row,
    Sink,
    Step,
    StepOutput,
)
from cacheir.runtime.usable_cores import usable_cores
from cacheir.schedule.flatten import Launch, flatten
from cacheir.schedule.program import Program
from cacheir.schedule.unfuse import unfuse
from cacheir.weights.store import WeightStore
from cacheir_native.assemble import Assembled, assemble
from cacheir_native.host_calls import HostCalls
from cacheir_native.options import read_options
from cacheir_native.precision import is_precise
from cacheir_native.probe import EXTENSION, why_unavailable
from cacheir_native.results import output_rows, token_rows
from cacheir_native.runner_pool import RunnerPool
from cacheir_native.split_step import SplitStepper
from cacheir_native.weights import PackedWeights

KV_FORMATS = ("f32", "f16", "bf16", "int8")
PAGE_TOKENS = (16, 32, 64, 128, 256)
# How long run_ahead stays away from Python: another thread of the process may wait to cancel.
AHEAD_MS = 50.0
# From so many rows on a step runs beside the host's own work, where a core is left for that (``overlap_rows``).
OVERLAP_ROWS = 8


@dataclass(frozen=True)
class StepUnderWay:
    """A step on the runner's thread: its rows, and what waits for it."""

    rows: Sequence[Row]
    flight: Any


class NativeExecutor:
    """``cacheir.runtime.executor.Executor`` on the C++ runner; one thread calls.

    ``submit`` runs a step at once, or gives it to a thread of the runner's (``overlap_rows``).
    """

    def __init__(self, options: ExecutorOptions, installation: Installation | None = None) -> None:
        """Raises BackendUnavailable with the probe's reason, UsageError for KV or pages that the runner has not."""
        reason = why_unavailable()
        if reason is not None:
            raise BackendUnavailable(f"backend 'native' cannot run: {reason}", hint="use --backend cpu")
        if options.kv_dtype and options.kv_dtype not in KV_FORMATS:
            raise UsageError(f"the native backend keeps KV as {', '.join(KV_FORMATS)}, not {options.kv_dtype!r}")
        if options.page_tokens not in PAGE_TOKENS:
            raise UsageError(
                f"the native backend has no KV pages of {options.page_tokens} tokens",
                hint=f"it takes {', '.join(map(str, PAGE_TOKENS))}; the backend cpu takes any",
            )
        self._options = options
        self._installation = installation or options.installation or default()
        self._program: Program | None = None
        self._runner: Any = None
        self._assembled: Assembled | None = None
        self._host: HostCalls | None = None
        self._split: SplitStepper | None = None
        self._packing: PackedWeights | None = None
        self._open = False
        self._overlap_rows = sys.maxsize
        self._slots: set[int] = set()  # those with a last token

    def load(self, program: Program, weights: WeightStore) -> None:
        """Write the program's instructions while its weights are packed; ``open_pools`` waits for them.

        Raises BackendError where the program is none of a decoder or mixes kernels that cannot run together,
        UsageError where ``unfuse`` names no node.
        """
        if program.spec is None or not set(program.modules) <= {"prefill", "decode"}:
            raise BackendError(
                "the native backend runs decoders alone",
                hint="cacheir execute --backend cpu runs a plain graph on arrays",
            )
        kernels = self._kernels_of(program)
        launches: Mapping[tuple[str, str], Sequence[Launch]] = {
            (mode, graph.name): flatten(program, mode, graph.name)
            for mode, module in program.modules.items()
            for graph in (module.main, *module.heads)
        }
        if self._options.unfuse:
            launches = unfuse(launches, self._options.unfuse)
        threads = self._options.threads or settings.count("CACHEIR_THREADS") or usable_cores()
        self._overlap_rows = overlap_rows(threads)
        own = read_options(self._options.extra)
        self._runner = import_module(EXTENSION).Runner(
            max_rows=program.max_rows,
            max_tokens=max(program.max_tokens, program.max_rows),
            max_seq=program.max_seq,
            vocabulary=program.spec.vocab_size,
            threads=threads,
            pin=own.pin,
            precise=is_precise(launches, kernels),
            screen=own.screen,
        )
        forms = {name: resolve(spec.entry) for name, spec in kernels.items()}
        self._packing = PackedWeights(self._runner, weights)
        try:
            self._assembled = assemble(self._runner, program, launches, forms, self._packing)
        except BaseException:
            self._packing.close()
            raise
        self._packing.seal()
        self._host = HostCalls(
            self._runner, Interpreter(self._installation.ops.by_name()), weights, self._pools(program)
        )
        if self._assembled.host_calls:
            self._split = SplitStepper(self._runner, program, self._assembled, self._host)
        self._program = program

    def open_pools(self, pages: Sequence[int]) -> None:
        """One pool for each KV group. DeviceOutOfMemory where there is no memory for them or for the packed weights,
        BackendError for a weight that cannot be packed.
        """
        program = self._packed()
        if len(pages) != len(program.groups):
            raise UsageError(
                f"open_pools takes a page count for each of {len(program.groups)} KV groups, not {len(pages)}"
            )
        try:
            for group, (kind, count) in enumerate(zip(program.groups, pages)):
                self._runner.open_pool(
                    group,
                    layers=kind.layers,
                    heads=kind.heads,
                    head_dim=kind.head_dim,
                    pages=count,
                    page_tokens=self._options.page_tokens,
                    dtype=self._options.kv_dtype or kind.dtype,
                )
            if not self._open:
                self._runner.finish()
                self._open = True
        except MemoryError as error:
            raise DeviceOutOfMemory(f"the KV pools of {list(pages)} pages do not fit into memory: {error}") from error
        except ValueError as error:
            raise BackendError(f"the native runner does not take the program: {error}") from error

    def capabilities(self) -> Capabilities:
        """What this executor takes."""
        program = self._loaded()
        return Capabilities(
            # What an op's meaning computes may depend on the number of rows.
            determinism="tolerance" if self._split else "bit",
            heads=WANTS,
            page_tokens=PAGE_TOKENS,
            kv_formats=KV_FORMATS,
            row_classes=tuple(next(iter(program.schedules.values())).row_classes),
            max_rows=program.max_rows,
            max_tokens=program.max_tokens,
            run_ahead=True,
            masks=True,
            notes=self._notes(),
            overlaps=self._split is None and self._overlap_rows < sys.maxsize,
        )

    def submit(self, step: Step) -> StepOutput | StepUnderWay:
        """Begin ``step``; the ticket is its output where it ran at once. RequestError for rows that cannot be run."""
        self._opened()
        if self._split is not None:
            return self._split.run(step)
        _check_slots(step.rows, self._slots)
        overlaps = len(step.rows) >= self._overlap_rows
        try:
            out = (self._runner.submit if overlaps else self._runner.step)(step.mode, step.rows)
        except ValueError as error:
            raise RequestError(f"the step cannot be run: {error}") from error
        return StepUnderWay(step.rows, out) if overlaps else self._output(step.rows, out)

    def wait(self, ticket: Any) -> StepOutput:
        """The output of ``submit``."""
        if isinstance(ticket, StepOutput):
            return ticket
        assert isinstance(ticket, StepUnderWay)
        try:
            return self._output(ticket.rows, ticket.flight.wait())
        except ValueError as error:
            raise BackendError(f"the step cannot be waited for: {error}") from error

    def _output(self, rows: Sequence[Row], out: Any) -> StepOutput:
        made = output_rows(rows, out)
        self._slots.update([row.slot for row in made if row.token is not None])
        return StepOutput(rows=made)

    def run_ahead(self, step: Step, n: int, sink: Sink) -> int:
        """Up to ``n`` decode steps of the step's rows, each fed the token before; stops early where a row fails."""
        self._opened()
        for row in step.rows:
            if row.want != "token" or row.mask is not None:
                raise UsageError(f"slot {row.slot} cannot run ahead: what it wants ({row.want}, a mask) needs the host")
        if self._split is not None:
            return self._split.run_ahead(step, n, sink)
        _check_slots(step.rows, self._slots)
        rows, done = step.rows, 0
        while done < n:
            try:
                tokens = self._runner.run_ahead(rows, n - done, max_ms=AHEAD_MS)
            except ValueError as error:
                raise UsageError(f"the rows cannot run ahead: {error}") from error
            for given in tokens.tolist():
                sink(token_rows(rows, given))
            done += len(tokens)
            self._slots.update([row.slot for row in rows])
            if tokens[-1].min() < 0:
                break
            rows = tuple(
                replace(row, tokens=(), position=row.position + len(tokens), draw=row.draw + len(tokens), sampling=None)
                for row in rows
            )
        return done

    def copy_pages(self, group: int, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole pages, (source, target) each."""
        self._runner.copy_pages(group, list(pairs))

    def read_pages(self, group: int, pages: Sequence[int]) -> NDArray[np.float32]:
        """f32 [pages, layers, 2, heads, page_tokens, head_dim]."""
        data: NDArray[np.float32] = self._runner.read_pages(group, list(pages))
        return data

    def write_pages(self, group: int, pages: Sequence[int], data: NDArray[np.float32]) -> None:
        """``data`` as ``read_pages`` gives it."""
        self._runner.write_pages(group, list(pages), data)

    def measure(self, step: Step) -> Sequence[CallTiming]:
        """Run ``step`` once and time each instruction; those of one node of a layer graph are added up."""
        self._opened()
        if self._split is not None:
            return self._split.measure(step)
        assert self._assembled is not None
        _, timings = self._runner.measure(step.mode, step.rows)
        totals: dict[tuple[str, str, str], tuple[int, float]] = {}
        for section, index, seconds in timings:
            instruction = self._assembled.instructions[section][index]
            key = (instruction.launches[0].graph, instruction.name, instruction.kernel)
            calls, before = totals.get(key, (0, 0.0))
            totals[key] = (calls + 1, before + seconds)
        return [
            CallTiming(graph=graph, node=node, kernel=kernel, calls=calls, seconds=seconds)
            for (graph, node, kernel), (calls, seconds) in totals.items()
        ]

    def memory(self) -> MemoryUse:
        """Owned bytes now."""
        self._packed()
        return MemoryUse(**self._runner.memory())

    def counters(self) -> Mapping[str, int]:
        """How often an op ran by its meaning, and what screened heads did (docs/native.md): ``screened_steps`` greedy
        calls of a head, ``whole_head_steps`` where the screen left too many rows, ``screened_panels`` of 16 rows that
        were left, ``screens_given_up``, ``screen_saved_bytes`` (of weights). Nothing is compiled or captured after
        ``load``.
        """
        self._loaded()
        assert self._host is not None
        screens = self._runner.screening()
        return {
            "compiles": 0,
            "captures": 0,
            "graph_misses": 0,
            "fallbacks": self._host.calls,
            "screened_steps": sum(screen["steps"] for screen in screens),
            "whole_head_steps": sum(screen["too_many"] for screen in screens),
            "screened_panels": sum(screen["panels"] for screen in screens),
            "screens_given_up": sum(screen["given_up"] for screen in screens),
            "screen_saved_bytes": sum(screen["saved_bytes"] for screen in screens),
        }

    def close(self) -> None:
        """Let go of weights, pages and threads."""
        if self._packing is not None:
            self._packing.close()
        self._program, self._runner, self._split, self._packing, self._open = None, None, None, None, False
        self._assembled, self._host = None, None
        self._slots.clear()

    def _notes(self) -> tuple[str, ...]:
        """What runs by its meaning here, by steps of NumPy between the runner's."""
        if self._assembled is None or not self._assembled.host_calls:
            return ()
        names = self._assembled.host_ops
        shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
        return (f"{shown} run by their meaning on the host, which is slow; cacheir explain says why",)

    def _pools(self, program: Program) -> list[RunnerPool]:
        return [
            RunnerPool(self._runner, group, layers, self._options.page_tokens)
            for group, layers in enumerate(program.group_layers)
        ]

    def _kernels_of(self, program: Program) -> dict[str, KernelSpec]:
        names = {name for schedule in program.schedules.values() for name in schedule.kernels}
        return {name: self._installation.kernels[name] for name in names}

    def _loaded(self) -> Program:
        if self._program is None:
            raise BackendError("the executor has no program yet", hint="call load first")
        return self._program

    def _packed(self) -> Program:
        """The program, once its weights are in the runner."""
        program = self._loaded()
        if self._packing is not None:
            try:
                self._packing.finish()
            except MemoryError as error:
                raise DeviceOutOfMemory(f"the packed weights do not fit into memory: {error}") from error
            except ValueError as error:
                raise BackendError(f"the native runner does not take a weight: {error}") from error
        return program

    def _opened(self) -> None:
        if not self._open:
            raise BackendError("the executor has no KV pages yet", hint="call load, then open_pools first")


def overlap_rows(threads: int) -> int:
    """From how many rows on a step has a thread of its own while the host plans and tells.

    Where every core computes, the host's work would take one from the step: that costs 0.05 to 2 ms a step. With a core
    to spare 8 and 32 rows save 0.4 to 1.3 ms (benchmarks/native_overlap.json).
    """
    return OVERLAP_ROWS if threads < usable_cores() else sys.maxsize


def _check_slots(rows: Sequence[Row], known: set[int]) -> None:
    for row in rows:
        if not row.tokens and row.slot not in known:
            raise RequestError(f"slot {row.slot} is asked to go on, but has no last token")

"""The CUDA executor: weights and pages on the device, a step by launches or by replay of a recorded graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cacheir.errors import BackendError, BackendUnavailable, DeviceOutOfMemory, UsageError
from cacheir.plugins import KernelSpec
from cacheir.plugins.installation import Installation, default
from cacheir.plugins.ref import resolve
from cacheir.runtime.executor import (
    CallTiming,
    Capabilities,
    ExecutorOptions,
    MemoryUse,
    RowOutput,
    Sink,
    Step,
    StepOutput,
)
from cacheir.runtime.slots import Slots
from cacheir.runtime.step_inputs import Staged, check_limits
from cacheir.schedule.capture_plan import captures_of
from cacheir.schedule.flatten import Launch, flatten
from cacheir.schedule.program import Program
from cacheir.schedule.unfuse import unfuse
from cacheir.weights.store import WeightStore
from cacheir_cuda.adapters.pages import check_pages
from cacheir_cuda.binding import Surroundings
from cacheir_cuda.block_seat import BlockSeat
from cacheir_cuda.by_meaning import ByMeaning
from cacheir_cuda.capabilities import capabilities_of
from cacheir_cuda.chain.behind_prompt import rows_behind
from cacheir_cuda.chain.cubins import keep_carried
from cacheir_cuda.chain.seat import ChainSeat
from cacheir_cuda.decode_graphs import DecodeGraphs, ReplayRules, replay_rules, step_by_step
from cacheir_cuda.jit_watch import JitWatch
from cacheir_cuda.kept_steps import KeptSteps
from cacheir_cuda.kernels.triton_refusals import check_compiled
from cacheir_cuda.options import read_options
from cacheir_cuda.pool import DTYPES, Pool
from cacheir_cuda.prefill_graphs import PrefillGraphs, why_no_prefill_graph
from cacheir_cuda.probe import why_unavailable
from cacheir_cuda.residents import Residents
from cacheir_cuda.row_stops import RowStops
from cacheir_cuda.staging import stage_step
from cacheir_cuda.step_binder import StepBinder
from cacheir_cuda.timed_calls import Timings, call_launches
from cacheir_cuda.under_way import Begun, UnderWay
from cacheir_cuda.warm_up import warm_decodes, warm_prefills

OUT_OF_MEMORY = "the device has no memory left for this row's step: give it a shorter prompt, or run fewer requests"


class CudaExecutor:
    """``cacheir.runtime.executor.Executor`` on torch tensors. One thread calls it.

    Raises UsageError for options that it does not have, BackendUnavailable where the device is not there.
    """

    def __init__(self, options: ExecutorOptions, installation: Installation | None = None) -> None:
        if options.kv_dtype and options.kv_dtype not in DTYPES:
            raise UsageError(f"the CUDA backend keeps KV as {', '.join(DTYPES)}, not {options.kv_dtype!r}")
        self._options = options
        self._own = read_options(options.extra)
        if self._own.device != "cpu" and not torch.cuda.is_available():
            reason = why_unavailable() or "PyTorch sees no GPU (it may be built for the CPU alone)"
            raise BackendUnavailable(
                f"backend 'cuda' cannot run: {reason}", hint="use --backend cpu, which runs on NumPy"
            )
        self._device = torch.device(self._own.device)
        self._installation = installation or options.installation or default()
        self._program: Program | None = None
        self._replays: ReplayRules | None = None
        self._pools: list[Pool] = []
        self._slots = Slots()
        self._watch = JitWatch(self._own.jit_after_warmup)
        self._misses: Counter[str] = Counter()
        self._stops = RowStops()
        self._chain = ChainSeat()
        self._refused_cubins = keep_carried(options.carried)

    def load(self, program: Program, weights: WeightStore) -> None:
        """Flatten the program and make its weights resident.

        Raises BackendError where it needs what is not installed, UsageError where ``unfuse`` names no node,
        DeviceOutOfMemory where the weights do not fit.
        """
        names = {name for schedule in program.schedules.values() for name in schedule.kernels}
        self._kernels: dict[str, KernelSpec] = {name: self._installation.kernels[name] for name in names}
        check_compiled(self._kernels, self._device.type)
        self._entries = {name: resolve(spec.entry) for name, spec in self._kernels.items()}
        self._watch.start()
        self._residents = Residents(weights, self._device, getattr(torch, self._own.cuda_dtype))
        self._meaning = ByMeaning(self._installation)
        launches = {
            (mode, graph.name): flatten(program, mode, graph.name)
            for mode, module in program.modules.items()
            for graph in (module.main, *module.heads)
        }
        if self._options.unfuse:
            launches = unfuse(launches, self._options.unfuse)
        self._main = {mode: launches.pop((mode, module.main.name)) for mode, module in program.modules.items()}
        plans = {plan.mode: plan for plan in captures_of(program).modes}
        self._captures = plans.get("decode")
        self._blocks = BlockSeat(self._main, self._kernels, self._device, self._own, self._options, self._chain.rows)
        try:
            arena_bytes = max(plan.arena_bytes for plan in program.plans.values())
            self._arena = torch.zeros(arena_bytes, dtype=torch.uint8, device=self._device)
            self._steps = self._binder(program, launches)
            self._residents.make_all(self._steps.wanted_weights(self._kernels))
            self._chain.load(program, self._residents, self._device, self._own, self._options.batch_invariant)
        except torch.OutOfMemoryError as error:
            raise DeviceOutOfMemory(f"the weights do not fit into the device's memory: {error}") from error
        weights.release()
        self._heads = self._steps.heads
        self._replays = None
        record = self._own.use_cuda_graph and self._device.type == "cuda"
        self._graphs = DecodeGraphs(self._steps.decode_step, self._device, record)
        self._prefills = PrefillGraphs(self._steps.prefill_step, self._device, record)
        self._program = program

    def open_pools(self, pages: Sequence[int]) -> None:
        """One pool for each KV group. DeviceOutOfMemory where the device does not have the bytes."""
        program = self._loaded()
        if len(pages) != len(program.groups):
            raise UsageError(
                f"open_pools takes a page count for each of {len(program.groups)} KV groups, not {len(pages)}"
            )
        self._steps.open(())
        self._graphs.clear()
        self._prefills.clear()
        self._chain.close_pages()
        self._pools = []
        try:
            self._pools = [
                Pool(kind, layers, count, self._options.page_tokens, self._device, self._options.kv_dtype)
                for kind, layers, count in zip(program.groups, program.group_layers, pages)
            ]
        except (torch.OutOfMemoryError, RuntimeError) as error:
            if not isinstance(error, torch.OutOfMemoryError) and self._device.type == "cuda":
                raise
            raise DeviceOutOfMemory(f"the KV pools of {list(pages)} pages do not fit into memory: {error}") from error
        check_pages(self._kernels, self._pools)
        self._steps.open(self._pools)
        self._chain.open(self._pools, program.max_seq)
        self._watch.warm = False
        if self._own.jit_after_warmup == "error":
            self._warm_up(program, self._options.page_tokens)

    def capabilities(self) -> Capabilities:
        """What this executor takes."""
        overlaps = self._device.type == "cuda"
        return capabilities_of(self._loaded(), self._installation.ops.by_name(), self._options, overlaps=overlaps)

    def submit(self, step: Step) -> StepOutput | UnderWay:
        """Begin ``step``; the ticket is its output where nothing of it is left to wait for."""
        made = self._begun(step)
        return made if isinstance(made, UnderWay) else StepOutput(rows=made)

    def wait(self, ticket: Any) -> StepOutput:
        """The output of ``submit``."""
        if isinstance(ticket, StepOutput):
            return ticket
        assert isinstance(ticket, UnderWay)
        return StepOutput(rows=ticket.finish())

    def run_ahead(self, step: Step, n: int, sink: Sink) -> int:
        """Up to ``n`` decode steps of the step's rows, each fed the token before; fewer where a row fails or all end.

        What is behind a row's end is ``stopped`` (``runtime.row_ends``).
        """
        for row in step.rows:
            if row.want != "token":
                raise UsageError(f"slot {row.slot} cannot run ahead: what it wants ({row.want}) needs the host")
        if self._why_no_graph(step) is None:
            last = max(row.position for row in step.rows) + n
            held = [(row, len(pages) * self._options.page_tokens) for row in step.rows for pages in row.pages]
            if last <= self._loaded().max_seq and all(row.position + n <= tokens for row, tokens in held):
                with torch.no_grad():
                    return self._replay(step, n, sink)
        return step_by_step(self._guarded, step, n, self._slots, sink)

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
        """Run ``step`` once without a graph and time each launch, the device waited for around each."""
        totals: Timings = {}
        self._chain.forget_begun()
        with torch.no_grad():
            self._launch(step, totals)
        return [
            CallTiming(graph=graph, node=node, kernel=kernel, calls=calls, seconds=seconds)
            for (graph, node, kernel), (calls, seconds) in totals.items()
        ]

    def memory(self) -> MemoryUse:
        """Owned bytes now; ``workspace`` is what torch holds of the device beside them."""
        self._loaded()
        weights, kv, arena = self._residents.nbytes, sum(pool.nbytes for pool in self._pools), self._arena.nbytes
        held = torch.cuda.memory_allocated(self._device) if self._device.type == "cuda" else 0
        return MemoryUse(weights=weights, kv=kv, arena=arena, workspace=max(0, held - weights - kv - arena))

    def counters(self) -> Mapping[str, int]:
        """How often a graph was recorded, a decode step ran without one (also by reason), an op ran by meaning.

        And how often a bound step was found or had to make room, and which Triton kernels were compiled.
        """
        kept: list[DecodeGraphs | PrefillGraphs] = []
        caches: list[KeptSteps[Any, Any]] = []
        if self._program is not None:
            kept = [self._graphs, self._prefills]
            caches = [self._steps.kept, self._graphs.kept, self._prefills.kept]
        return {
            "captures": sum(each.captures for each in kept) + self._chain.captures,
            "graph_misses": sum(self._misses.values()),
            "fallbacks": self._meaning.count if self._program is not None else 0,
            "staging_hits": sum(each.hits for each in caches),
            "staging_dropped": sum(each.dropped for each in caches),
            **self._watch.counters(),
            **self._chain.counters(),
            **(self._blocks.counters() if self._program is not None else {}),
            **self._stops.counters(),
            **{f"carried_refused: {reason}": 1 for reason in self._refused_cubins},
            **{f"graph_miss: {reason}": count for reason, count in sorted(self._misses.items())},
        }

    def close(self) -> None:
        """Let go of weights, pages, graphs and bindings."""
        self._watch.stop()
        self._pools = []
        if self._program is not None:
            self._graphs.clear()
            self._prefills.clear()
            self._blocks.close()
            self._chain.close()
            self._steps.clear()
            self._residents.clear()
            self._arena = torch.empty(0, dtype=torch.uint8)
            self._program = None

    def _binder(self, program: Program, heads: Mapping[tuple[str, str], Sequence[Launch]]) -> StepBinder:
        surroundings = partial(
            Surroundings,
            arena=self._arena,
            residents=self._residents,
            kernels=self._kernels,
            entries=self._entries,
            by_meaning=self._meaning.run,
        )
        page_tokens = self._options.page_tokens
        return StepBinder(program, self._main, heads, self._blocks, surroundings, page_tokens, self._device)

    def _warm_up(self, program: Program, page_tokens: int) -> None:
        if self._own.use_cuda_graph:
            main = self._main["decode"]
            warm_decodes(program, page_tokens, self._graphs, self._captures, self._heads, main, self._kernels)
            if self._blocks.takes("prefill"):
                warm_prefills(program, page_tokens, self._prefills)
        self._watch.warm = True

    def _guarded(self, step: Step) -> tuple[RowOutput, ...]:
        """The step's rows."""
        made = self._begun(step)
        return made.finish() if isinstance(made, UnderWay) else made

    def _begun(self, step: Step) -> Begun:
        """The step, begun; where the device runs out of memory they run one by one, and one that cannot is an error."""
        try:
            with torch.no_grad():
                return self._run(step)
        except torch.OutOfMemoryError:
            self._steps.kept.clear()
            if self._device.type == "cuda":
                torch.cuda.empty_cache()
        if len(step.rows) == 1:
            return (RowOutput(slot=step.rows[0].slot, error=OUT_OF_MEMORY),)
        return tuple(made for row in step.rows for made in self._guarded(Step(mode=step.mode, rows=(row,))))

    def _run(self, step: Step) -> Begun:
        self._chain.forget_begun()
        if step.mode != "decode":
            return self._behind(step, self._prefill(step)) if step.then else self._prefill(step)
        reason = self._why_no_graph(step)
        if reason is None and self._chain.takes(step.rows, self._slots):
            return self._chain.start(step.rows, self._staged(step), self._slots)
        if reason is None:
            return self._graphs.start(step.rows, self._staged(step), self._graph_rows(step), self._slots)
        self._misses[reason] += 1
        return self._launch(step, None)

    def _launch(self, step: Step, timings: Timings | None) -> tuple[RowOutput, ...]:
        """The step, launch by launch."""
        staged = self._staged(step)
        bound = self._steps.bound(step.mode, staged)
        bound.inputs.fill(staged.inputs)
        starts = staged.inputs.get("row_starts", np.empty(0, np.int32)).tolist()
        for group, pool in enumerate(self._pools):
            pool.begin_step(starts, staged.inputs[f"lengths.{group}" if group else "lengths"].tolist())
        call = partial(call_launches, timings=timings, device=self._device)
        call(bound.launches)
        made = self._heads.run(step, staged, bound.rows, self._slots, call)
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()  # the next step fills the pinned inputs anew
        return made

    def _prefill(self, step: Step) -> Begun:
        """A step of prompts: a replay where main runs as blocks, else launch by launch."""
        if not self._own.use_cuda_graph or not self._blocks.takes("prefill"):
            return self._launch(step, None)
        program = self._loaded()
        if self._chain.rows.takes_prompt(step.rows, self._slots) and self._blocks.by_rows("prefill"):
            tokens = [self._slots.tokens(row) for row in step.rows]
            check_limits(step, tokens, program)
            return self._chain.rows.start_prompt(step.rows, tokens, self._slots)
        staged = self._staged(step)
        reason = why_no_prefill_graph(staged, program)
        if reason is not None:
            self._misses[reason] += 1
            return self._launch(step, None)
        call = partial(call_launches, timings=None, device=self._device)
        heads = partial(self._heads.run, step, staged, slots=self._slots, call=call)
        return self._prefills.run(step, staged, program, self._slots, heads)

    def _behind(self, step: Step, made: Begun) -> Begun:
        """A step of prompts, and behind it on the device's queue decode steps, where the chain takes them."""
        if not isinstance(made, UnderWay) or not made.tokens_at or any(row.want != "token" for row in step.rows):
            return made
        rows, size, most = rows_behind(step.rows), self._options.page_tokens, self._loaded().max_seq
        room = min(min(most, *(size * len(pages) for pages in row.pages)) - row.position for row in rows)
        if step.then > room or not self._chain.takes(rows, self._slots):
            return made
        staged, stops = self._staged(Step(mode="decode", rows=rows)), self._stops.words(rows, self._slots)
        return self._chain.begin_behind(rows, staged, stops, step.then, made)

    def _replay(self, step: Step, n: int, sink: Sink) -> int:
        if (done := self._chain.go_on(step.rows, n, self._slots, sink)) is not None:
            return done
        self._chain.forget_begun()
        staged, stops = self._staged(step), self._stops.words(step.rows, self._slots)
        if self._chain.takes(step.rows, self._slots):
            return self._chain.run(step.rows, staged, stops, n, self._slots, sink)
        return self._graphs.run(step.rows, staged, stops, self._graph_rows(step), n, self._slots, sink)

    def _graph_rows(self, step: Step) -> int:
        capture = self._captures.capture_for(len(step.rows)) if self._captures else None
        return capture.rows if capture else len(step.rows)

    def _why_no_graph(self, step: Step) -> str | None:
        """Why a decode step cannot be a replay, in words."""
        if not self._own.use_cuda_graph:
            return "graphs are switched off"
        if self._options.unfuse:
            return "a node runs by its meaning (unfuse)"
        if self._replays is None:
            sampled = self._heads.launches("decode", "head.sampled")
            self._replays = replay_rules(self._loaded(), self._main["decode"], sampled, self._kernels)
        return self._replays.why_not(step, self._slots)

    def _staged(self, step: Step) -> Staged:
        program = self._loaded()
        if not self._pools and program.groups:
            raise BackendError("the executor has no KV pages yet", hint="call open_pools first")
        return stage_step(step, self._slots, program, self._options.page_tokens)

    def _loaded(self) -> Program:
        if self._program is None:
            raise BackendError("the executor has no program yet", hint="call load first")
        return self._program

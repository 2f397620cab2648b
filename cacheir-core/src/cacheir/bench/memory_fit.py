"""What a model takes on a backend before anything is loaded, and which settings would make it fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from cacheir.artifact import layout
from cacheir.artifact.card import CompileOptions
from cacheir.artifact.program_key import header_facts
from cacheir.artifact.read import read_artifact
from cacheir.compile_work import DEFAULT_MAX_SEQ, CompileWork
from cacheir.errors import BackendError, UsageError
from cacheir.models.find_model import find_path
from cacheir.models.imported import ImportedModel
from cacheir.plugins.installation import Installation
from cacheir.plugins.inventory import probe
from cacheir.plugins.ref import resolve
from cacheir.plugins.specs import BackendSpec
from cacheir.runtime.executor import ExecutorOptions, MemoryForecast, MemoryUse
from cacheir.runtime.host_memory import host_bytes
from cacheir.runtime.open_model import group_pages
from cacheir.runtime.pages import pages_for
from cacheir.runtime.steps import StepLimits
from cacheir.schedule.program import Program

# Coarse steps in which a setting is lowered until the model fits.
_CONTEXT_STEP, _LEAST_TOKENS = 256, 32
_SMALLER_KV = ("f16", "bf16", "int8", "fp8")


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What is asked for: ``concurrency`` sequences of ``context`` positions, steps of ``max_tokens`` tokens."""

    context: int
    concurrency: int
    max_tokens: int = 512
    kv_dtype: str = ""
    quant: str = ""
    page_tokens: int = 16

    def flags(self, other: Demand) -> str:
        """The options that make ``other`` of this."""
        words = []
        for name in ("context", "concurrency", "max_tokens", "kv_dtype", "quant"):
            value = getattr(other, name)
            if value != getattr(self, name):
                words.append(f"--{name.replace('_', '-')} {value}")
        return " ".join(words)


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """The forecast for one demand, in bytes. ``modes`` are what each mode alone would own; ``host`` is what the process
    takes beside the executor, ``resident`` the peak beyond the imports, ``imports`` what those take.
    """

    demand: Demand
    forecast: MemoryForecast
    modes: Mapping[str, MemoryUse] = field(default_factory=dict)
    host: int = 0
    imports: int = 0

    @property
    def resident(self) -> int:
        """The most resident bytes beyond those of the imports."""
        return self.forecast.peak + self.host

    @property
    def total(self) -> int:
        """The most resident bytes of the process."""
        return self.imports + self.resident


@dataclass(frozen=True, kw_only=True)
class MemoryPlanner:
    """Plans for one model on one backend. ``imports`` are the resident bytes of a process that has opened nothing."""

    model: str
    backend: BackendSpec
    installation: Installation
    options: CompileOptions
    threads: int
    imports: int = 0

    def plan(self, demand: Demand) -> MemoryPlan:
        """The plan for ``demand``. UsageError for what the model or the backend cannot have, BackendError for a backend
        that foretells nothing.
        """
        if self.backend.memory is None:
            raise BackendError(
                f"backend {self.backend.name!r} does not say what it will need", hint="plan for another --backend"
            )
        program = self._program(demand)
        if program.spec is None:
            raise UsageError("a plain graph has no sequences to plan for", hint="cacheir inspect MODEL --memory")
        options = ExecutorOptions(
            threads=self.threads,
            kv_dtype=demand.kv_dtype,
            page_tokens=demand.page_tokens,
            installation=self.installation,
        )
        if probe(self.backend) is None:  # else the plan is for another machine
            resolve(self.backend.executor)(options).close()  # a UsageError of its own for a KV format that it has not
        positions = demand.concurrency * pages_for(demand.context, demand.page_tokens) * demand.page_tokens
        limits = StepLimits(max_rows=demand.concurrency, max_tokens=program.max_tokens, chunk_tokens=program.max_tokens)
        pages = group_pages(program, positions, demand.page_tokens, limits)
        forecast = resolve(self.backend.memory)
        return MemoryPlan(
            demand=demand,
            forecast=forecast(program, options, pages),
            modes={mode: forecast(_only(program, mode), options, pages).use for mode in program.modules},
            host=host_bytes(program),
            imports=self.imports,
        )

    def longest_context(self) -> int:
        """The positions that a compile would allow by itself."""
        spec = self._opened.spec
        return min(spec.max_positions, DEFAULT_MAX_SEQ) if spec else DEFAULT_MAX_SEQ

    def ways_to_fit(self, demand: Demand, memory: int) -> list[MemoryPlan]:
        """Plans within ``memory`` bytes that differ from ``demand`` in one setting, each lowered as little as needed;
        where there is none, one that differs in several. [] where nothing helps.
        """
        single = [plan for lowered in self._knobs(demand) if (plan := self._first(lowered, memory))]
        if single:
            return single
        smallest = replace(demand, concurrency=1, max_tokens=min(demand.max_tokens, _LEAST_TOKENS))
        for start in (smallest, *(replace(smallest, kv_dtype=name) for name in _SMALLER_KV)):
            if plan := self._first(_contexts(start), memory):
                return [plan]
        return []

    def _knobs(self, demand: Demand) -> Iterator[Iterator[Demand]]:
        yield _contexts(demand)
        yield (replace(demand, concurrency=count) for count in range(demand.concurrency - 1, 0, -1))
        yield (replace(demand, max_tokens=tokens) for tokens in _halves(demand.max_tokens, _LEAST_TOKENS))
        for name in _SMALLER_KV:
            yield iter((replace(demand, kv_dtype=name),) if name != demand.kv_dtype else ())

    def _first(self, demands: Iterator[Demand], memory: int) -> MemoryPlan | None:
        """The plan of the first of ``demands`` that fits; what grows with them shrinks along, so halves are tried."""
        candidates = list(demands)
        low, high = 0, len(candidates)
        found = None
        while low < high:
            middle = (low + high) // 2
            try:
                plan = self.plan(candidates[middle])
            except UsageError:
                return None  # a KV format that the backend does not have, say
            if plan.total <= memory:
                found, high = plan, middle
            else:
                low = middle + 1
        return found

    def _program(self, demand: Demand) -> Program:
        path = find_path(self.model, self.installation)
        if layout.is_artifact(path):
            return self._fixed(path, demand)
        options = replace(
            self.options,
            target=self.backend.name,
            max_seq=demand.context,
            max_rows=demand.concurrency,
            max_tokens=demand.max_tokens,
            quant=demand.quant,
        )
        work = CompileWork.begin(options, self.installation, None)
        model = self._opened
        return work.compile(model, header_facts(model)).program

    def _fixed(self, path: Path, demand: Demand) -> Program:
        """An artifact's program: its limits are what they were compiled for."""
        if demand.quant:
            raise UsageError(
                f"{path} is an artifact, whose weights are what they are",
                hint="plan for the model that it was made from",
            )
        program = read_artifact(path, self.installation).program
        limits = (
            ("context", program.max_seq, demand.context),
            ("concurrency", program.max_rows, demand.concurrency),
            ("max-tokens", program.max_tokens, demand.max_tokens),
        )
        for name, limit, wanted in limits:
            if wanted > limit:
                raise UsageError(
                    f"{path} was compiled for {name} up to {limit}, not {wanted}",
                    hint="plan for the model that it was made from",
                )
        return program

    @cached_property
    def _opened(self) -> ImportedModel:
        work = CompileWork.begin(replace(self.options, target=self.backend.name), self.installation, None)
        return work.open(find_path(self.model, self.installation))


def _contexts(demand: Demand) -> Iterator[Demand]:
    """Shorter and shorter contexts."""
    first = (demand.context - 1) // _CONTEXT_STEP * _CONTEXT_STEP
    return (replace(demand, context=context) for context in range(first, 0, -_CONTEXT_STEP))


def _halves(value: int, least: int) -> Iterator[int]:
    while value > least:
        value = max(least, value // 2)
        yield value


def _only(program: Program, mode: str) -> Program:
    """``program`` with one mode: what that one alone would need."""
    return replace(
        program,
        modules={mode: program.modules[mode]},
        schedules={mode: program.schedules[mode]},
        plans={mode: program.plans[mode]},
    )

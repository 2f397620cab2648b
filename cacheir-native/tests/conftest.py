"""Tiny decoders compiled for the native backend without files: program, weights, executor, and the interpreter."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cacheir.artifact.card import CompileOptions
from cacheir.artifact.compatibility import buffer_uses, offered_kernels, providers, selection_rules
from cacheir.ir.graph import Module
from cacheir.models.attention_reach import with_reach
from cacheir.pipeline.program import PipelineOptions, run_pipeline
from cacheir.plugins.installation import Installation
from cacheir.reference.interpreter import interpret
from cacheir.runtime.executor import ExecutorOptions, Row, RowOutput, Step
from cacheir.schedule.build_schedule import build_schedule
from cacheir.schedule.plan_memory import plan_memory
from cacheir.schedule.program import Program
from cacheir.schedule.program_weights import program_weights
from cacheir.schedule.select_kernels import select_kernels
from cacheir.testing import plugin_host
from cacheir.testing.random_runs import RandomWeights
from cacheir.testing.tiny_decoders import LIMITS, tiny_decoders
from cacheir_native.probe import why_unavailable

F32 = NDArray[np.float32]
PAGE_TOKENS, PAGES = 16, 12


class Weights:
    """What an executor asks of a weight store, over random tensors; ``changed`` replaces some by key."""

    def __init__(self, module: Module, changed: Mapping[str, Any]) -> None:
        self._random = RandomWeights(module)
        self._changed = changed

    def get(self, recipe: str) -> Any:
        return self.stored(recipe.removeprefix('stored "').removesuffix('"'))

    def stored(self, key: str) -> Any:
        return self._changed.get(key, self._random(key))

    def release(self) -> None:
        pass


class Tiny:
    """One tiny decoder; ``run`` is a step whose slots have fixed pages of their own."""

    def __init__(self, name: str, installation: Installation, options: CompileOptions, changed: Mapping[str, Any]):
        self.installation = installation
        self.ops = installation.ops.by_name()
        decoder = tiny_decoders()[name]
        decoder = replace(decoder, spec=with_reach(decoder.spec, options.kv_window, options.kv_sinks))
        self.spec = decoder.spec
        self.logical = decoder.logical(self.ops)
        self.weights = Weights(self.logical, changed)
        self.program = _compile(self.logical, decoder.spec, installation, options)

    def open(self, **options: Any) -> Any:
        from cacheir_native.executor import NativeExecutor

        executor = NativeExecutor(ExecutorOptions(**{"threads": 1, **options}), self.installation)
        executor.load(self.program, self.weights)  # type: ignore[arg-type]
        executor.open_pools([PAGES] * len(self.program.groups))
        return executor

    def row(self, slot: int, tokens: Sequence[int], position: int = 0, **more: Any) -> Row:
        pages = tuple(range(slot * 2, slot * 2 + 2))
        return Row(
            slot=slot, tokens=tuple(tokens), position=position, pages=(pages,) * len(self.program.groups), **more
        )

    def logits(self, ids: Sequence[int]) -> F32:
        """f32 [len(ids), V] by the meaning of the logical graph."""
        inputs = {
            "tokens": np.array(ids, np.int32),
            "positions": np.arange(len(ids), dtype=np.int32),
            "row_starts": np.array([0, len(ids)], np.int32),
        }
        (rows,) = interpret(self.logical, self.ops, self.weights.stored, inputs)
        (made,) = interpret(self.logical, self.ops, self.weights.stored, {"rows": rows}, graph="head.logits")
        result: F32 = made
        return result


def _compile(logical: Module, spec: Any, installation: Installation, options: CompileOptions) -> Program:
    ops = installation.ops.by_name()
    result = run_pipeline(
        logical,
        installation.passes.contributions,
        ops=ops,
        spec=spec,
        options=PipelineOptions(target="native", limits=LIMITS, skips=options.skip_passes),
    )
    offered = offered_kernels(installation)
    rules = selection_rules(options, installation.backends["native"])
    schedules = {
        mode: build_schedule(
            module,
            select_kernels(module, ops, offered, rules, installation.select_kernel),
            target="native",
            row_classes=rules.row_classes,
            providers=providers(offered),
        )
        for mode, module in result.modules.items()
    }
    use_of = buffer_uses(installation)
    return Program(
        modules=result.modules,
        schedules=schedules,
        plans={mode: plan_memory(module, schedules[mode], use_of) for mode, module in result.modules.items()},
        weights=program_weights(result.modules.values()),
        sources={},
        groups=result.groups.types,
        group_layers=result.groups.layers,
        target="native",
        backend="native",
        max_seq=LIMITS.max_seq,
        max_rows=LIMITS.max_rows,
        max_tokens=LIMITS.max_tokens,
        spec=spec,
    )


@pytest.fixture(scope="session")
def native_host() -> Installation:
    """Core and this package."""
    reason = why_unavailable()
    if reason is not None:
        pytest.skip(reason)
    return plugin_host("cacheir_native.plugin")


@pytest.fixture(scope="session")
def make_tiny(native_host: Installation) -> Callable[..., Tiny]:
    """``make_tiny(name, precise=True, changed={key: array}, **compile options)``."""

    def make(name: str, *, precise: bool = True, changed: Mapping[str, Any] | None = None, **options: Any) -> Tiny:
        return Tiny(name, native_host, CompileOptions(target="native", precise=precise, **options), changed or {})

    return make


@pytest.fixture
def step() -> Iterator[Callable[..., tuple[RowOutput, ...]]]:
    """``step(executor, mode, *rows)`` runs one step."""

    def run(executor: Any, mode: str, *rows: Row) -> tuple[RowOutput, ...]:
        return tuple(executor.wait(executor.submit(Step(mode=mode, rows=rows))).rows)

    yield run


@pytest.fixture
def turns_of_another() -> Callable[[Callable[[], object], int], int]:
    """``turns_of_another(call, times)``: in how many of ``times`` calls another thread of Python got a turn.

    Nobody is made to give the interpreter up meanwhile, so it gets turns only where the calls let it go.
    """

    def count(call: Callable[[], object], times: int) -> int:
        turns, stop = [0], threading.Event()

        def other() -> None:
            while not stop.is_set():
                turns[0] += 1
                time.sleep(0)

        thread = threading.Thread(target=other)
        interval = sys.getswitchinterval()
        sys.setswitchinterval(100.0)
        try:
            thread.start()
            seen = 0
            for _ in range(times):
                before = turns[0]
                call()
                seen += turns[0] > before
        finally:
            stop.set()
            sys.setswitchinterval(interval)
            thread.join()
        return seen

    return count

"""Tiny decoders compiled without a backend: every op runs by its meaning; pages of them have passes and plans."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from cacheir.exporters.page_data import PageInput
from cacheir.ops.table import core_ops
from cacheir.passes.table import core_passes
from cacheir.pipeline.program import PipelineOptions, run_pipeline
from cacheir.schedule.build_schedule import build_schedule
from cacheir.schedule.plan_memory import BufferUse, plan_memory
from cacheir.schedule.select_kernels import SelectionRules, select_kernels
from cacheir.testing.tiny_decoders import LIMITS, tiny_decoders

MakePage = Callable[..., PageInput]


@pytest.fixture(scope="session")
def tiny_page() -> MakePage:
    """``tiny_page("grouped")``: what the page of a tiny decoder is made of."""

    def make(name: str, title: str = "Tiny") -> PageInput:
        ops, decoder = core_ops(), tiny_decoders()[name]
        passes: list[Any] = [
            SimpleNamespace(spec=spec, plugin=SimpleNamespace(name="core")) for spec in core_passes().values()
        ]
        result = run_pipeline(
            decoder.logical(ops), passes, ops=ops, spec=decoder.spec, options=PipelineOptions(limits=LIMITS)
        )
        schedules = {
            mode: build_schedule(
                module,
                select_kernels(module, ops, {}, SelectionRules(target="none", targets=())),
                target="none",
                row_classes=(0,),
                providers={},
            )
            for mode, module in result.modules.items()
        }
        plans = {
            mode: plan_memory(module, schedules[mode], lambda _: BufferUse(writes_out=True))
            for mode, module in result.modules.items()
        }
        return PageInput(
            title=title,
            facts=["for tests"],
            modules=result.modules,
            schedules=schedules,
            plans=plans,
            records=result.records,
            dialects={name: op.dialect for name, op in ops.items()},
        )

    return make

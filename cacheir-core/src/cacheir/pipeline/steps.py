"""The steps of the pipeline that are no passes: program steps change signatures, plan steps make the plan."""

from __future__ import annotations

from dataclasses import dataclass

from cacheir.plugins.specs import Stage


@dataclass(frozen=True)
class PipelineStep:
    """A step with a fixed place: program steps between the logical and the mode passes, plan steps after all passes."""

    name: str
    stage: Stage
    summary: str
    plugin: str = "core"


SPECIALIZE = PipelineStep(
    "prefill-decode-specialization",
    Stage.PROGRAM,
    "Make the prefill and decode modules: thread KV state and batch inputs, lower attention to pages, add heads.",
)
PLAN_STEPS = (
    PipelineStep("select-kernels", Stage.PLAN, "Choose one kernel for each op and row class, and keep the refusals."),
    PipelineStep("schedule", Stage.PLAN, "Turn ops and choices into launches over buffers."),
    PipelineStep("plan-memory", Stage.PLAN, "Give each buffer a place in its graph's frame."),
)
PIPELINE_STEPS = (SPECIALIZE, *PLAN_STEPS)

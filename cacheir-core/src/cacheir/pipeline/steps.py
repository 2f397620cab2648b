"""The steps of the pipeline that are no passes: program steps change signatures, plan steps make the plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cacheir.pipeline.names import fold_name
from cacheir.plugins.ref import Lazy
from cacheir.plugins.specs import Stage

if TYPE_CHECKING:
    from cacheir.ir.graph import Module


@dataclass(frozen=True)
class PipelineStep:
    """A step with a fixed place: program steps between the logical and the mode passes, plan steps after all passes.

    ``run`` is there for the steps that only run when asked for: ``(module, options) -> (module, notes)``, the same
    module where there is nothing to do. ``each_mode`` ones run on the module of each mode, others on the logical one.
    """

    name: str
    stage: Stage
    summary: str
    plugin: str = "core"
    run: Lazy[Callable[[Module, Any], tuple[Module, tuple[str, ...]]]] | None = None
    options: Lazy[type] | None = None
    each_mode: bool = False


SPECIALIZE = PipelineStep(
    "prefill-decode-specialization",
    Stage.PROGRAM,
    "Make the prefill and decode modules: thread KV state and batch inputs, lower attention to pages, add heads.",
)
SPLIT_LAYER = PipelineStep(
    "split-layer",
    Stage.PROGRAM,
    "Give one layer a graph of its own.",
    run="cacheir.pipeline.split_layer:split_layer",
    options="cacheir.pipeline.split_layer:SplitLayerOptions",
)
INLINE_LAYERS = PipelineStep(
    "inline-layers",
    Stage.PROGRAM,
    "Put the ops of all layers into main, so that it calls nothing.",
    run="cacheir.pipeline.inline_layers:inline_layers",
    each_mode=True,
)
# Program steps in the order in which they run; the ones with ``run`` only where --pass names them.
PROGRAM_STEPS = (SPLIT_LAYER, SPECIALIZE, INLINE_LAYERS)
OPTIONAL_STEPS = tuple(step for step in PROGRAM_STEPS if step.run is not None)
PLAN_STEPS = (
    PipelineStep("select-kernels", Stage.PLAN, "Choose one kernel for each op and row class, and keep the refusals."),
    PipelineStep("choose-layouts", Stage.PLAN, "Say in which layout each weight is held, for all modes together."),
    PipelineStep("schedule", Stage.PLAN, "Turn ops and choices into launches over buffers."),
    PipelineStep("plan-memory", Stage.PLAN, "Give each buffer a place in its graph's frame."),
    PipelineStep("plan-captures", Stage.PLAN, "Say which stretches of a step a device graph may hold, by row count."),
)
PIPELINE_STEPS = (SPECIALIZE, *PLAN_STEPS)


def wanted_steps(requests: Sequence[str]) -> tuple[tuple[PipelineStep, ...], tuple[str, ...]]:
    """The program steps that always run and those that ``requests`` name, in order, and the other requests."""
    names = {request: fold_name(request.partition("{")[0]) for request in requests}
    optional = {step.name for step in OPTIONAL_STEPS}
    steps = tuple(step for step in PROGRAM_STEPS if step.run is None or step.name in names.values())
    return steps, tuple(request for request in requests if names[request] not in optional)


def step_options(step: PipelineStep, requests: Sequence[str]) -> Any:
    """An instance of the step's options from the last request that names it; None where it has no options.

    Raises PassOptionError as for a pass.
    """
    from cacheir.pipeline.choose import options_of, split_request

    texts = [split_request(text)[1] for text in requests if fold_name(text.partition("{")[0]) == step.name]
    return options_of(f"step {step.name!r}", step.options, texts[-1] if texts else "")

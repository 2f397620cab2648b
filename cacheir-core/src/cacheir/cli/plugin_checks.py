"""Core's own lines of ``cacheir plugins doctor``: what must hold between the plugins that are installed."""

from __future__ import annotations

from cacheir.errors import PassError
from cacheir.pipeline.program import PipelineOptions, pipeline_order
from cacheir.plugins.installation import Installation, default
from cacheir.plugins.specs import CheckResult


def pass_order(installation: Installation | None = None) -> CheckResult:
    """Whether the default passes have one order and all that they require."""
    passes = (installation or default()).passes.contributions
    try:
        order = pipeline_order(passes, PipelineOptions())
    except PassError as error:
        return CheckResult(ok=False, detail=str(error), hint=error.hint or "")
    return CheckResult(ok=True, detail=f"{len(order)} passes and steps have one order; every 'requires' is met")


def kernel_ops(installation: Installation | None = None) -> CheckResult:
    """Whether every kernel is for an op that somebody defines."""
    found = installation or default()
    strays = [item for item in found.kernels.contributions if item.spec.op not in found.ops]
    if strays:
        listed = ", ".join(f"{item.spec.name} of {item.plugin.name} for {item.spec.op!r}" for item in strays)
        return CheckResult(
            ok=False,
            detail=f"kernels for ops that no plugin defines: {listed}",
            hint="install the plugin that defines the op, or correct KernelSpec.op",
        )
    return CheckResult(ok=True, detail=f"{len(found.kernels)} kernels, each for an op that is defined")

"""``cacheir passes``: the passes and steps in the order in which they would run, each with the reason of its place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from cacheir.cli.output import print_json, print_table
from cacheir.errors import UsageError
from cacheir.pipeline.choose import describe_options
from cacheir.pipeline.context import PassContext
from cacheir.pipeline.order import Place
from cacheir.pipeline.program import PipelineOptions, order_until, pipeline_order
from cacheir.pipeline.run import why_not
from cacheir.pipeline.steps import OPTIONAL_STEPS, PipelineStep
from cacheir.plugins.installation import Installation, default
from cacheir.plugins.specs import BackendSpec, PassSpec, Stage

app = typer.Typer(
    help="List passes and planning steps in the order in which they would run.",
    add_completion=False,
    rich_markup_mode=None,
)

_PASS = typer.Option([], "--pass", help="Add a pass, or set options: NAME{option=value,...}.")
_SKIP = typer.Option([], "--skip-pass", help="Leave a pass out.")


@app.command()
def passes(
    target: str = typer.Option("", help="Say which passes this target leaves out: cpu, cpu.numpy, cuda, ..."),
    requests: list[str] = _PASS,
    skips: list[str] = _SKIP,
    until: str = typer.Option("", help="List those up to this one, as compile --until would run them."),
    from_pass: str = typer.Option("", "--from", help="List those after this one, as compile --from would run them."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """List passes and planning steps in the order in which they would run, and why each stands where it does."""
    installation = default()
    options = PipelineOptions(target=target, requests=tuple(requests), skips=tuple(skips))
    order = pipeline_order(
        installation.passes.contributions, options, more_steps=tuple(_backend_steps(installation, target))
    )
    left_out = _left_out(installation, order)
    # Cut in this order: what comes after a pass that lies beyond --until is nothing.
    after = len(order_until(order, from_pass)) if from_pass else 0
    order = (order_until(order, until) if until else order)[after:]
    if as_json:
        print_json(
            {
                "format": 1,
                "target": target,
                "order": [_place_json(place, target) for place in order],
                "not_in_the_pipeline": [{"name": spec.name, "plugin": plugin} for spec, plugin in left_out],
            }
        )
        return
    print_table(
        ("STAGE", "PASS", "PLUGIN", "BECAUSE"),
        [(place.stage, place.name, place.plugin, _because(place, target)) for place in order],
    )
    if left_out:
        print()
    for spec, plugin in left_out:
        skipped = isinstance(spec, PassSpec) and spec.default
        how = "left out by --skip-pass" if skipped else f"runs only with --pass {spec.name}"
        print(f"not in the pipeline: {spec.name} ({plugin}), {how}. {spec.summary}")


def _backend_steps(installation: Installation, target: str) -> Iterator[PipelineStep]:
    """The planning steps of the backends that serve ``target``, all backends' where it is "". Imports none of them."""
    served = [
        contribution
        for contribution in installation.backends.contributions
        if not target or _serves(contribution.spec, target)
    ]
    if target and not served:
        known = sorted({name for spec in installation.backends for name in (spec.name, *spec.targets)})
        raise UsageError(f"no backend has the target {target!r}", hint=f"targets: {', '.join(known) or 'none'}")
    for contribution in served:
        for step in contribution.spec.plan_steps:
            function = step.rpartition(":")[2] if isinstance(step, str) else step.__name__
            yield PipelineStep(
                function.replace("_", "-"),
                Stage.PLAN,
                f"A planning step of the backend {contribution.spec.name}.",
                contribution.plugin.name,
            )


def _serves(spec: BackendSpec, target: str) -> bool:
    return target == spec.name or any(name == target or name.startswith(f"{target}.") for name in spec.targets)


def _left_out(installation: Installation, order: tuple[Place, ...]) -> list[tuple[PassSpec | PipelineStep, str]]:
    placed = {place.name for place in order}
    passes: list[tuple[PassSpec | PipelineStep, str]] = [
        (contribution.spec, contribution.plugin.name)
        for contribution in installation.passes.contributions
        if contribution.spec.name not in placed
    ]
    return [*passes, *((step, step.plugin) for step in OPTIONAL_STEPS if step.name not in placed)]


def _because(place: Place, target: str) -> str:
    skipped = _skipped(place, target)
    parts = [place.because, f"skipped here: {skipped}" if skipped else ""]
    if place.chosen is not None and place.chosen.spec.modes:
        parts.append(f"in {', '.join(place.chosen.spec.modes)} only")
    if place.chosen is not None and place.chosen.spec.targets and not target:
        parts.append(f"for the targets {', '.join(place.chosen.spec.targets)} only")
    return "; ".join(part for part in parts if part)


def _skipped(place: Place, target: str) -> str:
    """Why a target leaves the pass out, "" where it does not or no target was named."""
    if place.chosen is None or not target:
        return ""
    return why_not(place.chosen.spec, PassContext(ops={}, target=target))


def _place_json(place: Place, target: str) -> dict[str, Any]:
    spec = place.chosen.spec if place.chosen is not None else None
    return {
        "stage": place.stage.value,
        "name": place.name,
        "plugin": place.plugin,
        "summary": place.summary,
        "because": place.because,
        "is_pass": spec is not None,
        "modes": list(spec.modes) if spec else [],
        "targets": list(spec.targets) if spec else [],
        "skipped": _skipped(place, target),
        "options": describe_options(spec) if spec else "",
        "options_given": repr(place.chosen.options) if place.chosen and place.chosen.options is not None else "",
    }

"""The order of passes: by stage, then by what they declare, ties by name. The same set always gives the same list."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cacheir.errors import PassOrderError
from cacheir.pipeline.choose import ChosenPass
from cacheir.pipeline.steps import PIPELINE_STEPS, PipelineStep
from cacheir.plugins.specs import PassSpec, Stage

STAGES = tuple(Stage)  # in the order in which they run


@dataclass(frozen=True)
class Place:
    """A pass or a step at its place in the order, and why it stands there."""

    name: str
    stage: Stage
    plugin: str
    summary: str
    because: str
    chosen: ChosenPass | None  # None for a step
    step: PipelineStep | None = None  # None for a pass


def order_passes(
    chosen: Iterable[ChosenPass],
    *,
    steps: Sequence[PipelineStep] = PIPELINE_STEPS,
    providers: Mapping[str, str] | None = None,
) -> tuple[Place, ...]:
    """All places of the pipeline, steps included.

    ``providers`` says for a name that is left out or not installed where it would come from; it only serves messages.
    Raises PassOrderError for a circle, for a pass that requires one which is not there, and for an order against the
    stages.
    """
    passes = {item.spec.name: item for item in chosen}
    stages = {name: item.spec.stage for name, item in passes.items()}
    stages |= {step.name: step.stage for step in steps}
    clash = sorted(set(passes) & {step.name for step in steps})
    if clash:
        raise PassOrderError(f"pass {clash[0]!r} has the name of a step of the pipeline", hint="give it another name")
    edges = _edges([item.spec for item in passes.values()], stages, providers or {})
    # Steps keep the order in which they are listed.
    listed = {step.name: index for index, step in enumerate(steps)}

    def rank(name: str) -> tuple[int, int, str]:
        return STAGES.index(stages[name]), listed.get(name, 0), name

    waiting = {name: {earlier for earlier, later in edges if later == name} for name in stages}
    ready = [rank(name) for name, earlier in waiting.items() if not earlier]
    heapq.heapify(ready)
    order: list[str] = []
    while ready:
        name = heapq.heappop(ready)[2]
        order.append(name)
        for other, earlier in waiting.items():
            if name in earlier:
                earlier.discard(name)
                if not earlier:
                    heapq.heappush(ready, rank(other))
    if len(order) < len(stages):
        raise PassOrderError(
            "passes are ordered in a circle: " + " -> ".join(_circle({k: v for k, v in waiting.items() if v})),
            hint="leave one of them out with --skip-pass",
        )
    by_step = {step.name: step for step in steps}
    return tuple(
        _pass_place(passes[name], passes, stages) if name in passes else _step_place(by_step[name]) for name in order
    )


def _edges(specs: list[PassSpec], stages: Mapping[str, Stage], providers: Mapping[str, str]) -> set[tuple[str, str]]:
    """``(earlier, later)`` for everything that is declared about passes which are present."""
    edges: set[tuple[str, str]] = set()
    for spec in specs:
        for name in spec.requires:
            if name not in stages:
                where = providers.get(name)
                raise PassOrderError(
                    f"pass {spec.name!r} requires {name!r}, which is not in this pipeline",
                    hint=where or f"install the plugin that has it, or --skip-pass {spec.name}",
                )
        pairs = [(name, spec.name) for name in (*spec.after, *spec.requires)]
        pairs += [(spec.name, name) for name in spec.before]
        for earlier, later in pairs:
            if earlier not in stages or later not in stages:
                continue
            if STAGES.index(stages[earlier]) > STAGES.index(stages[later]):
                raise PassOrderError(
                    f"pass {spec.name!r} wants {later!r} ({stages[later]}) after {earlier!r} ({stages[earlier]}), "
                    f"but the {stages[earlier]} stage comes later",
                    hint=f"change the stage of {spec.name!r}, or --skip-pass {spec.name}",
                )
            edges.add((earlier, later))
    return edges


def _circle(waiting: Mapping[str, set[str]]) -> list[str]:
    """One circle among names that all wait for another of them, earliest first, closed by its first name."""
    seen: list[str] = []
    name = min(waiting)
    while name not in seen:
        seen.append(name)
        name = min(waiting[name])
    circle = seen[seen.index(name) :]
    return [*circle[::-1], circle[-1]]


def _pass_place(item: ChosenPass, passes: Mapping[str, ChosenPass], stages: Mapping[str, Stage]) -> Place:
    spec = item.spec

    def beside(names: Iterable[str]) -> list[str]:
        """Those that are present in the same stage; between stages the order needs no reason."""
        return [name for name in names if stages.get(name) == spec.stage]

    reasons = []
    for word, names in (
        ("requires", list(spec.requires)),
        ("after", beside(spec.after)),
        ("before", beside(spec.before)),
    ):
        present = [name for name in names if name in stages]
        if present:
            reasons.append(f"{word} {', '.join(present)}")
    asked_before = beside(name for name, other in passes.items() if spec.name in other.spec.before)
    if asked_before:
        reasons.append(f"after {', '.join(asked_before)}, which {'asks' if len(asked_before) == 1 else 'ask'} for it")
    asked_after = beside(
        name for name, other in passes.items() if spec.name in (*other.spec.after, *other.spec.requires)
    )
    if asked_after:
        reasons.append(f"before {', '.join(asked_after)}, which {'asks' if len(asked_after) == 1 else 'ask'} for it")
    because = "; ".join(reasons) or "no order declared: by name"
    return Place(spec.name, spec.stage, item.plugin, spec.summary, because, item)


def _step_place(step: PipelineStep) -> Place:
    because = "after the logical passes" if step.stage is Stage.PROGRAM else "after all passes"
    if step.run is not None:
        because += "; asked for by --pass"
    return Place(step.name, step.stage, step.plugin, step.summary, because, None, step)

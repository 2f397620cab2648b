"""Records of the planning steps: what each of them chose, in sentences, beside the records of the passes."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping

from cacheir.ir.graph import Module
from cacheir.plugins.specs import PassRecord, Stage
from cacheir.schedule.capture_plan import captures_of
from cacheir.schedule.choose_layouts import WeightLayout, layout_notes
from cacheir.schedule.memory_plan import MemoryPlan
from cacheir.schedule.plan_captures import capture_notes
from cacheir.schedule.program import Program
from cacheir.schedule.record_json import json_bytes, to_json
from cacheir.schedule.schedule import Schedule

_BY_MEANING = "the op's meaning"


def plan_records(
    program: Program, layouts: tuple[WeightLayout, ...], seconds: Mapping[str, float]
) -> tuple[PassRecord, ...]:
    """A record for each planning step of core and each mode, in the order of ``pipeline.steps.PLAN_STEPS``.

    ``seconds`` are by the step's name, over all modes. The hashes are those of the module's text and of what the step
    made as JSON: the plan itself lies beside the records, so that there is no diff to show.
    """
    records = []
    share = 1 / max(1, len(program.modules))
    for mode, module in program.modules.items():
        schedule, plan = program.schedules[mode], program.plans[mode]
        made = {
            "select-kernels": (to_json(schedule), _kernel_notes(schedule)),
            "choose-layouts": (to_json(layouts), layout_notes(layouts)),
            "schedule": (to_json(schedule), _schedule_notes(module, schedule)),
            "plan-memory": (to_json(plan), _memory_notes(plan)),
            "plan-captures": (dict(program.plan_notes), capture_notes(program)),
        }
        for name, (value, notes) in made.items():
            records.append(
                PassRecord(
                    name=name,
                    plugin="core",
                    stage=Stage.PLAN,
                    mode=mode,
                    outcome="unchanged" if name == "plan-captures" and not captures_of(program).modes else "changed",
                    before=_digest(str(module).encode()),
                    after=_digest(json_bytes(value)),
                    seconds=seconds.get(name, 0.0) * share,
                    notes=notes,
                )
            )
    return tuple(records)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _kernel_notes(schedule: Schedule) -> tuple[str, ...]:
    taken: Counter[str] = Counter()
    refused: Counter[tuple[str, str]] = Counter()
    for graph in schedule.graphs:
        for entry in graph.entries:
            if entry.choices and entry.choices[0].kernel == "call":
                continue
            taken.update({choice.kernel or _BY_MEANING for choice in entry.choices})
            refused.update({(one.kernel, one.refusal) for choice in entry.choices for one in choice.candidates})
    notes = [f"{kernel} runs {count} ops" for kernel, count in sorted(taken.items())]
    notes += [f"{kernel}, {count} times: {why}" for (kernel, why), count in sorted(refused.items()) if why]
    return tuple(notes) or ("there is no op to choose a kernel for",)


def _schedule_notes(module: Module, schedule: Schedule) -> tuple[str, ...]:
    calls = sum(bool(op.callee) for op in module.main.ops)
    return (
        f"{sum(len(graph.entries) for graph in schedule.graphs)} entries in {len(schedule.graphs)} graphs",
        f"{calls} calls",
    )


def _memory_notes(plan: MemoryPlan) -> tuple[str, ...]:
    notes = [f"an arena of {plan.arena_bytes} bytes"]
    for frame in plan.frames:
        taken = sorted(
            f"%{name} over %{place.in_place_of}" for name, place in frame.places.items() if place.in_place_of
        )
        notes += [f"@{frame.graph}: {text}" for text in _few(taken)]
    if len(notes) == 1:
        notes.append("no result takes over its operand's place: no kernel offers it at an operand's last use")
    return tuple(notes)


def _few(texts: list[str], most: int = 8) -> Iterator[str]:
    """The first of ``texts``, and how many more there are: a record must not grow with the layers of a model."""
    yield from texts[:most]
    if len(texts) > most:
        yield f"and {len(texts) - most} more in place"

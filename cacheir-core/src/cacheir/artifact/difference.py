"""What two artifacts do not have in common: options, plugins, passes, kernels, weights, sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cacheir.artifact.artifact import Artifact
from cacheir.plugins.specs import PassRecord
from cacheir.schedule.record_json import to_json

# In the order in which they are told.
SECTIONS = ("model", "options", "plugins", "passes", "graphs", "kernels", "weights", "sizes")


@dataclass(frozen=True, kw_only=True)
class Change:
    """``what`` is ``before`` in the first artifact and ``after`` in the second, None where one does not have it."""

    section: str
    what: str
    before: str | None
    after: str | None


def differences(first: Artifact, second: Artifact) -> tuple[Change, ...]:
    """All changes in the order of ``SECTIONS``; () where the two would run alike."""
    return tuple(
        Change(section=section, what=what, before=before, after=after)
        for section in SECTIONS
        for what, before, after in _unlike(_FACTS[section](first), _FACTS[section](second))
    )


def _unlike(first: Mapping[str, str], second: Mapping[str, str]) -> Iterator[tuple[str, str | None, str | None]]:
    """What is in one alone or has another text, in the first's order, then the second's."""
    for what in dict.fromkeys((*first, *second)):
        before, after = first.get(what), second.get(what)
        if before != after:
            yield what, before, after


def _model(artifact: Artifact) -> dict[str, str]:
    card = artifact.card
    facts = {
        "label": card.model.label,
        "importer": card.model.importer,
        "headers": card.model.header_hash,
        "content": artifact.lock.content,
        "core": card.core,
        "layers": str(len(card.spec.layers)) if card.spec else "",
    }
    # A content hash is learnt at the first load: one that is not known yet says nothing.
    return {what: text for what, text in facts.items() if text}


def _options(artifact: Artifact) -> dict[str, str]:
    card = artifact.card
    options: dict[str, object] = to_json(card.options)
    limits = {"max_seq": card.max_seq, "max_rows": card.max_rows, "max_tokens": card.max_tokens}
    for name, value in limits.items():
        options[name] = value  # the limits in force, which 0 leaves to the model
    options["backend"] = card.backend
    options["instruction_set"] = card.instruction_set
    return {name: _text(value) for name, value in options.items()}


def _plugins(artifact: Artifact) -> dict[str, str]:
    facts = {}
    for name, plugin in artifact.lock.plugins.items():
        facts[name] = " ".join(filter(None, (plugin.distribution, plugin.version, plugin.fingerprint[:12])))
    return facts


def _passes(artifact: Artifact) -> dict[str, str]:
    """A line for each step and mode: what came of it, and the hashes of what it left behind."""
    steps: dict[str, list[PassRecord]] = {}
    for record in artifact.records():
        steps.setdefault(f"{record.name} of {record.mode}" if record.mode else record.name, []).append(record)
    facts = {}
    for step, records in steps.items():
        changed = [record for record in records if record.outcome == "changed"]
        said = f"changed {len(changed)} of {len(records)} graphs, {sum(r.rewrites for r in records)} rewrites"
        made = [f"@{record.graph or 'all'} {record.after}" for record in changed]
        facts[step] = "; ".join([said, *made]) if changed else records[0].outcome
    return facts


def _graphs(artifact: Artifact) -> dict[str, str]:
    return {
        f"@{graph.name} of {mode}": f"{len(graph.ops)} ops, {len(graph.weights)} weights, {graph.hash}"
        for mode, module in artifact.program.modules.items()
        for graph in module.graphs
    }


def _kernels(artifact: Artifact) -> dict[str, str]:
    facts = {}
    for mode, schedule in artifact.program.schedules.items():
        for graph in schedule.graphs:
            for entry in graph.entries:
                names = dict.fromkeys(choice.kernel or "its meaning" for choice in entry.choices)
                if entry.op_name != "call":
                    facts[f"%{entry.node} ({entry.op_name}) of @{graph.graph}, {mode}"] = " or ".join(names)
    return facts


def _weights(artifact: Artifact) -> dict[str, str]:
    facts = {}
    for recipe, weight in artifact.program.weights.items():
        sources = (artifact.manifest.tensors.get(key) for key in (recipe, *weight.stored))
        places = (f"{source.format} {source.nbytes} B in {source.file}" for source in sources if source is not None)
        facts[recipe] = ", ".join([str(weight.type), *dict.fromkeys(places)])
    return facts


def _sizes(artifact: Artifact) -> dict[str, str]:
    program = artifact.program
    stored = {key for weight in program.weights.values() for key in (weight.recipe, *weight.stored)}
    weights = sum(source.nbytes for key, source in artifact.manifest.tensors.items() if key in stored)
    facts = {"weights, bytes": str(weights), "weights": "materialised" if artifact.manifest.materialised else "linked"}
    facts |= {f"arena of {mode}, bytes": str(plan.arena_bytes) for mode, plan in program.plans.items()}
    facts |= {f"KV group {number}": str(kind) for number, kind in enumerate(program.groups)}
    return facts


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={item}" for key, item in sorted(value.items())) or "none"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value) if value != "" else "none"


_FACTS = {
    "model": _model,
    "options": _options,
    "plugins": _plugins,
    "passes": _passes,
    "graphs": _graphs,
    "kernels": _kernels,
    "weights": _weights,
    "sizes": _sizes,
}

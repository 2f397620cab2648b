"""An artifact on one page: the model, the limits, what the passes did, what runs and what it takes."""

from __future__ import annotations

from collections import Counter
from typing import Any

from cacheir.artifact.artifact import Artifact
from cacheir.cli.output import size_text, table
from cacheir.cli.show_passes import passes_table
from cacheir.cli.show_plan import state_and_weights_text, weight_formats
from cacheir.ir.graph import Graph


def summary_text(artifact: Artifact) -> str:
    """The page."""
    card, program = artifact.card, artifact.program
    name = f"{card.model.name} ({card.model.label})" if card.model.name else card.model.label
    head = [
        f"model     {name}, read by {card.model.importer}",
        f"target    {card.target}, backend {card.backend} {card.instruction_set}".rstrip(),
        f"limits    {card.max_seq} positions a row, {card.max_rows} rows and {card.max_tokens} tokens a step",
        f"program   {card.program_key[:16]}, written by cacheir-core {card.core}",
        f"weights   {'in the artifact' if artifact.manifest.materialised else f'in {artifact.weights_root}'}",
    ]
    head += [f"note      {note}" for note in (*card.model.notes, *artifact.notes)]
    calls = Counter(op.callee for op in program.modules[next(iter(program.modules))].main.ops if op.callee)
    graphs = table(
        ("MODE", "GRAPH", "OPS", "CALLED FOR", "WHAT IT RUNS"),
        [
            (mode, f"@{graph.name}", len(graph.ops), _called(calls[graph.name]), _ops(graph))
            for mode, module in program.modules.items()
            for graph in module.graphs
        ],
        right=("OPS",),
    )
    arenas = ", ".join(f"{mode} {size_text(plan.arena_bytes)}" for mode, plan in program.plans.items())
    return "\n\n".join(
        [
            "\n".join(head),
            graphs,
            passes_table(artifact.records()),
            state_and_weights_text(program),
            f"arena: {arenas}",
            "more: --mode MODE, --graph GRAPH, --pass-name PASS, --kernels, --memory, --json",
        ]
    )


def summary_json(artifact: Artifact) -> dict[str, Any]:
    """The page as JSON values."""
    card, program = artifact.card, artifact.program
    return {
        "model": {"name": card.model.name, "label": card.model.label, "importer": card.model.importer},
        "target": card.target,
        "backend": card.backend,
        "instruction_set": card.instruction_set,
        "limits": {"max_seq": card.max_seq, "max_rows": card.max_rows, "max_tokens": card.max_tokens},
        "program_key": card.program_key,
        "core": card.core,
        "weights": {
            "materialised": artifact.manifest.materialised,
            "formats": {
                name: {"tensors": count, "bytes": nbytes} for name, (count, nbytes) in weight_formats(program).items()
            },
        },
        "kv_groups": [
            {"type": str(kind), "layers": list(layers)} for kind, layers in zip(program.groups, program.group_layers)
        ],
        "graphs": {
            mode: [{"name": graph.name, "ops": len(graph.ops), "hash": graph.hash} for graph in module.graphs]
            for mode, module in program.modules.items()
        },
        "arena_bytes": {mode: plan.arena_bytes for mode, plan in program.plans.items()},
        "notes": [*card.model.notes, *artifact.notes],
    }


def _called(layers: int) -> str:
    return f"{layers} layer{'s' if layers > 1 else ''}" if layers else ""


def _ops(graph: Graph) -> str:
    """The ops in order, a run of one op with its number: ``embedding, rope_table, 30 call, rms_norm``."""
    runs: list[tuple[str, int]] = []
    for op in graph.ops:
        if runs and runs[-1][0] == op.name:
            runs[-1] = (op.name, runs[-1][1] + 1)
        else:
            runs.append((op.name, 1))
    shown = [f"{count} {name}" if count > 1 else name for name, count in runs]
    return ", ".join(shown[:12]) + (f" and {len(shown) - 12} more" if len(shown) > 12 else "") or "yields what it takes"

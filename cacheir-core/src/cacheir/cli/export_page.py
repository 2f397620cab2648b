"""Gathers what the HTML page shows of an artifact: its records and plans, and what launches cost on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import TextIO

from cacheir import settings
from cacheir.artifact.artifact import Artifact
from cacheir.artifact.compatibility import cost_model
from cacheir.bench.calibration import Calibration, load_calibration
from cacheir.bench.explain import Line, explain, step_shape
from cacheir.exporters.html import html_page
from cacheir.exporters.page_data import LaunchCost, PageInput
from cacheir.ir.types import KVType
from cacheir.models.imported import PLAIN_MODE
from cacheir.plugins.installation import Installation, default
from cacheir.runtime.usable_cores import usable_cores
from cacheir.schedule.add_costs import recorded_keys

_PREFILL_TOKENS = 128  # of the prefill step whose costs are shown, fewer where a step has fewer


def export_html(artifact: Artifact, out: TextIO) -> None:
    """Write the page of ``artifact`` to ``out``: its graphs after every pass, kernels, refusals, memory and costs.

    Raises ArtifactDamagedError where a recorded diff does not fit.
    """
    out.write(html_page(page_input(artifact, default())))


def page_input(artifact: Artifact, installation: Installation) -> PageInput:
    """What the page of ``artifact`` is made of; times are in it where this machine's calibration has them."""
    card, program = artifact.card, artifact.program
    calibration, _ = load_calibration(settings.cache_dir())
    threads = settings.count("CACHEIR_THREADS") or usable_cores()
    known = calibration if calibration and calibration.rates(program.backend, threads) else None
    costs: dict[tuple[str, str, str], LaunchCost] = {}
    shapes: dict[str, str] = {}
    for mode in program.modules if PLAIN_MODE not in program.modules else ():
        shapes[mode], found = _mode_costs(artifact, installation, mode, threads, known)
        costs |= found
    return PageInput(
        title=card.model.name or card.model.label,
        facts=[
            card.model.label,
            f"{card.backend} {card.instruction_set}".rstrip(),
            *([card.options.quant] if card.options.quant else []),
            f"{card.max_seq} positions, {card.max_rows} rows, {card.max_tokens} tokens a step",
            f"cacheir-core {card.core}",
        ],
        modules=program.modules,
        schedules=program.schedules,
        plans=program.plans,
        records=artifact.records(),
        dialects={name: op.dialect for name, op in installation.ops.by_name().items()},
        costs=costs,
        shapes=shapes,
        machine=f"{known.processor}, {threads} thread{'s' if threads > 1 else ''}" if known and costs else "",
    )


def _mode_costs(
    artifact: Artifact, installation: Installation, mode: str, threads: int, calibration: Calibration | None
) -> tuple[str, dict[tuple[str, str, str], LaunchCost]]:
    """A step of the mode in words, and the cost of one launch of each node in it.

    Its head is the greedy one; of the others the page shows what the schedule recorded.
    """
    program = artifact.program
    module = program.modules[mode]
    keys = recorded_keys(module)
    tokens = 0 if mode == "decode" else min(_PREFILL_TOKENS, program.max_tokens, keys)
    weights = dict(_weight_bytes(artifact, installation, mode))
    shape = step_shape(artifact, mode, tokens=tokens, context=keys)
    lines = explain(artifact, installation, shape, threads=threads, calibration=calibration).lines
    found = {
        (mode, line.node.graph, line.node.node): _launch_cost(line, weights.get((line.node.graph, line.node.node), {}))
        for line in lines
    }
    said = f"{tokens} tokens" if tokens else "1 row"
    return f"{said} with {keys} keys", found


def _launch_cost(line: Line, weights: Mapping[str, int]) -> LaunchCost:
    node = line.node
    return LaunchCost(
        bytes=node.cost.bytes,
        operations=node.cost.operations,
        weight_bytes=weights.get(node.kernel, 0),
        floor_s=None if line.floor_s is None else line.floor_s / node.calls,
        predicted_s=None if line.predicted_s is None else line.predicted_s / node.calls,
    )


def _weight_bytes(
    artifact: Artifact, installation: Installation, mode: str
) -> Iterator[tuple[tuple[str, str], Mapping[str, int]]]:
    """(graph, node) and, for each kernel that may run it, the bytes of the weights that one launch reads."""
    model = cost_model(installation)
    kernels = installation.kernels.by_name()
    module = artifact.program.modules[mode]
    for graph in module.graphs:
        for entry in artifact.program.schedules[mode].graph(graph.name).entries:
            types = {v.name: v.type for v in graph.ops[entry.op].operands if v.origin == "weight"}.values()
            sizes = {}
            for name in {choice.kernel for choice in entry.choices}:
                element = kernels[name].weight_bytes if name in kernels else 0
                sizes[name] = sum(
                    element * prod(size.constant for size in type_.shape)
                    if element and not isinstance(type_, KVType)
                    else model.stored_bytes(type_, {})
                    for type_ in types
                )
            yield (graph.name, entry.node), sizes

"""Answers of engines side by side: which tokens are the same, and whether those that are not were close calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from cacheir.bench.against.cells import Cell
from cacheir.bench.against.contestants import OURS, Contestant
from cacheir.errors import BackendError

MOST_JUDGED = 8  # partings of a peer in a cell: each takes a pass in exact mode

# A margin counts as clear above so many times the largest error of our logits.
CLEAR_ERRORS = 4


class AskedEngine(Protocol):
    """A child, or what stands for one in a test."""

    contestant: Contestant

    def ask(self, cell: Cell, name: str, **given: Any) -> Any: ...


def compare_answers(cell: Cell, engines: Sequence[AskedEngine]) -> list[dict[str, Any]]:
    """A row for each engine, ours first: ``busy_seconds`` of its GPU, and for a peer how its greedy tokens meet ours.

    ``same`` of ``tokens`` stand at equal places. ``parted`` answers differ somewhere; of the ``judged`` first
    differences ``clear`` ones are at a place where the exact logits of the two tokens lie further apart than
    CLEAR_ERRORS times the error of ours (``error``): there one engine is wrong. ``refused`` says why a row has no more.
    """
    rows: list[dict[str, Any]] = []
    ours = next((engine for engine in engines if engine.contestant.engine == OURS), None)
    mine: list[list[int]] = []
    for engine in sorted(engines, key=lambda engine: engine.contestant.engine != OURS):
        row: dict[str, Any] = {"cell": cell.name, "label": engine.contestant.label}
        try:
            said = engine.ask(cell, "answers")
            row["busy_seconds"] = said["busy_seconds"]
            if engine is ours:
                mine = said["ids"]
            elif mine:
                assert ours is not None
                row |= _beside(cell, ours, mine, said["ids"])
        except BackendError as error:
            row["refused"] = str(error)
        rows.append(row)
    return rows


def answers_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Lines of Markdown, [] where there are no rows."""
    if not rows:
        return []
    lines = ["", "| cell | engine | GPU busy, ms | same tokens | clear differences |", "|---|---|---|---|---|"]
    for row in rows:
        if "refused" in row:
            lines.append(f"| {row['cell']} | {row['label']} | not told: {row['refused'].replace('|', '/')} | | |")
            continue
        busy = "" if row["busy_seconds"] is None else f"{1e3 * row['busy_seconds']:.2f}"
        same = f"{row['same'] / row['tokens']:.0%}" if "same" in row else ""
        clear = f"{row['clear']} of {row['judged']} judged, {row['parted']} answers differ" if "clear" in row else ""
        lines.append(f"| {row['cell']} | {row['label']} | {busy} | {same} | {clear} |")
    return lines


def partings(
    prompts: Sequence[Sequence[int]], ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]
) -> list[tuple[list[int], int, int]]:
    """For each answer that differs: the tokens before the first difference, our token there, theirs."""
    found = []
    for prompt, mine, other in zip(prompts, ours, theirs):
        for place, (a, b) in enumerate(zip(mine, other)):
            if a != b:
                found.append(([*prompt, *mine[:place]], a, b))
                break
    return found


def _beside(
    cell: Cell, ours: AskedEngine, mine: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]
) -> dict[str, Any]:
    prompts = ours.ask(cell, "prompts")
    parted = partings(prompts, mine, theirs)
    chosen = sorted(parted, key=lambda parting: len(parting[0]))[:MOST_JUDGED]
    found: dict[str, Any] = {"error": None, "margins": []}
    if chosen:
        found = ours.ask(cell, "margins", partings=chosen)
    return {
        "tokens": sum(map(len, mine)),
        "same": sum(a == b for x, y in zip(mine, theirs) for a, b in zip(x, y)),
        "parted": len(parted),
        "judged": len(found["margins"]),
        "clear": sum(margin > CLEAR_ERRORS * found["error"] for margin in found["margins"]),
        **found,
    }

"""What the passes did, for people: one line for each, or the diff of one by name and mode."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from cacheir.cli.output import table
from cacheir.cli.show_graphs import fold_calls
from cacheir.pipeline.names import find_name, fold_name
from cacheir.plugins.specs import PassRecord

_HEAD = re.compile(r"@@ -\d+(?:,\d+)? \+\d+(?:,\d+)? @@")


def passes_table(records: Sequence[PassRecord]) -> str:
    """A line for each pass in each mode, its graphs summed up."""
    rows = []
    for steps in _by_step(records).values():
        first = steps[0]
        changed = [record for record in steps if record.outcome == "changed"]
        outcome = "changed" if changed else "skipped" if all(r.outcome == "skipped" for r in steps) else "unchanged"
        graphs = ", ".join(f"@{record.graph}" if record.graph else "all graphs" for record in changed)
        rewrites = sum(record.rewrites for record in steps)
        rows.append((first.stage, first.mode or "-", first.name, first.plugin, outcome, rewrites or "", graphs))
    headings = ("STAGE", "MODE", "PASS", "PLUGIN", "OUTCOME", "REWRITES", "CHANGED")
    return table(headings, rows, right=("REWRITES",))


def named_records(
    records: Sequence[PassRecord], name: str, *, mode: str = "", graph: str = "", more_names: Sequence[str] = ()
) -> tuple[str, list[PassRecord]]:
    """The pass or step that ``name`` means, and its records in ``mode`` and on ``graph`` ("" for all).

    ``more_names`` are known too, though no record has them. A logical pass ran before there were modes: its records are
    given for every mode. Raises UsageError that lists the known names.
    """
    known = list(dict.fromkeys([*(record.name for record in records), *more_names]))
    found = find_name(name, known, "pass or step")
    wanted = [record for record in records if fold_name(record.name) == fold_name(found)]
    if mode:
        wanted = [record for record in wanted if record.mode in ("", mode)]
    if graph:
        wanted = [record for record in wanted if record.graph in ("", graph.removeprefix("@"))]
    return found, wanted


def records_text(name: str, records: Sequence[PassRecord], *, whole: bool = False) -> str:
    """The diffs of one pass, equal ones shown once, then what it said where it changed nothing.

    Runs of calls are folded unless ``whole``.
    """
    parts = []
    for members in _alike([record for record in records if record.outcome == "changed"]):
        first = members[0]
        heads = [_where(record) for record in members]
        parts.append(f"{name} changed {heads[0]}{_counts(first)}")
        if len(heads) > 1:
            parts.append(f"  and the same in {', '.join(heads[1:])}")
        parts += [f"  {note}" for note in first.notes]
        parts.append("\n" + (first.diff if whole else fold_calls(first.diff)))
    return "\n".join([*parts, *_idle(records)]) or f"{name} did not run here"


def matches_text(name: str, records: Sequence[PassRecord]) -> str:
    """What one pass matched, a line for each site, and for the graphs where it found nothing why: no diffs."""
    parts = []
    for record in records:
        if record.outcome != "changed":
            continue
        parts.append(f"{name} changed {_where(record)}{_counts(record)}")
        for op, replaced, *made in record.sites:
            parts.append(f"  {op} %{replaced}: {', '.join(f'%{value}' for value in made) or 'an earlier value'}")
        parts += [f"  {note}" for note in record.notes]
    return "\n".join([*parts, *_idle(records)]) or f"{name} did not run here"


def records_json(records: Sequence[PassRecord]) -> list[dict[str, Any]]:
    """The records as JSON values, diffs whole."""
    return [
        {
            "name": record.name,
            "plugin": record.plugin,
            "stage": record.stage.value,
            "mode": record.mode,
            "graph": record.graph,
            "outcome": record.outcome,
            "before": record.before,
            "after": record.after,
            "seconds": record.seconds,
            "counts": dict(record.counts),
            "rewrites": record.rewrites,
            "notes": list(record.notes),
            "sites": [{"op": op, "replaced": replaced, "made": made} for op, replaced, *made in record.sites],
            "diff": record.diff,
        }
        for record in records
    ]


def _idle(records: Sequence[PassRecord]) -> list[str]:
    """A line for each reason why nothing was changed, with the graphs that it holds for."""
    idle: dict[str, list[str]] = {}
    for record in records:
        if record.outcome != "changed":
            said = "; ".join(record.notes) or "it gave no reason"
            idle.setdefault(f"{record.outcome}: {said}", []).append(_where(record))
    return [f"{', '.join(places)}: {said}" for said, places in idle.items()]


def _by_step(records: Sequence[PassRecord]) -> dict[tuple[str, str, str], list[PassRecord]]:
    steps: dict[tuple[str, str, str], list[PassRecord]] = {}
    for record in records:
        steps.setdefault((record.stage.value, record.mode, record.name), []).append(record)
    return steps


def _alike(records: Sequence[PassRecord]) -> list[list[PassRecord]]:
    """The records in groups whose diffs are equal but for line numbers."""
    groups: dict[str, list[PassRecord]] = {}
    for record in records:
        groups.setdefault(_HEAD.sub("@@", record.diff), []).append(record)
    return list(groups.values())


def _where(record: PassRecord) -> str:
    place = f"@{record.graph}" if record.graph else "the module"
    return f"{place} of {record.mode}" if record.mode else place


def _counts(record: PassRecord) -> str:
    """``: 1 more fused_qkv, 3 fewer linear``."""
    parts = [f"{abs(number)} {'more' if number > 0 else 'fewer'} {op}" for op, number in record.counts.items()]
    return f": {', '.join(parts)}" if parts else ""

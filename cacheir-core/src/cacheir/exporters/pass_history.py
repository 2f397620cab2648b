"""The graphs after every pass, from the finished ones: the records' diffs are undone one after the other."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cacheir.errors import ArtifactDamagedError, ParseError
from cacheir.ir.graph import Graph, Module
from cacheir.ir.parser import parse_graph, parse_module
from cacheir.ir.printer import line_of_op
from cacheir.pipeline.diff import module_hash, text_diff
from cacheir.plugins.specs import PassRecord

_HUNK = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@.*")


@dataclass(frozen=True, kw_only=True)
class Change:
    """What a step did to one graph, op by op.

    ``before`` is None for a graph that the step added, ``after`` for one that it removed. ``merged`` holds, in the
    order of the diff, ``("same", index in after)``, ``("added", index in after)`` and ``("removed", index in before)``.
    """

    graph: str
    before: Graph | None
    after: Graph | None
    merged: tuple[tuple[str, int], ...]
    diff: str  # of the graph's text


@dataclass(frozen=True, kw_only=True)
class Step:
    """A pass in one stage and mode, over all graphs: its records, what it changed, and the module after it."""

    name: str
    plugin: str
    stage: str
    records: tuple[PassRecord, ...]
    changes: tuple[Change, ...]
    module: Module

    @property
    def outcome(self) -> str:
        """``changed`` where it changed any graph, ``skipped`` where it ran on none."""
        outcomes = {record.outcome for record in self.records}
        return "changed" if "changed" in outcomes else "skipped" if outcomes == {"skipped"} else "unchanged"


@dataclass(frozen=True, kw_only=True)
class History:
    """The steps of one mode in order, and the module that the first of them was given."""

    mode: str
    start: Module
    steps: tuple[Step, ...]


@dataclass
class _Cut:
    """One diff with its lines by number: which of the old text went, which of the new one came."""

    old: list[str]
    removed: list[int]  # line numbers in the old text, from 0
    added: list[int]  # line numbers in the new text, from 0


def pass_history(finished: Module, records: Iterable[PassRecord]) -> History:
    """The steps that led to ``finished``, whose mode tells which of the ``records`` count.

    Raises ArtifactDamagedError where a diff does not fit the text that it is said to have made.
    """
    grouped: dict[tuple[str, str], list[PassRecord]] = {}
    for record in records:
        if record.mode in ("", finished.mode):
            grouped.setdefault((str(record.stage), record.name), []).append(record)
    module, steps = finished, []
    for (stage, name), parts in reversed(grouped.items()):
        before, changes = _undo_all(module, parts)
        steps.append(
            Step(
                name=name,
                plugin=parts[0].plugin,
                stage=stage,
                records=tuple(parts),
                changes=tuple(reversed(changes)),
                module=module,
            )
        )
        module = before
    return History(mode=finished.mode, start=module, steps=tuple(reversed(steps)))


def _undo_all(module: Module, records: Sequence[PassRecord]) -> tuple[Module, list[Change]]:
    """The module before a step, and the step's changes, last first."""
    changes: list[Change] = []
    for record in reversed(records):
        if not record.diff:
            continue
        try:
            if record.graph:
                after = module.graph(record.graph)
                cut = _undo(str(after).splitlines(keepends=True), record.diff)
                before = parse_graph("".join(cut.old))
                if before.name != after.name:
                    raise _Misfit(f"it would rename @{before.name} to @{after.name}")
                _check_hashes(record, before.hash, after.hash)
                module = module.replacing(before)
                changes.append(_change(before, after, cut, record.diff))
            else:
                module, found = _undo_module(module, record)
                changes += reversed(found)
        except (ParseError, KeyError, _Misfit) as error:
            raise ArtifactDamagedError(
                f"the diff of pass {record.name!r} on @{record.graph or 'all graphs'} does not fit: {error}",
                hint="compile the model again",
            ) from error
    return module, changes


def _undo_module(after: Module, record: PassRecord) -> tuple[Module, list[Change]]:
    """As ``_undo`` for a step that made a new module of an old one: what it changed is told graph by graph.

    A diff of whole modules may pair lines of unlike graphs, so each graph gets a diff of its own.
    """
    before = parse_module("".join(_undo(str(after).splitlines(keepends=True), record.diff).old))
    _check_hashes(record, module_hash(before), module_hash(after))
    olds, news = ({graph.name: graph for graph in module.graphs} for module in (before, after))
    changes = []
    for name in dict.fromkeys([*news, *olds]):
        old, new = olds.get(name), news.get(name)
        if old != new:
            texts = [str(graph) if graph is not None else "" for graph in (old, new)]
            diff = text_diff(*texts, old=f"before {record.name}", new=f"after {record.name}")
            changes.append(_change(old, new, _undo(texts[1].splitlines(keepends=True), diff), diff))
    return before, changes


def _change(before: Graph | None, after: Graph | None, cut: _Cut, diff: str) -> Change:
    removed, added = set(cut.removed), set(cut.added)
    old, new = _op_lines(before), _op_lines(after)
    # Kept lines are the same in both and in one order, so a walk over both that pairs them is the diff.
    merged: list[tuple[str, int]] = []
    at = 0
    for index, line in enumerate(new):
        while at < len(old) and old[at] in removed:
            merged.append(("removed", at))
            at += 1
        if line in added:
            merged.append(("added", index))
        else:
            merged.append(("same", index))
            at += 1
    merged += [("removed", index) for index in range(at, len(old)) if old[index] in removed]
    name = after.name if after is not None else before.name if before is not None else ""
    return Change(graph=name, before=before, after=after, merged=tuple(merged), diff=diff)


def _op_lines(graph: Graph | None) -> list[int]:
    """The line of each op in the graph's text, from 0."""
    return [] if graph is None else [line_of_op(graph, index) - 1 for index in range(len(graph.ops))]


class _Misfit(Exception):
    """A diff that does not belong to the text it is undone on."""


def _check_hashes(record: PassRecord, before: str, after: str) -> None:
    if (before, after) != (record.before, record.after):
        raise _Misfit("what it leads from and to has other hashes than the record says")


def _undo(new: list[str], diff: str) -> _Cut:
    """The text before ``diff``, a unified diff as ``difflib`` writes it, was applied and gave ``new``."""
    cut = _Cut(old=[], removed=[], added=[])
    at = 0
    lines = diff.splitlines(keepends=True)
    number = 2  # behind the two lines of the head
    while number < len(lines):
        head = _HUNK.fullmatch(lines[number].rstrip("\n"))
        if head is None:
            raise _Misfit(f"line {number + 1} of the diff is no head of a hunk")
        number += 1
        length = int(head[4]) if head[4] is not None else 1
        start = int(head[3]) - (1 if length else 0)  # the head of a hunk without new lines names the line before it
        if not at <= start <= len(new):
            raise _Misfit(f"a hunk begins at line {start + 1} of {len(new)}")
        cut.old += new[at:start]
        at = start
        while number < len(lines) and not lines[number].startswith("@@"):
            sign, text = lines[number][:1], lines[number][1:]
            number += 1
            if sign == "-":
                cut.removed.append(len(cut.old))
                cut.old.append(text)
                continue
            if sign not in ("+", " ") or at >= len(new) or new[at] != text:
                raise _Misfit(f"line {number} of the diff is not what the text has")
            if sign == "+":
                cut.added.append(at)
            else:
                cut.old.append(text)
            at += 1
        if at != start + length:
            raise _Misfit("a hunk is not as long as its head says")
    cut.old += new[at:]
    return cut

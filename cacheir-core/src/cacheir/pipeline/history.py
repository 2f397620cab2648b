"""The history of one value: the passes that touched it, under the names that it had before and after them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cacheir.plugins.specs import PassRecord


@dataclass(frozen=True, kw_only=True)
class Touch:
    """One record that touched the value. ``lines`` are those of its diff that name it, ``- ...`` and ``+ ...``.

    ``names`` are the value's names there: after a rewrite the value that stands in for it counts as the same.
    """

    record: PassRecord
    names: tuple[str, ...]
    lines: tuple[str, ...]


def history(records: Sequence[PassRecord], name: str, *, mode: str, graph: str) -> list[Touch]:
    """What touched the value ``name`` of ``graph`` in ``mode``, first pass first.

    ``name`` may be a name that it had at any time; ``mode`` "" is the logical stage alone. Program steps are recorded
    over the whole module, so that a line of another graph in which the same name stands is among theirs.
    """
    own = [r for r in records if r.mode in ("", mode) and r.graph in ("", graph)]
    names = names_through(own, name)
    touches = []
    for record, before, after in zip(own, names, names[1:]):
        both = tuple(dict.fromkeys((*before, *after)))
        lines = tuple(_lines_with(record.diff, both))
        if lines:
            touches.append(Touch(record=record, names=both, lines=lines))
    return touches


def names_through(records: Sequence[PassRecord], name: str) -> list[tuple[str, ...]]:
    """The names of one value before the first record, between all of them, and after the last.

    ``name`` is looked for from the end back; where it was made instead of another, that one is its name before.
    Where it is gone at the end, what was made instead of it is its name after.
    """
    start = _last_seen(records, name)
    names: list[tuple[str, ...]] = [()] * (len(records) + 1)
    current: tuple[str, ...] = (name,)
    names[start] = current
    for index in range(start - 1, -1, -1):
        current = names[index] = _renamed(current, ((site[-1], site[1]) for site in records[index].sites if site[2:]))
    current = (name,)
    for index in range(start, len(records)):
        current = _renamed(current, ((site[1], site[-1]) for site in records[index].sites if site[2:]))
        names[index + 1] = current
    return names


def _last_seen(records: Sequence[PassRecord], name: str) -> int:
    """After how many records the name stood for the last time: all of them, unless one of them took it away."""
    for index in range(len(records) - 1, -1, -1):
        record = records[index]
        if any(name in site[2:] for site in record.sites):
            return index + 1
        if any(site[1] == name and name not in site[2:] for site in record.sites):
            return index
        gone = [line for line in record.diff.splitlines() if line.startswith("-") and _defines(line, name)]
        back = [line for line in record.diff.splitlines() if line.startswith("+") and _defines(line, name)]
        if back:
            return index + 1
        if gone:
            return index
    return len(records)


def _renamed(names: tuple[str, ...], pairs: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    table = dict(pairs)
    return tuple(dict.fromkeys(table.get(name, name) for name in names))


def _defines(line: str, name: str) -> bool:
    return re.search(rf"[%@]{re.escape(name)}: ", line.partition(" = ")[0]) is not None


def _lines_with(diff: str, names: Iterable[str]) -> Iterable[str]:
    """The changed lines of a unified diff in which one of ``names`` stands as a value or a weight."""
    pattern = re.compile("|".join(rf"[%@]{re.escape(name)}(?![\w.-])" for name in names) or r"(?!)")
    for line in diff.splitlines():
        if line[:1] in ("-", "+") and line[:3] not in ("---", "+++") and pattern.search(line):
            yield line

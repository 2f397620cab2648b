"""The history of a value for people and as JSON: each pass that touched it, with the lines of its diff."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cacheir.cli.show_graphs import fold_calls
from cacheir.errors import UsageError
from cacheir.ir.graph import Module
from cacheir.pipeline.history import Touch, history
from cacheir.plugins.specs import PassRecord

Place = tuple[str, str]  # mode, graph


def histories(
    modules: Mapping[str, Module], records: Sequence[PassRecord], name: str, *, modes: Sequence[str], graph: str = ""
) -> tuple[str, list[tuple[Place, list[Touch]]]]:
    """The value's plain name, and its history in each mode and graph that has it or had it.

    Raises UsageError for a name that no graph has and no pass took away.
    """
    plain = name.removeprefix("%").removeprefix("@")
    found = []
    for mode in modes:
        for each in modules[mode].graphs:
            if graph and each.name != graph.removeprefix("@"):
                continue
            touches = history(records, plain, mode=mode, graph=each.name)
            own = [touch for touch in touches if touch.record.graph == each.name]
            names = {value.name for op in each.ops for value in op.results}
            names |= {value.name for value in each.params} | set(each.recipes)
            if plain in names or own:
                found.append(((mode, each.name), touches))
    if not found:
        near = difflib.get_close_matches(plain, sorted(_all_names(modules, records)), n=3)
        raise UsageError(
            f"no graph has a value {name!r}, and no pass took one away",
            hint=f"did you mean {', '.join('%' + other for other in near)}?" if near else "--graph NAME shows a graph",
        )
    return plain, found


def histories_text(name: str, found: Sequence[tuple[Place, Sequence[Touch]]]) -> str:
    """A paragraph for each graph, equal ones of several modes told once."""
    groups: dict[str, list[Place]] = {}
    for (mode, graph), touches in found:
        groups.setdefault(f"@{graph}\n{_touches_text(touches)}", []).append((mode, graph))
    parts = []
    for text, places in groups.items():
        graph, _, body = text.partition("\n")
        parts.append(f"%{name} in {graph} of {' and '.join(mode for mode, _ in places)}\n{body}")
    return "\n\n".join(parts)


def histories_json(name: str, found: Sequence[tuple[Place, Sequence[Touch]]]) -> dict[str, Any]:
    """The same as JSON values."""
    return {
        "name": name,
        "places": [
            {
                "mode": mode,
                "graph": graph,
                "touched_by": [
                    {
                        "pass": touch.record.name,
                        "plugin": touch.record.plugin,
                        "stage": touch.record.stage.value,
                        "graph": touch.record.graph,
                        "names": list(touch.names),
                        "lines": list(touch.lines),
                        "notes": list(touch.record.notes),
                    }
                    for touch in touches
                ],
            }
            for (mode, graph), touches in found
        ],
    }


def _touches_text(touches: Sequence[Touch]) -> str:
    if not touches:
        return "  no pass touched it: it stands as the model's graph was written down"
    lines = []
    for touch in touches:
        record = touch.record
        whole = "" if record.graph else ", over the whole module"
        known = f", there {' and '.join('%' + name for name in touch.names)}" if len(touch.names) > 1 else ""
        lines.append(f"  {record.stage}: {record.name} ({record.plugin}){whole}{known}")
        lines += [f"    {line}" for line in fold_calls("\n".join(touch.lines)).splitlines()]
    return "\n".join(lines)


def _all_names(modules: Mapping[str, Module], records: Sequence[PassRecord]) -> Iterator[str]:
    for module in modules.values():
        for graph in module.graphs:
            yield from (value.name for op in graph.ops for value in op.results)
    for record in records:
        for line in record.diff.splitlines():
            if line.startswith("-"):
                yield from re.findall(r"%([\w.-]+): ", line.partition(" = ")[0])

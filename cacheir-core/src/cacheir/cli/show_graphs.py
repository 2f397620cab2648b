"""Graphs for people: the text of a module or a graph, with long runs of calls of one layer graph folded."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cacheir.errors import UsageError
from cacheir.ir.graph import Graph, Module
from cacheir.ir.printer import print_graph

# A run of this many calls of one graph is shown by its first and last.
FOLDED_RUN = 4

_CALL = re.compile(r"([ +-]\s+)%.*= call @(\S+)\(.*\{layer = (\d+)\}")


def module_text(module: Module, *, whole: bool = False) -> str:
    """The graphs of one mode, main first; runs of calls folded unless ``whole``."""
    texts = [print_graph(graph) for graph in module.graphs]
    text = "\n".join([f"module {module.mode}\n", *texts]) if module.mode else "\n".join(texts)
    return text if whole else fold_calls(text)


def fold_calls(text: str) -> str:
    """``text``, of graphs or of a diff, with a comment in place of the calls in the middle of each run."""
    lines = text.split("\n")
    shown: list[str] = []
    start = 0
    while start < len(lines):
        run = _run_length(lines, start)
        if run < FOLDED_RUN:
            shown.append(lines[start])
            start += 1
            continue
        first, last = _CALL.match(lines[start]), _CALL.match(lines[start + run - 1])
        assert first is not None and last is not None  # _run_length has matched them
        middle = f"{first[1]}// {run - 2} more calls of @{first[2]}, up to layer {last[3]}"
        shown += [lines[start], middle, lines[start + run - 1]]
        start += run
    return "\n".join(shown)


def find_mode(modes: Sequence[str], wanted: str) -> str:
    """``wanted`` where it is one of the modes; UsageError that lists them."""
    if wanted in modes:
        return wanted
    raise UsageError(f"there is no mode {wanted!r} here", hint=f"modes: {', '.join(modes)}")


def find_graph(modules: Sequence[Module], wanted: str) -> list[tuple[str, Graph]]:
    """The graphs called ``wanted``, one for each mode that has it; UsageError that lists the names there are."""
    name = wanted.removeprefix("@")
    found = [(module.mode, graph) for module in modules for graph in module.graphs if graph.name == name]
    if found:
        return found
    known = dict.fromkeys(graph.name for module in modules for graph in module.graphs)
    raise UsageError(f"there is no graph {wanted!r} here", hint=f"graphs: {', '.join(known)}")


def _run_length(lines: Sequence[str], start: int) -> int:
    """How many lines from ``start`` on are calls of one graph, all with the same sign of a diff before them."""
    first = _CALL.match(lines[start])
    length = 0
    while first is not None and start + length < len(lines):
        other = _CALL.match(lines[start + length])
        if other is None or other.group(1, 2) != first.group(1, 2):
            break
        length += 1
    return length

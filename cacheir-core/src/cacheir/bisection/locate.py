"""Where two neighbouring variants part: the graph, the op and the layer whose values are other ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cacheir.bisection.by_meaning import GREEDY, SAMPLED
from cacheir.bisection.distance import are_unlike, first_unlike
from cacheir.bisection.probe import Evidence, Where
from cacheir.ir.graph import Graph, Module, Op
from cacheir.pipeline.counted_rewrite import RewriteSite
from cacheir.pipeline.diff import text_diff
from cacheir.pipeline.heads import LOGITS

# Values are compared one by one, and a fault is larger where it happens than in the logits.
NOISE = 1e-4


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One prefix that was run: the modules and their answer. ``modules`` are by mode, "" for the logical one."""

    modules: Mapping[str, Module]
    answer: Evidence
    distance: float
    error: str = ""


def first_place(before: Variant, after: Variant) -> Where | None:
    """The first value that is another one, as near to its cause as values tell; None where all are the same."""
    where = first_unlike(before.answer, after.answer, NOISE)
    found = _entering(before, after, where)
    if found is None or found[1].startswith("head."):  # a head is handed what main yields, whatever its name
        found = _yielded(before, after) or found
    return _read_instead(before, after, found) if found else None


def _entering(before: Variant, after: Variant, where: Where | None) -> Where | None:
    """``where``, or the value of main that is handed to its layer, where that is another one already."""
    if where is None or where[2] is None:
        return where
    old, new = _handed_over(before, where), _handed_over(after, where)
    for param, value in new.items():
        places = (where[0], "main", None, old.get(param, "")), (where[0], "main", None, value)
        if are_unlike(before.answer, after.answer, *places, NOISE):
            return places[1]
    return where


def _read_instead(before: Variant, after: Variant, where: Where) -> Where:
    """``where``, or the value under a new name that its op reads where another one stood, if that is another one."""
    while True:
        old, new = _made_at(before, where), _made_at(after, where)
        if old is None or new is None or (old.name, len(old.operands)) != (new.name, len(new.operands)):
            return where
        pairs = [((*where[:3], was.name), (*where[:3], is_.name)) for was, is_ in zip(old.operands, new.operands)]
        others = [
            pair for pair in pairs if pair[0] != pair[1] and are_unlike(before.answer, after.answer, *pair, NOISE)
        ]
        if not others:
            return where
        where = others[0][1]


def _made_at(variant: Variant, where: Where) -> Op | None:
    """The op that makes the value ``where``."""
    module = _module_at(variant, where)
    graph = _graph(module, where[1]) if module else None
    return (
        next((op for op in graph.ops if any(value.name == where[3] for value in op.results)), None) if graph else None
    )


def _yielded(before: Variant, after: Variant) -> Where | None:
    """The value that main yields, where it is another one under another name."""
    old_names, new_names = (
        {module.main.outputs[0].name for module in variant.modules.values()} for variant in (before, after)
    )
    for step, graph, layer, node in after.answer.values:
        if graph != "main" or node not in new_names:
            continue
        new = (step, graph, layer, node)
        if any(are_unlike(before.answer, after.answer, (step, graph, layer, old), new, NOISE) for old in old_names):
            return new
    return None


def _handed_over(variant: Variant, where: Where) -> dict[str, str]:
    """Parameter -> value of main, in the call that runs the layer of ``where``."""
    module = _module_at(variant, where)
    callee = _graph(module, where[1]) if module else None
    if module is None or callee is None:
        return {}
    for op in module.main.ops:
        if op.callee == where[1] and op.attr("layer") == where[2]:
            return {param.name: value.name for param, value in zip(callee.params, op.operands)}
    return {}


def _module_at(variant: Variant, where: Where) -> Module | None:
    """The module that the step of ``where`` runs."""
    return variant.modules.get("" if "" in variant.modules else "decode" if where[0] else "prefill")


def changed_graph(before: Variant, after: Variant, site: RewriteSite | None, where: Where | None) -> tuple[str, str]:
    """(mode, graph): where the site is, else the one graph that the pass changed, else where values are other ones."""
    if site is not None:
        return site.mode, site.graph
    changed = [
        (mode, graph.name)
        for mode, module in after.modules.items()
        for graph in module.graphs
        if mode in before.modules and graph != _graph(before.modules[mode], graph.name)
    ]
    ran = "" if where is None else "decode" if where[0] else "prefill"
    for name in _suspects(before, after, where):
        found = [pair for pair in changed if pair[1] == name]
        if found:
            return max(found, key=lambda pair: pair[0] == ran)
    if changed:  # all of main is right, so that the fault comes after it
        head = LOGITS
        if _have_equal_logits(before, after):
            head = SAMPLED if before.answer.tokens == after.answer.tokens else GREEDY
        return max(changed, key=lambda pair: (pair[1] == head, pair[1].startswith("head."), pair[1] == "main"))
    return ("", where[1]) if where else ("", "")


def _suspects(before: Variant, after: Variant, where: Where | None) -> tuple[str, ...]:
    """The graphs that may have made the value ``where`` another one, the likeliest first.

    A value of main that a call makes is the called graph's where the call is what it was and is handed what it was.
    """
    if where is None:
        return ()
    call = _call_at(after, where)
    if call is None:
        return (where[1],)
    return (call.callee, where[1]) if _is_handed_the_same(before, after, where, call) else (where[1], call.callee)


def _call_at(variant: Variant, where: Where) -> Op | None:
    """The call of main that makes the value ``where``, None for another value."""
    module = _module_at(variant, where)
    ops = module.main.ops if module and where[1] == "main" else ()
    return next((op for op in ops if op.callee and any(value.name == where[3] for value in op.results)), None)


def _is_handed_the_same(before: Variant, after: Variant, where: Where, call: Op) -> bool:
    old = _call_at(before, where)
    if old is None or (old.callee, old.attrs, len(old.operands)) != (call.callee, call.attrs, len(call.operands)):
        return False
    for known, given in zip(old.operands, call.operands):
        places = (where[0], "main", None, known.name), (where[0], "main", None, given.name)
        seen = places[0] in before.answer.values and places[1] in after.answer.values
        if are_unlike(before.answer, after.answer, *places, NOISE) or (known.name != given.name and not seen):
            return False
    return True


def _have_equal_logits(before: Variant, after: Variant) -> bool:
    import numpy as np

    old, new = before.answer.logits, after.answer.logits
    return old is not None and new is not None and bool(np.allclose(old, new, rtol=0, atol=NOISE * float(old.std())))


def op_at(after: Variant, mode: str, graph: str, site: RewriteSite | None, where: Where | None) -> Op | None:
    """The op that the site made last, else the one whose value is another; what a graph yields, where main has that."""
    held = _graph(after.modules[mode], graph) if mode in after.modules else None
    if held is None:
        held = next((g for module in after.modules.values() if (g := _graph(module, graph)) is not None), None)
    name = (site.made[-1] if site.made else site.replaced) if site else (where[3] if where else "")
    call = _call_at(after, where) if where and not site else None
    if call is not None and held is not None and call.callee == graph:
        name = held.outputs[[value.name for value in call.results].index(name)].name
    return next((op for op in held.ops if any(v.name == name for v in op.results)), None) if held else None


def layer_at(before: Variant, after: Variant, where: Where | None) -> int | None:
    """The layer of a place; of a value in main, the one whose call makes it."""
    if where is None:
        return None
    _, graph, layer, node = where
    if layer is not None or graph != "main":
        return layer
    old, new = (
        [op for op in module.main.ops if op.callee] if (module := _module_at(variant, where)) else []
        for variant in (before, after)
    )
    # The number of a call that the pass wrote may be its fault: then the call that stood in its place is asked.
    asked = [*zip(old, old), *(zip(new, old) if len(new) == len(old) else zip(new, new))]
    for call, known in asked:
        number: Any = known.attr("layer")
        if any(value.name == node for value in call.results) and isinstance(number, int):
            return number
    return None


def layers_of(modules: Mapping[str, Module], mode: str, graph: str) -> Iterable[int]:
    """The layers that ``graph`` is called for."""
    module = modules.get(mode) or next(iter(modules.values()), None)
    for op in module.main.ops if module else ():
        number = op.attr("layer")
        if op.callee == graph and isinstance(number, int):
            yield number


def graph_diff(before: Variant, after: Variant, mode: str, graph: str, name: str) -> str:
    """What changed in a graph, as a unified diff; "" where one of the two variants does not have it."""
    old = _graph(before.modules[mode], graph) if mode in before.modules else None
    new = _graph(after.modules[mode], graph) if mode in after.modules else None
    if old is None or new is None:
        return ""
    return text_diff(str(old), str(new), old="right", new=f"wrong, by {name}")


def _graph(module: Module, name: str) -> Graph | None:
    return next((graph for graph in module.graphs if graph.name == name), None)

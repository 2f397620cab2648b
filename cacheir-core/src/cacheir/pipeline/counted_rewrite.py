"""Rewriting that is counted: each site is numbered, may be the last one allowed, and says what it made of what."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from cacheir.ir.graph import Graph, Op, Value, Weight
from cacheir.ir.rewriter import Rewriter, Rule
from cacheir.ir.types import Type
from cacheir.ir.weights import Derived


@dataclass(frozen=True)
class RewriteSite:
    """One site that a rule changed: the op it was offered, and the ops that it wrote, each by its first result."""

    number: int  # counted over the whole pipeline, from 1
    pass_name: str
    mode: str
    graph: str
    op: str
    replaced: str
    made: tuple[str, ...]


@dataclass
class RewriteBudget:
    """How many sites of a whole pipeline have been rewritten, and after how many rewriting stops (None: never).

    One object is shared by all contexts of a run: ``bisect`` halves the limit to find the first bad site.
    """

    limit: int | None = None
    used: int = 0

    @property
    def is_spent(self) -> bool:
        """Whether no further site may be rewritten."""
        return self.limit is not None and self.used >= self.limit


def counted_rewrite(
    graph: Graph, rule: Rule, budget: RewriteBudget, *, pass_name: str = "", mode: str = ""
) -> tuple[Graph, list[RewriteSite]]:
    """``graph`` rewritten by ``rule`` within ``budget``, and the sites; the same object where nothing changed.

    Ops and weights that the rewriting leaves without a reader go with it; what had no reader before stays. A new value
    gets its hint as its name where the value that had that name is gone.
    """
    rewriter = _CountingRewriter(graph)
    sites: list[RewriteSite] = []
    for op in graph.ops:
        if rewriter.is_replaced(op):
            continue
        renamed = rewriter.renamed(op)
        if budget.is_spent:
            rewriter.keep(renamed)
            continue
        rewriter.begin_site()
        stand_in = rule(renamed, rewriter)
        if stand_in is None:
            rewriter.keep(renamed)
        else:
            rewriter.substitute(renamed, tuple(stand_in))
        if stand_in is not None or rewriter.replaced_later:
            budget.used += 1
            made, replaced = tuple(rewriter.made), op.results[0].name
            sites.append(RewriteSite(budget.used, pass_name, mode, graph.name, op.name, replaced, made))
    changed = rewriter.finish()
    if changed is not graph:
        changed, short = _with_short_names(without_orphans(changed, graph), rewriter.hints)
        sites = [replace(site, made=tuple(short.get(name, name) for name in site.made)) for site in sites]
    return (graph if changed == graph else changed), sites


def without_orphans(graph: Graph, before: Graph) -> Graph:
    """``graph`` without the ops and weights that nothing reads but something read in ``before``, or that are new."""
    had_readers = set(before.uses()) | {value.name for value in before.outputs}
    had_readers |= {name for weight in before.weights for name in _parts(weight)}
    old = {value.name for op in before.ops for value in op.results} | set(before.recipes)

    def stays(name: str) -> bool:
        return name in needed or (name in old and name not in had_readers)

    needed = {value.name for value in graph.outputs}
    ops = []
    for op in reversed(graph.ops):
        if any(stays(value.name) for value in op.results):
            ops.append(op)
            needed.update(value.name for value in op.operands)
    recipes = {weight.name: _parts(weight) for weight in graph.weights}
    waiting = [name for name in recipes if stays(name)]
    while waiting:
        parts = [name for name in recipes.get(waiting.pop(), ()) if not stays(name)]
        needed.update(parts)
        waiting += parts
    weights = [weight for weight in graph.weights if stays(weight.name)]
    return replace(graph, ops=tuple(reversed(ops)), weights=tuple(weights))


class _CountingRewriter(Rewriter):
    """A rewriter that remembers what one site made, and what new values were meant to be called."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.hints: dict[str, str] = {}
        self.made: list[str] = []
        self.replaced_later = False

    def begin_site(self) -> None:
        """Start a new site."""
        self.made, self.replaced_later = [], False

    def fresh(self, hint: str) -> str:
        name = super().fresh(hint)
        self.hints[name] = hint
        return name

    def emit(self, name: str, operands: Iterable[Value], types: Iterable[Type], **rest: Any) -> tuple[Value, ...]:
        results = super().emit(name, operands, types, **rest)
        self.made.append(results[0].name)
        return results

    def stand_in(self, old: Value, new: Value) -> None:
        super().stand_in(old, new)
        self.replaced_later = True


def _with_short_names(graph: Graph, hints: dict[str, str]) -> tuple[Graph, dict[str, str]]:
    """``graph`` with its new values called by their ``hints`` where those are free now, and what was renamed."""
    taken = {value.name for value in _values(graph)}
    short: dict[str, str] = {}
    for name, hint in hints.items():
        if name in taken and hint not in taken:
            short[name] = hint
            taken = (taken - {name}) | {hint}
    if not short:
        return graph, short

    def renamed(values: Iterable[Value]) -> tuple[Value, ...]:
        return tuple(
            replace(value, name=short[value.name]) if value.origin == "op" and value.name in short else value
            for value in values
        )

    ops: tuple[Op, ...] = tuple(
        replace(op, operands=renamed(op.operands), results=renamed(op.results)) for op in graph.ops
    )
    return replace(graph, ops=ops, outputs=renamed(graph.outputs)), short


def _values(graph: Graph) -> Iterator[Value]:
    yield from graph.params
    yield from (weight.value for weight in graph.weights)
    yield from (value for op in graph.ops for value in op.results)


def _parts(weight: Weight) -> tuple[str, ...]:
    return weight.recipe.operands if isinstance(weight.recipe, Derived) else ()

"""Rewriting that is counted: each site is numbered, may be the last one allowed, and says what it made of what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
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
    graph: Graph,
    rule: Rule,
    budget: RewriteBudget,
    *,
    pass_name: str = "",
    mode: str = "",
    of: Collection[str] | None = None,
) -> tuple[Graph, list[RewriteSite]]:
    """``graph`` rewritten by ``rule`` within ``budget``, and the sites; the same object where nothing changed.

    ``of`` are the names of the ops to offer, None for all. Ops and weights that the rewriting leaves without a reader
    go with it; what had no reader before stays. A new value gets its hint as its name where the value that had that
    name is gone.
    """
    if of is not None and not any(name in graph.positions for name in of):
        return graph, []
    rewriter = _CountingRewriter(graph)
    sites: list[RewriteSite] = []
    for op in rewriter.walk(of):
        if budget.is_spent:
            rewriter.keep(op)
            continue
        rewriter.begin_site()
        stand_in = rule(op, rewriter)
        rewriter.settle(op, stand_in)
        if stand_in is not None or rewriter.replaced_later:
            budget.used += 1
            made, replaced = tuple(rewriter.made), op.results[0].name
            sites.append(RewriteSite(budget.used, pass_name, mode, graph.name, op.name, replaced, made))
    changed = rewriter.finish()
    if changed is not graph:
        short = rewriter.short_names(changed)
        sites = [replace(site, made=tuple(short.get(name, name) for name in site.made)) for site in sites]
        changed = _renamed(changed, short, rewriter.untouched).knowing(use_counts=rewriter.final_counts(short))
    return (graph if changed == graph else changed), sites


class _CountingRewriter(Rewriter):
    """A rewriter that remembers what one site made, what new values were meant to be called, and what was touched.

    Only what lost a reader, or is new, can be left without one, so orphans are looked for there and not in all ops.
    """

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.hints: dict[str, str] = {}
        self.made: list[str] = []
        self.replaced_later = False
        self.untouched = 0  # how many ops stand before the first new one
        self._doubtful: list[str] = []
        self._went: set[str] = set()  # results of ops that lost their last reader

    def begin_site(self) -> None:
        """Start a new site."""
        self.made, self.replaced_later = [], False

    def fresh(self, hint: str) -> str:
        name = super().fresh(hint)
        self.hints[name] = hint
        return name

    def emit(self, name: str, operands: Iterable[Value], types: Iterable[Type], **rest: Any) -> tuple[Value, ...]:
        if not self.hints:
            self.untouched = len(self._ops)
        results = super().emit(name, operands, types, **rest)
        self.made.append(results[0].name)
        self._doubtful += [value.name for value in results]
        return results

    def stand_in(self, old: Value, new: Value) -> None:
        super().stand_in(old, new)
        self.replaced_later = True

    def _unread(self, op: Op) -> None:
        super()._unread(op)
        self._doubtful += [value.name for value in op.operands]

    def _redirect(self, old: Value, new: Value) -> None:
        super()._redirect(old, new)
        self._doubtful.append(old.name)

    def finish(self) -> Graph:
        """The new graph without the ops and weights that nothing reads but something read before, or that are new."""
        graph = super().finish()
        if graph is self.graph:
            return graph
        dead = self._dead_ops()
        ops = graph.ops
        if dead:
            self.untouched -= sum([id(op) in dead for op in ops[: self.untouched]])
            ops = tuple([op for op in ops if id(op) not in dead])
        return replace(graph, ops=ops, weights=self._living(graph.weights))

    def _dead_ops(self) -> set[int]:
        """The identities of the ops that go, and their reads off the counts."""
        dead: set[int] = set()
        waiting = list(self._doubtful)
        while waiting:
            name = waiting.pop()
            op = None if self.uses[name] > 0 else self._maker(name)
            if op is None or id(op) in dead or any(map(self._stays, op.results)):
                continue
            dead.add(id(op))
            self._went.update(value.name for value in op.results)
            self._unread(op)
            waiting += [value.name for value in op.operands]
        return dead

    def _stays(self, value: Value) -> bool:
        if self.use_count(value) > 0:
            return True
        return value.name not in self.graph.use_counts and value.name in self.graph.places

    def _living(self, weights: tuple[Weight, ...]) -> tuple[Weight, ...]:
        recipes = {weight.name: _parts(weight) for weight in weights}
        read_before = {name for weight in self.graph.weights for name in _parts(weight)}
        needed = {
            weight.name
            for weight in weights
            if self.use_count(weight.value) > 0
            or (
                weight.name in self.graph.recipes
                and weight.name not in self.graph.use_counts
                and weight.name not in read_before
            )
        }
        waiting = list(needed)
        while waiting:
            parts = [name for name in recipes.get(waiting.pop(), ()) if name not in needed]
            needed.update(parts)
            waiting += parts
        return weights if len(needed) == len(weights) else tuple(w for w in weights if w.name in needed)

    def final_counts(self, short: dict[str, str]) -> Counter[str]:
        """The use counts of the finished graph, whose values are called by ``short``."""
        counts = self.uses
        for name in [*self._doubtful, *self._went]:
            if not counts[name]:
                counts.pop(name, None)
        for name, hint in short.items():
            if name in counts:
                counts[hint] = counts.pop(name)
        return counts

    def short_names(self, graph: Graph) -> dict[str, str]:
        """New values of ``graph``, which is finished, whose hints are free now: their names and their hints."""
        short: dict[str, str] = {}
        given: set[str] = set()
        for name, hint in self.hints.items():
            if self._is_taken(name, graph) and hint not in given and (hint in short or not self._is_taken(hint, graph)):
                short[name] = hint
                given.add(hint)
        return short

    def _is_taken(self, name: str, graph: Graph) -> bool:
        """Whether a value of ``graph``, which is finished, is called ``name``."""
        if name in graph.recipes or name in self.graph.recipes:
            return name in graph.recipes
        if name in self._made:
            return self._made[name] is not None and name not in self._went
        return name in self.graph.names and name not in self._went


def _renamed(graph: Graph, short: dict[str, str], untouched: int) -> Graph:
    """``graph`` with other names for some results of its ops, none of which is before number ``untouched``."""
    if not short:
        return graph

    def renamed(values: tuple[Value, ...]) -> tuple[Value, ...]:
        if not any(value.name in short and value.origin == "op" for value in values):
            return values
        return tuple(
            replace(value, name=short[value.name]) if value.origin == "op" and value.name in short else value
            for value in values
        )

    ops = list(graph.ops[:untouched])
    for op in graph.ops[untouched:]:
        operands, results = renamed(op.operands), renamed(op.results)
        same = operands is op.operands and results is op.results
        ops.append(op if same else replace(op, operands=operands, results=results))
    return replace(graph, ops=tuple(ops), outputs=renamed(graph.outputs))


def _parts(weight: Weight) -> tuple[str, ...]:
    return weight.recipe.operands if isinstance(weight.recipe, Derived) else ()

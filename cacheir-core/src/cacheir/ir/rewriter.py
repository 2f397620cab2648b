"""Rewriting a graph: one walk in order, the same object back where nothing changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from cacheir.ir.graph import Attr, Graph, Op, Value, Weight
from cacheir.ir.types import Type

Rule = Callable[[Op, "Rewriter"], "Iterable[Value] | None"]


def rewrite(graph: Graph, rule: Rule) -> Graph:
    """Offer every op to ``rule``. It returns the values that stand in for the op's results, or None to keep the op.

    The rule sees operands already renamed, and may emit ops and declare weights before it returns. It may also let new
    values stand in for results of ops that come later (``Rewriter.stand_in``): those ops go without being offered.
    """
    rewriter = Rewriter(graph)
    for op in graph.ops:
        if rewriter.is_replaced(op):
            continue
        renamed = rewriter.renamed(op)
        stand_in = rule(renamed, rewriter)
        if stand_in is None:
            rewriter.keep(renamed)
        else:
            rewriter.substitute(renamed, tuple(stand_in))
    return rewriter.finish()


class Rewriter:
    """The graph being rewritten: new ops in order, and which values stand in for which."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.changed = False
        self._ops: list[Op] = []
        self._weights: list[Weight] = list(graph.weights)
        self._stand_ins: dict[str, Value] = {}
        self._makers = graph.producers()
        self._producers: dict[str, Op] = {}
        # How often each value is read by the ops made so far, the ops still to come, and the yield.
        self._uses = Counter(graph.use_counts)
        self._names = set(graph.names)

    def renamed(self, op: Op) -> Op:
        """``op`` with stand-ins for its operands."""
        if not self._stand_ins:
            return op
        operands = tuple(map(self._current, op.operands))
        return op if operands == op.operands else replace(op, operands=operands)

    def producer(self, value: Value) -> Op | None:
        """The op emitted or kept so far that makes ``value``."""
        return self._producers.get(value.name)

    def use_count(self, value: Value) -> int:
        """How often ``value`` is read, as the graph stands now; an op that was kept counts though nothing reads it."""
        return self._uses[value.name]

    def keep(self, op: Op) -> None:
        """Carry ``op`` over."""
        self._append(op)

    def stand_in(self, old: Value, new: Value) -> None:
        """Let ``new`` be read instead of ``old``, a result of an op still to come, from here on."""
        self.changed = True
        self._redirect(old, new)
        maker = self._makers[old.name]
        if self.is_replaced(maker):
            self._uses.subtract(value.name for value in self.renamed(maker).operands)

    def is_replaced(self, op: Op) -> bool:
        """Whether all results of ``op`` have stand-ins already."""
        if not self._stand_ins or not op.results:
            return False
        return all(value.name in self._stand_ins for value in op.results)

    def substitute(self, op: Op, values: tuple[Value, ...]) -> None:
        """Let ``values`` stand in for the results of ``op``, which goes away."""
        if len(values) != len(op.results):
            raise ValueError(f"{op.name} has {len(op.results)} results, the rule gave {len(values)}")
        self.changed = True
        self._uses.subtract(value.name for value in op.operands)
        for old, new in zip(op.results, values):
            self._redirect(old, new)

    def _redirect(self, old: Value, new: Value) -> None:
        new = self._current(new)  # a rule may hand back a value that has a stand-in itself
        if new.name != old.name:
            self._stand_ins[old.name] = new
            self._uses[new.name] += self._uses.pop(old.name, 0)

    def _current(self, value: Value) -> Value:
        # Ends: ``_redirect`` only ever points at values that have no stand-in at that moment.
        while value.name in self._stand_ins:
            value = self._stand_ins[value.name]
        return value

    def _append(self, op: Op) -> None:
        self._ops.append(op)
        for value in op.results:
            self._producers[value.name] = op

    def fresh(self, hint: str) -> str:
        """A name not taken in the graph, made from ``hint``."""
        name, number = hint, 0
        while name in self._names:
            number += 1
            name = f"{hint}.{number}"
        self._names.add(name)
        return name

    def emit(
        self,
        name: str,
        operands: Iterable[Value],
        types: Iterable[Type],
        *,
        attrs: Mapping[str, Attr] | None = None,
        scope: str = "",
        hint: str = "v",
        hints: Iterable[str] | None = None,
    ) -> tuple[Value, ...]:
        """Add an op; its results get fresh names from ``hints`` (one each) or ``hint``."""
        result_types = tuple(types)
        names = tuple(hints) if hints is not None else (hint,) * len(result_types)
        results = tuple(Value(self.fresh(text), type_) for text, type_ in zip(names, result_types))
        # A rule may pass on values that it found in the graph as it was before the walk.
        current = tuple(map(self._current, operands))
        self._uses.update(value.name for value in current)
        self._append(Op(name, current, results, tuple(sorted((attrs or {}).items())), scope))
        self.changed = True
        return results

    def declare(self, weight: Weight) -> Value:
        """Add a weight and give back its value."""
        self._names.add(weight.name)
        self._weights.append(weight)
        self.changed = True
        return weight.value

    def finish(self) -> Graph:
        """The new graph, or the old object where nothing changed."""
        if not self.changed:
            return self.graph
        outputs = tuple(map(self._current, self.graph.outputs))
        return replace(self.graph, weights=tuple(self._weights), ops=tuple(self._ops), outputs=outputs)

"""Rewriting a graph: one walk in order, the same object back where nothing changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
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
    for op in rewriter.walk():
        rewriter.settle(op, rule(op, rewriter))
    return rewriter.finish()


def fresh_name(hint: str, taken: set[str]) -> str:
    """A name made from ``hint`` that ``taken`` does not hold, and now does."""
    name, number = hint, 0
    while name in taken:
        number += 1
        name = f"{hint}.{number}"
    taken.add(name)
    return name


class Rewriter:
    """The graph being rewritten: new ops in order, and which values stand in for which.

    What a walk does not touch is carried over in one piece and looked up in the tables of the graph itself, so that a
    main of many calls costs a rule that wants none of them next to nothing.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.changed = False
        self._ops: list[Op] = []
        self._weights: list[Weight] = list(graph.weights)
        self._stand_ins: dict[str, Value] = {}
        # Results of ops that were emitted, or kept with other operands; None for those of ops that are gone.
        self._made: dict[str, Op | None] = {}
        self._walked = 0  # how many ops of the graph are behind the walk
        # How often each value is read by the ops made so far, the ops still to come, and the yield.
        self._uses: Counter[str] | None = None
        self._names: set[str] | None = None

    def walk(self, of: Collection[str] | None = None) -> Iterator[Op]:
        """The ops to offer, in order and renamed: all, or those whose names are in ``of``. Settle each before the next.

        The others are carried over; those of which all results have stand-ins go.
        """
        ops = self.graph.ops
        wanted: Iterable[int] = range(len(ops))
        if of is not None:
            wanted = sorted(number for name in of for number in self.graph.positions.get(name, ()))
        for number in wanted:
            if self._walked < number:
                self._carry(number)
            op = ops[number]
            if self.is_replaced(op):
                self._gone(op)
            else:
                yield self.renamed(op)
            self._walked = number + 1
        self._carry(len(ops))

    def _carry(self, stop: int) -> None:
        """Carry over the ops before ``stop`` that were not offered."""
        between = self.graph.ops[self._walked : stop]
        if not self._stand_ins:
            self._ops += between
        for op in between if self._stand_ins else ():
            if self.is_replaced(op):
                self._gone(op)
            else:
                self.keep(self.renamed(op))
        self._walked = stop

    def settle(self, op: Op, stand_in: Iterable[Value] | None) -> None:
        """Keep ``op``, where a rule gave None for it, or let the values that it gave stand in."""
        if stand_in is None:
            self.keep(op)
        else:
            self.substitute(op, tuple(stand_in))

    def renamed(self, op: Op) -> Op:
        """``op`` with stand-ins for its operands."""
        if not self._stand_ins:
            return op
        operands = tuple(map(self._current, op.operands))
        return op if operands == op.operands else replace(op, operands=operands)

    def producer(self, value: Value) -> Op | None:
        """The op emitted or kept so far that makes ``value``."""
        return self._maker(value.name)

    def _maker(self, name: str) -> Op | None:
        if name in self._made:
            return self._made[name]
        for op in self._ops[-4:]:  # mostly one of the last: then no table of a long graph is needed
            for result in op.results:
                if result.name == name:
                    return op
        place = self.graph.places.get(name, self._walked)
        return self.graph.ops[place] if place < self._walked else None

    def use_count(self, value: Value) -> int:
        """How often ``value`` is read, as the graph stands now; an op that was kept counts though nothing reads it."""
        return (self.graph.use_counts if self._uses is None else self._uses).get(value.name, 0)

    @property
    def uses(self) -> Counter[str]:
        """Value name -> how often it is read as the graph stands now, to be written into."""
        if self._uses is None:
            self._uses = Counter(self.graph.use_counts)
        return self._uses

    def keep(self, op: Op) -> None:
        """Carry ``op`` over."""
        self._ops.append(op)
        if self._stand_ins:
            # Its operands may be others than in the graph; and where a rule let values stand in for the op itself and
            # keeps it all the same, its reads were taken off the counts.
            self._made.update((value.name, op) for value in op.results)
            if self.is_replaced(op):
                self.uses.update([value.name for value in op.operands])

    def stand_in(self, old: Value, new: Value) -> None:
        """Let ``new`` be read instead of ``old``, a result of an op still to come, from here on."""
        self.changed = True
        self._redirect(old, new)
        maker = self.graph.ops[self.graph.places[old.name]]
        if self.is_replaced(maker):
            self._unread(self.renamed(maker))

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
        self._gone(op)
        if not self.is_replaced(op):  # or ``stand_in`` has done so
            self._unread(op)
        for old, new in zip(op.results, values):
            self._redirect(old, new)

    def _gone(self, op: Op) -> None:
        self._made.update((value.name, None) for value in op.results)

    def _unread(self, op: Op) -> None:
        """Take what ``op`` reads off the counts."""
        self.uses.subtract([value.name for value in op.operands])

    def _redirect(self, old: Value, new: Value) -> None:
        new = self._current(new)  # a rule may hand back a value that has a stand-in itself
        if new.name != old.name:
            self._stand_ins[old.name] = new
            self.uses[new.name] += self.uses.pop(old.name, 0)

    def _current(self, value: Value) -> Value:
        # Ends: ``_redirect`` only ever points at values that have no stand-in at that moment.
        while value.name in self._stand_ins:
            value = self._stand_ins[value.name]
        return value

    def fresh(self, hint: str) -> str:
        """A name not taken in the graph, made from ``hint``."""
        if self._names is None:
            self._names = set(self.graph.names)
        return fresh_name(hint, self._names)

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
        self.uses.update([value.name for value in current])
        op = Op(name, current, results, tuple(sorted((attrs or {}).items())), scope)
        self._ops.append(op)
        self._made.update((value.name, op) for value in results)
        self.changed = True
        return results

    def declare(self, weight: Weight) -> Value:
        """Add a weight and give back its value."""
        if self._names is None:
            self._names = set(self.graph.names)
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

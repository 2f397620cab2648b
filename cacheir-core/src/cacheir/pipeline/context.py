"""What a pass may know besides its graph, and the counted way to rewrite it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from cacheir.ir.graph import Graph, Op, Value
from cacheir.ir.rewriter import Rewriter, Rule
from cacheir.ir.weights import Derived

if TYPE_CHECKING:
    from cacheir.ir.opdef import OpDef
    from cacheir.ir.types import Type
    from cacheir.models.decoder_spec import DecoderSpec


@dataclass(frozen=True)
class RewriteSite:
    """One site that a rule changed: the op it was offered, and the ops that it wrote, each by its first result."""

    number: int  # counted over the whole pipeline, from 1
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


@dataclass(frozen=True, kw_only=True)
class PassContext:
    """Handed to a pass with its graph: ``mode`` and ``target`` are ``""`` where the stage does not know them.

    ``options`` is an instance of the pass's own options class, ``spec`` the decoder where the model is one, ``quant``
    the quantiser's name, ``ops`` the definitions of all ops by name.
    """

    ops: Mapping[str, OpDef]
    mode: str = ""
    target: str = ""
    quant: str = ""
    options: Any = None
    spec: DecoderSpec | None = None
    budget: RewriteBudget = field(default_factory=RewriteBudget)
    notes: list[str] = field(default_factory=list)
    sites: list[RewriteSite] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Say something about this run of the pass: a match, or why there was none. It lands in the pass's record."""
        self.notes.append(text)

    def rewrite(self, graph: Graph, rule: Rule) -> Graph:
        """Offer every op to ``rule``, as ``graph.rewrite`` does, and count the sites where it changed something.

        A site is one op for which the rule gave stand-ins, or let values stand in for later results. Once the budget
        is spent the rule is not asked any more, so a rule must change all of a match at one site. Ops and weights that
        the rewriting leaves without a reader go with it; what had no reader before stays.
        """
        rewriter = _CountingRewriter(graph)
        for op in graph.ops:
            if rewriter.is_replaced(op):
                continue
            renamed = rewriter.renamed(op)
            if self.budget.is_spent:
                rewriter.keep(renamed)
                continue
            rewriter.begin()
            stand_in = rule(renamed, rewriter)
            if stand_in is None and not rewriter.replaced_later:
                rewriter.keep(renamed)
                continue
            self.budget.used += 1
            self.sites.append(
                RewriteSite(self.budget.used, graph.name, op.name, op.results[0].name, tuple(rewriter.made))
            )
            if stand_in is None:
                rewriter.keep(renamed)
            else:
                rewriter.substitute(renamed, tuple(stand_in))
        changed = rewriter.finish()
        if changed is graph:
            return graph
        changed = without_orphans(changed, graph)
        return graph if changed == graph else changed


class _CountingRewriter(Rewriter):
    """A rewriter that remembers what one site made."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.made: list[str] = []
        self.replaced_later = False

    def begin(self) -> None:
        """Start a new site."""
        self.made, self.replaced_later = [], False

    def emit(self, name: str, operands: Iterable[Value], types: Iterable[Type], **rest: Any) -> tuple[Value, ...]:
        results = super().emit(name, operands, types, **rest)
        self.made.append(results[0].name)
        return results

    def stand_in(self, old: Value, new: Value) -> None:
        super().stand_in(old, new)
        self.replaced_later = True


def without_orphans(graph: Graph, before: Graph) -> Graph:
    """``graph`` without the ops and weights that nothing reads but something read in ``before``, or that are new."""
    had_readers = set(before.uses()) | {value.name for value in before.outputs} | _recipe_operands(before)
    old = {value.name for op in before.ops for value in op.results} | set(before.recipes)

    def may_go(name: str) -> bool:
        return name in had_readers or name not in old

    needed = {value.name for value in graph.outputs}
    ops: list[Op] = []
    for op in reversed(graph.ops):
        if any(value.name in needed or not may_go(value.name) for value in op.results):
            ops.append(op)
            needed.update(value.name for value in op.operands)
    weights = []
    for weight in reversed(graph.weights):
        if weight.name in needed or not may_go(weight.name):
            weights.append(weight)
            needed.update(weight.recipe.operands if isinstance(weight.recipe, Derived) else ())
    return replace(graph, ops=tuple(reversed(ops)), weights=tuple(reversed(weights)))


def _recipe_operands(graph: Graph) -> set[str]:
    return {name for weight in graph.weights if isinstance(weight.recipe, Derived) for name in weight.recipe.operands}

"""What a pass may know besides its graph, and the counted way to rewrite it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cacheir.ir.graph import Attr, Graph, Op
from cacheir.ir.rewriter import Rule
from cacheir.pipeline.counted_rewrite import RewriteBudget, RewriteSite, counted_rewrite

if TYPE_CHECKING:
    from cacheir.ir.opdef import OpDef
    from cacheir.ir.types import Type
    from cacheir.models.decoder_spec import DecoderSpec


@dataclass(frozen=True, kw_only=True)
class PassContext:
    """Handed to a pass with its graph: ``mode`` and ``target`` are ``""`` where the stage does not know them.

    ``options`` is an instance of the pass's own options class, ``spec`` the decoder where the model is one, ``quant``
    the quantiser's name and ``quantized`` what it plans for this graph (weight name -> format), ``ops`` the definitions
    of all ops by name.
    """

    ops: Mapping[str, OpDef]
    pass_name: str = ""
    mode: str = ""
    target: str = ""
    quant: str = ""
    quantized: Mapping[str, str] = field(default_factory=dict)
    options: Any = None
    spec: DecoderSpec | None = None
    budget: RewriteBudget = field(default_factory=RewriteBudget)
    notes: list[str] = field(default_factory=list)
    sites: list[RewriteSite] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Say something about this run of the pass: a match, or why there was none. It lands in the pass's record."""
        self.notes.append(text)

    def infer(self, name: str, types: Sequence[Type], attrs: Mapping[str, Attr]) -> tuple[Type, ...]:
        """The result types of the op ``name`` for operands of ``types``; TypeRuleError where they do not fit."""
        return self.ops[name].infer_types(types, attrs)

    def evaluate(self, op: Op, operands: Sequence[Any]) -> tuple[Any, ...]:
        """The results of ``op`` on NumPy arrays (bf16 as uint16), by its reference kernel or its decomposition."""
        from cacheir.reference.interpreter import Interpreter

        return Interpreter(self.ops).apply(op, operands, {})

    def rewrite(self, graph: Graph, rule: Rule, *, of: Collection[str] | None = None) -> Graph:
        """Offer every op to ``rule``, as ``graph.rewrite`` does, and count the sites where it changed something.

        ``of`` are the names of the only ops that the rule wants: the others are not offered, and a graph without such
        an op is not walked at all. A site is one op for which the rule gave stand-ins, or let values stand in for
        later results. Once the budget is spent the rule is not asked any more, so a rule must change all of a match at
        one site. Ops and weights that the rewriting leaves without a reader go with it; what had no reader before
        stays.
        """
        changed, sites = counted_rewrite(graph, rule, self.budget, pass_name=self.pass_name, mode=self.mode, of=of)
        self.sites.extend(sites)
        return changed

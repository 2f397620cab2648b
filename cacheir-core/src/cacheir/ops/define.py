"""Short ways to write a definition whose meaning and examples lie where their names say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from cacheir.ir.graph import Attr
from cacheir.ir.opdef import AttrDef, OpDef, Operand
from cacheir.ir.types import Type

Infer = Callable[[Sequence[Type], Mapping[str, Attr]], Sequence[Type]]


def primitive(
    subject: str,
    name: str,
    operands: Sequence[Operand],
    infer: Infer,
    doc: str,
    *,
    attrs: Sequence[AttrDef] = (),
    results: tuple[str, ...] = ("out",),
) -> OpDef:
    """A ``std`` op whose reference kernel is ``cacheir.reference.SUBJECT:NAME``."""
    return OpDef(
        name=name,
        dialect="std",
        operands=tuple(operands),
        results=results,
        attrs=tuple(attrs),
        infer=infer,
        doc=doc,
        reference=f"cacheir.reference.{subject}:{name}",
        examples=f"cacheir.ops.examples.std:{name}",
    )


def composite(
    dialect: str,
    subject: str,
    name: str,
    operands: Sequence[Operand],
    infer: Infer,
    doc: str,
    *,
    attrs: Sequence[AttrDef] = (),
    results: tuple[str, ...] = ("out",),
) -> OpDef:
    """An op of ``dialect`` whose decomposition is ``cacheir.ops.decompositions.SUBJECT:NAME``."""
    return OpDef(
        name=name,
        dialect=dialect,
        operands=tuple(operands),
        results=results,
        attrs=tuple(attrs),
        infer=infer,
        doc=doc,
        decompose=f"cacheir.ops.decompositions.{subject}:{name}",
        examples=f"cacheir.ops.examples.{dialect}:{name}",
    )

"""The page of all ops, docs/ops.md, written from their definitions: ``python -m cacheir.ops.page > docs/ops.md``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cacheir.ir.opdef import DIALECTS, AttrDef, Effects, OpDef, Operand

_TITLES = {
    "std": "std: primitives",
    "nn": "nn: what a model is made of",
    "kv": "kv: keys and values that outlive a step",
    "quant": "quant: block formats",
    "fused": "fused: several ops in one",
}

_INTRODUCTION = """\
# Ops

Written by `python -m cacheir.ops.page` from the definitions in `cacheir-core/src/cacheir/ops/`; a test compares.

A *primitive* means what its NumPy kernel in `cacheir/reference/` computes. A *composite* means its decomposition in
`cacheir/ops/decompositions/`, a graph of simpler ops. Definitions compute in float32 (float64 for f64) and round once,
at each result. Transcendental functions are worked out in float64 and rounded once. bf16 is widened before and rounded
after, to nearest even. An operand that is "float or quantised" is unpacked first.

Letters: T tokens, B rows, H hidden, N query heads, K key/value heads, D head size, F feed-forward, V vocabulary,
R rows with a head, M pages of a row, S keys. `[...]` stands for any axes. Shapes in attributes are sizes as text:
`["T", "9", "64"]`. Two operands *broadcast* when their axes, paired from the last on, are equal or 1.
"""


def ops_page(ops: Mapping[str, OpDef]) -> str:
    """The page in Markdown: a table of contents, then an entry for each op, by dialect in the order of definition."""
    parts = [_INTRODUCTION]
    for dialect in DIALECTS:
        members = [definition for definition in ops.values() if definition.dialect == dialect]
        if members:
            parts.append(f"## {_TITLES.get(dialect, dialect)}\n")
            parts.append(" · ".join(f"[`{op.name}`](#{op.name})" for op in members) + "\n")
            parts += [_entry(definition) for definition in members]
    return "\n".join(parts)


def _entry(op: OpDef) -> str:
    lines = [f"### {op.name}", "", f"`{_signature(op)}`", "", _sentence(op)]
    if op.operands:
        lines += ["", *(f"- `{operand.name}`: {operand.doc}{_note(operand)}" for operand in op.operands)]
    if op.attrs:
        lines += ["", *_attribute_lines(op.attrs)]
    return "\n".join([*lines, ""])


def _sentence(op: OpDef) -> str:
    kind = "Primitive" if op.reference is not None else "Composite"
    changes = ", changes the state" if op.effects is Effects.STATE else ""
    return f"{kind}{changes}: {op.doc}."


def _signature(op: OpDef) -> str:
    operands = []
    for operand in op.operands:
        text = f"%{operand.name}" + ("..." if operand.variadic else "")
        operands.append(f"[{text}]" if operand.optional else text)
    return f"{', '.join('%' + name for name in op.results)} = {op.name}({', '.join(operands)})"


def _note(operand: Operand) -> str:
    return " (optional)" if operand.optional else " (any number)" if operand.variadic else ""


def _attribute_lines(attrs: Iterable[AttrDef]) -> list[str]:
    rows = [f"| `{a.name}` | {a.kind.__name__} | {_default(a)} | {a.doc} |" for a in attrs]
    return ["| attribute | kind | default | |", "|---|---|---|---|", *rows]


def _default(attr: AttrDef) -> str:
    value = attr.default
    if value is None:
        return "may be absent" if attr.optional else "must be given"
    return "`[]`" if value == () else f"`{str(value).lower() if isinstance(value, bool) else value}`"


if __name__ == "__main__":
    import sys

    from cacheir.ops.table import core_ops

    sys.stdout.write(ops_page(core_ops()))

"""Ops: each is known, has the operands and attributes of its definition, and makes the types that it infers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from cacheir.errors import TypeRuleError
from cacheir.ir.graph import LAYER, Graph, Op
from cacheir.ir.opdef import OpDef
from cacheir.ir.printer import line_of_op
from cacheir.ir.rules.finding import Finding, Setting
from cacheir.ir.spelling import MAX_INTEGER_BITS, MAX_NESTING, is_encodable
from cacheir.ir.types import Type


def operations(graph: Graph, setting: Setting) -> Iterator[Finding]:
    """Findings ``unknown-op``, ``operand-count``, ``attribute-order``, ``attribute-value``, ``unknown-attribute``,
    ``missing-attribute``, ``attribute-type``, ``refused-operands``, ``rule-failed`` and ``wrong-result-type``.

    Calls have rules of their own.
    """
    for number, op in enumerate(graph.ops):
        faults = list(_attribute_values(op))
        if op.name != "call":
            definition = setting.ops.get(op.name)
            if definition is None:
                faults.append(("unknown-op", f"there is no op {op.name}"))
            else:
                faults += declaration_faults(op, definition)
                # A rule may count on operands and attributes being as declared, so it is asked only then.
                faults += () if faults else _inferred(op, definition)
        yield from (Finding(line_of_op(graph, number), rule, text) for rule, text in faults)


def attribute_fault(value: object, depth: int = 0) -> str:
    """What is wrong with an attribute's value, ``""`` where nothing is."""
    if depth > MAX_NESTING:
        return f"nests lists deeper than {MAX_NESTING}"
    if type(value) is tuple:
        return next(filter(None, (attribute_fault(item, depth + 1) for item in value)), "")
    if type(value) is float:
        return "" if math.isfinite(value) else f"is {value}, which is not finite"
    if type(value) is int:
        return "" if value.bit_length() <= MAX_INTEGER_BITS else "is too large to be written"
    if type(value) is str:
        return "" if is_encodable(value) else "has half of a surrogate pair"
    if type(value) is bool or value is LAYER:
        return ""
    return f"is of type {type(value).__name__}, not int, float, bool, str, tuple or $layer"


def _attribute_values(op: Op) -> Iterator[tuple[str, str]]:
    for kind, pairs in (("attribute", op.attrs), ("hint", op.hints)):
        names = [name for name, _ in pairs]
        if names != sorted(set(names)):
            yield "attribute-order", f"the {kind}s of {op.name} are not sorted, each once: {', '.join(names)}"
        for name, value in pairs:
            fault = attribute_fault(value) or ("is $layer" if kind == "hint" and value is LAYER else "")
            if fault:
                yield "attribute-value", f"{kind} {name} of {op.name} {fault}"


def declaration_faults(op: Op, definition: OpDef) -> Iterator[tuple[str, str]]:
    """Pairs of a rule's name and a sentence: operands and attributes that are not as ``definition`` declares them."""
    fewest = sum(not (operand.optional or operand.variadic) for operand in definition.operands)
    most = len(definition.operands) if not _is_variadic(definition) else len(op.operands)
    if not fewest <= len(op.operands) <= most:
        wanted = f"{fewest} to {most}" if most > fewest else str(fewest)
        wanted = f"{fewest} or more" if _is_variadic(definition) else wanted
        yield "operand-count", f"{op.name} takes {wanted} operands, not {len(op.operands)}"
    known = {attr.name: attr for attr in definition.attrs}
    given = dict(op.attrs)
    for name in sorted(set(given) - set(known)):
        yield "unknown-attribute", f"{op.name} has no attribute {name}; it has {', '.join(sorted(known)) or 'none'}"
    needed = {name for name, attr in known.items() if not attr.optional}
    for name in sorted(needed - set(definition.with_defaults(given))):
        yield "missing-attribute", f"{op.name} needs the attribute {name}"
    for name, value in given.items():
        is_layer = value is LAYER and name == "layer"
        if name in known and type(value) is not known[name].kind and not is_layer:
            kinds = f"of type {known[name].kind.__name__}, not {type(value).__name__}"
            yield "attribute-type", f"attribute {name} of {op.name} must be {kinds}"


def _is_variadic(definition: OpDef) -> bool:
    return bool(definition.operands) and definition.operands[-1].variadic


def _inferred(op: Op, definition: OpDef) -> Iterator[tuple[str, str]]:
    types = [value.type for value in op.operands]
    try:
        inferred: Sequence[Type] = definition.infer_types(types, dict(op.attrs))
    except TypeRuleError as error:
        yield "refused-operands", f"{op.name}: {error}"
        return
    except Exception as error:  # noqa: BLE001 - the rule may be a plugin's: it is blamed by name, and others go on
        yield "rule-failed", f"the inference rule of {op.name} raised {type(error).__name__}: {error}"
        return
    if len(inferred) != len(op.results):
        yield "wrong-result-type", f"{op.name} makes {len(inferred)} results, not {len(op.results)}"
    for value, type_ in zip(op.results, inferred):
        if value.type != type_:
            yield "wrong-result-type", f"{op.name} makes {value} of type {type_}, not {value.type}"

"""A small table of ops for the tests of the IR, so that they do not hang on the definitions of core's own ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from cacheir.errors import TypeRuleError
from cacheir.ir import AttrDef, Effects, OpDef, Operand, TensorType, Type
from cacheir.ir.graph import Attr

# A busy machine is no fault of the code under test: no test of this folder fails for being slow.
settings.register_profile("ir", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ir")

GOLDEN = Path(__file__).parent / "golden"


def infer_like_first(types: Sequence[Type], attrs: Mapping[str, Attr]) -> Sequence[Type]:
    return (types[0],)


def infer_add(types: Sequence[Type], attrs: Mapping[str, Attr]) -> Sequence[Type]:
    if types[0] != types[1]:
        raise TypeRuleError(f"the operands differ: {types[0]} and {types[1]}")
    return (types[0],)


def infer_linear(types: Sequence[Type], attrs: Mapping[str, Attr]) -> Sequence[Type]:
    x, weight = types
    assert isinstance(x, TensorType)
    if weight.shape[1] != x.shape[-1]:  # type: ignore[union-attr]
        raise TypeRuleError(f"the weight {weight} does not take rows of {x.shape[-1]}")
    return (TensorType(x.dtype, (*x.shape[:-1], weight.shape[0])),)  # type: ignore[union-attr]


def infer_split(types: Sequence[Type], attrs: Mapping[str, Attr]) -> Sequence[Type]:
    return (types[0], types[0])


def infer_crashing(types: Sequence[Type], attrs: Mapping[str, Attr]) -> Sequence[Type]:
    return (types[7],)


def define(name: str, operands: Sequence[Operand], infer: object, *attrs: AttrDef, **more: object) -> OpDef:
    results = more.pop("results", ("out",))
    return OpDef(
        name=name,
        dialect="std",
        operands=tuple(operands),
        results=results,  # type: ignore[arg-type]
        infer=infer,  # type: ignore[arg-type]
        attrs=attrs,
        doc="",
        reference="nowhere:at_all",
        **more,  # type: ignore[arg-type]
    )


X, Y = Operand("x", ""), Operand("y", "")
LAYER_ATTR = AttrDef("layer", int)


@pytest.fixture(scope="session")
def ops() -> dict[str, OpDef]:
    """Ops with simple rules: mostly, the result is like the first operand."""
    table = (
        define("rms_norm", (X, Operand("weight", "")), infer_like_first, AttrDef("eps", float, 1e-5)),
        define("linear", (X, Operand("weight", "")), infer_linear),
        define("add", (X, Y), infer_add),
        define("multiply", (X, Y), infer_add),
        define("silu", (X,), infer_like_first),
        define("split", (X,), infer_split, results=("left", "right")),
        define("join", (Operand("parts", "", variadic=True),), infer_like_first, AttrDef("axis", int)),
        define("gather", (X, Operand("rows", ""), Operand("mask", "", optional=True)), infer_like_first),
        define(
            "everything",
            (X,),
            infer_like_first,
            AttrDef("flag", bool, False),
            AttrDef("shape", tuple),
            AttrDef("word", str, "a"),
        ),
        define("crashing", (X,), infer_crashing),
        define("grouped_query_attention", (X, Y, Y), infer_like_first),
        define("kv_append", (Operand("kv", ""), X, Y), infer_like_first, LAYER_ATTR, effects=Effects.STATE),
        define("attention", (X, Operand("kv", "")), infer_like_first, LAYER_ATTR),
        define("leak", (Operand("kv", ""),), infer_like_first),
    )
    return {definition.name: definition for definition in table}


@pytest.fixture(scope="session")
def golden_texts() -> dict[str, str]:
    """File name -> text of every golden file."""
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(GOLDEN.glob("*.cir"))}

"""Ops of the heads: choose the rows that need one, the greedy token, a sampled token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cacheir.errors import TypeRuleError
from cacheir.ir.dims import Dim
from cacheir.ir.graph import Attr
from cacheir.ir.opdef import OpDef, Operand
from cacheir.ir.types import TensorType, Type
from cacheir.ops.define import composite
from cacheir.ops.linear import linear_result
from cacheir.ops.random import DRAW, POSITION, SEED
from cacheir.ops.rules import constant_size, floats, of_dtype, shaped, tensor


def infer_gather_rows(types: Sequence[Type], attrs: Mapping[str, Attr]) -> Sequence[Type]:
    """x [T, ...] and rows [R] make [R, ...]."""
    x, rows = tensor(types[0], "x"), of_dtype(types[1], "rows", "i32", 1)
    if not x.shape:
        raise TypeRuleError("x must have rows")
    return (TensorType(x.dtype, rows.shape + x.shape[1:]),)


def infer_greedy_token(types: Sequence[Type], attrs: Mapping[str, Attr]) -> Sequence[Type]:
    """i32 [R]."""
    logits = floats(types[0], "logits", 2)
    if logits.shape[1] == Dim(0):
        raise TypeRuleError("logits must cover at least one token")
    return (TensorType("i32", logits.shape[:1]),)


def infer_head_argmax(types: Sequence[Type], attrs: Mapping[str, Attr]) -> Sequence[Type]:
    """i32 [R]."""
    logits = linear_result(floats(types[0], "rows", 2), types[1], types[2] if len(types) > 2 else None)
    if logits.shape[1] == Dim(0):
        raise TypeRuleError("weight must have at least one row, the vocabulary")
    return (TensorType("i32", logits.shape[:1]),)


def infer_sample(types: Sequence[Type], attrs: Mapping[str, Attr]) -> Sequence[Type]:
    """i32 [R]."""
    logits = of_dtype(types[0], "logits", "f32", 2)
    vocabulary = constant_size(logits.shape[1], "the vocabulary of logits")
    if vocabulary < 1:
        raise TypeRuleError("logits must cover at least one token")
    for operand, dtype, type_ in zip(_SAMPLE[1:8], _SAMPLE_DTYPES, types[1:8]):
        shaped(of_dtype(type_, operand.name, dtype, 1), operand.name, logits.shape[0])
    if len(types) > 8:
        shaped(of_dtype(types[8], "mask", "u32", 2), "mask", logits.shape[0], -(-vocabulary // 32))
    return (TensorType("i32", logits.shape[:1]),)


_SAMPLE_DTYPES = ("f32", "i32", "f32", "f32", "u64", "i32", "i32")
_SAMPLE = (
    Operand("logits", "f32 [R, V]"),
    Operand("temperature", "f32 [R], what the logits are divided by; 0 takes the largest logit"),
    Operand("top_k", "i32 [R], how many tokens stay; 0 for all"),
    Operand("top_p", "f32 [R], how much probability stays; 1 for all"),
    Operand("min_p", "f32 [R], the least probability as a share of the largest; 0 for none"),
    SEED,
    POSITION,
    DRAW,
    Operand("mask", "u32 [R, ceil(V / 32)]: token v may be chosen if bit v % 32 of word v // 32 is 1", optional=True),
)

HEAD: tuple[OpDef, ...] = (
    composite(
        "nn",
        "head",
        "gather_rows",
        (Operand("x", "any [T, ...]"), Operand("rows", "i32 [R], each from 0 to T - 1")),
        infer_gather_rows,
        "the chosen rows of x",
    ),
    composite(
        "nn",
        "head",
        "greedy_token",
        (Operand("logits", "float [R, V]"),),
        infer_greedy_token,
        "the token with the largest logit, the lowest id of a tie; -1 where a logit is NaN or +infinity, or all are "
        "-infinity",
    ),
    composite(
        "fused",
        "head",
        "head_argmax",
        (
            Operand("rows", "float [R, H]"),
            Operand("weight", "float or quantised [V, H]"),
            Operand("bias", "float [V]", optional=True),
        ),
        infer_head_argmax,
        "the greedy_token of logits that are compared in f32",
    ),
    OpDef(
        name="sample",
        dialect="fused",
        operands=_SAMPLE,
        results=("out",),
        infer=infer_sample,
        doc="a token of each row drawn by its own parameters, as cacheir.reference.sampling says; "
        "-1 where no token may be chosen or a logit is NaN or +infinity",
        reference="cacheir.reference.sampling:sample",
        examples="cacheir.ops.examples.fused:sample",
    ),
)

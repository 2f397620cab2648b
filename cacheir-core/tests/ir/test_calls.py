"""Calls: the callee's sizes are bound from the operands, or refused in words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cacheir.errors import TypeRuleError
from cacheir.ir import Dim, Graph, TensorType, Type, Value, parse_graph, parse_type
from cacheir.ir.calls import bind_sizes, call_types, substitute
from cacheir.testing.strategies import DIMS, sizes, tensor_types

NAMES = [name for name, _, _ in DIMS]


def callee(params: list[str], outputs: list[str]) -> Graph:
    inputs = tuple(Value(f"p{n}", parse_type(text), "input") for n, text in enumerate(params))
    return Graph("layer", (), inputs, (), (), tuple(Value(f"o{n}", parse_type(text)) for n, text in enumerate(outputs)))


def types(*texts: str) -> list[Type]:
    return [parse_type(text) for text in texts]


@pytest.mark.parametrize(
    ("params", "operands", "outputs", "results"),
    [
        (["f32[T, 4]"], ["f32[T, 4]"], ["f32[T]"], ["f32[T]"]),
        (["f32[T, 4]"], ["f32[B, 4]"], ["f32[T, 2]"], ["f32[B, 2]"]),
        (["f32[T, 4]"], ["f32[7, 4]"], ["f32[2*T + 1]"], ["f32[15]"]),
        (["i32[B + 1]"], ["i32[R + 4]"], ["f32[B]"], ["f32[R + 3]"]),
        (["i32[2*B]"], ["i32[4*R + 6]"], ["f32[B]"], ["f32[2*R + 3]"]),
        (["i32[B + T]", "i32[T]"], ["i32[R + M]", "i32[R]"], ["f32[B, T]"], ["f32[M, R]"]),
        (["i32[B + T]", "i32[B + 2*T]"], ["i32[5]", "i32[8]"], ["f32[B, T]"], None),
        (["i32[T]", "i32[B]"], ["i32[B]", "i32[T]"], ["f32[T, B]"], ["f32[B, T]"]),
        (["q4_1<f32>[T, 32]"], ["q4_1<f32>[3, 32]"], ["f32[T]"], ["f32[3]"]),
        (["i32[2*B]"], ["i32[3]"], [], None),
        (["i32[2*B]"], ["i32[2*R + 1]"], [], None),
        (["i32[T]", "i32[T]"], ["i32[2]", "i32[3]"], [], None),
        (["f32[T]"], ["f16[T]"], [], None),
        (["f32[T]"], ["q4_1<f32>[T]"], [], None),
        (["f32[T]"], ["f32[T, 1]"], [], None),
        (["f32[4]"], ["f32[T]"], [], None),
        (["f32[T]"], [], [], None),
        (["f32[T]"], ["f32[2]"], ["f32[R]"], None),
        (["f32[1]"], ["kv<layers=1, heads=1, head_dim=1, f32>"], [], None),
    ],
)  # fmt: skip
def test_binding(params: list[str], operands: list[str], outputs: list[str], results: list[str] | None) -> None:
    graph = callee(params, outputs)
    if results is None:
        with pytest.raises(TypeRuleError, match=r"@layer|size R"):
            call_types(graph, types(*operands))
    else:
        assert list(call_types(graph, types(*operands))) == types(*results)


def test_refusal_says_what_the_parameter_is() -> None:
    graph = callee(["i32[T]", "i32[T + 1]"], [])
    with pytest.raises(
        TypeRuleError, match=r"^@layer takes %p1: i32\[T \+ 1\], the operand is i32\[3\], where T \+ 1 is 9$"
    ):
        bind_sizes(graph, types("i32[8]", "i32[3]"))


@given(st.lists(tensor_types(), max_size=3), st.fixed_dictionaries({name: sizes() for name in NAMES}), st.randoms())
def test_binding_finds_the_sizes_that_were_put_in(
    params: list[TensorType], wanted: dict[str, Dim], random: object
) -> None:
    # One parameter for each name alone, in any place, makes the answer unique.
    every: list[TensorType] = [*params, *(TensorType.of("i32", name) for name in NAMES)]
    random.shuffle(every)  # type: ignore[attr-defined]
    graph = Graph("g", (), tuple(Value(f"p{n}", t, "input") for n, t in enumerate(every)), (), (), ())
    assert bind_sizes(graph, [substitute(t, wanted) for t in every]) == wanted


def test_state_parameters_take_the_very_type() -> None:
    text = "graph @g { state %kv: kv<layers=1, heads=2, head_dim=4, f32> yield %kv }"
    graph = parse_graph(text)
    assert call_types(graph, [graph.params[0].type]) == (graph.params[0].type,)
    with pytest.raises(TypeRuleError):
        call_types(graph, types("kv<layers=1, heads=2, head_dim=4, f16>"))

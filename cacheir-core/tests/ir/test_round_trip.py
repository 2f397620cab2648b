"""Text and JSON hold everything that a graph is: Hypothesis draws graphs and modules, and mutates their text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cacheir.errors import ParseError
from cacheir.ir import (
    Graph,
    Module,
    Op,
    TensorType,
    Value,
    graph_from_json,
    graph_to_json,
    module_from_json,
    module_problems,
    module_to_json,
    parse_graph,
    parse_module,
    parse_type,
    print_graph,
    print_module,
)
from cacheir.ir.spelling import NAME, WORD
from cacheir.ir.types import Type
from cacheir.testing import strategies

RELAXED = settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
MANY = settings(RELAXED, max_examples=150)


@RELAXED
@given(strategies.modules())
def test_modules_are_read_back_as_they_were(module: Module) -> None:
    text = print_module(module)
    again = parse_module(text)
    assert again == module
    # repr tells 1 from True and 1.0, and shows scopes, which equality leaves out.
    assert repr(again) == repr(module)
    assert print_module(again) == text
    assert repr(module_from_json(json.loads(json.dumps(module_to_json(module))))) == repr(module)
    # What the strategies promise: made-up ops are the only thing that the verifier finds.
    assert [problem for problem in module_problems(module, {}, stage="target") if problem.rule != "unknown-op"] == []


@RELAXED
@given(strategies.graphs())
def test_graph_text_is_read_back_as_it_was(graph: Graph) -> None:
    again = parse_graph(print_graph(graph))
    assert repr(again) == repr(graph)
    assert again.hash == graph.hash


@RELAXED
@given(strategies.graphs())
def test_canonical_text_of_a_canonical_graph_is_itself(graph: Graph) -> None:
    canonical = print_graph(graph, canonical=True)
    assert print_graph(parse_graph(canonical), canonical=True) == canonical


@MANY
@given(st.one_of(strategies.tensor_types(), strategies.weight_types(), st.sampled_from(strategies.GROUPS)))
def test_type_text_is_read_back_as_it_was(type_: Type) -> None:
    assert parse_type(str(type_)) == type_


@RELAXED
@given(st.from_regex(NAME, fullmatch=True), st.from_regex(WORD, fullmatch=True))
def test_names_and_words_are_read_back_as_they_were(name: str, word: str) -> None:
    value = Value(name, TensorType.of("f32"), "input")
    graph = Graph(
        word, (), (value,), (), (Op(word, (value,), (Value(f"{name}.r", value.type),), scope=word),), (value,)
    )
    assert repr(parse_graph(print_graph(graph))) == repr(graph)


# --- text and JSON that somebody damaged

PIECES = [
    "%",
    "@",
    '"',
    "\\",
    "{",
    "}",
    "[",
    "]",
    "<",
    ">",
    ",",
    ":",
    "=",
    "+",
    "*",
    "-",
    "\n",
    "//",
    "$layer",
    "1e999",
    "yield",
    "graph",
    " at ",
]


def damaged(draw: strategies.Draw, text: str) -> str:
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(text)))
        cut = draw(st.integers(0, 5))
        put = draw(
            st.one_of(st.sampled_from(["", *PIECES]), st.text(max_size=3), st.just(text[at // 2 : at // 2 + 20]))
        )
        text = text[:at] + put + text[at + cut :]
    return text


@MANY
@given(st.data())
def test_damaged_text_is_read_or_refused_with_a_place(golden_texts: dict[str, str], data: st.DataObject) -> None:
    text = damaged(data.draw, golden_texts[data.draw(st.sampled_from(sorted(golden_texts)))])
    try:
        module = parse_module(text)
    except ParseError as error:
        assert 1 <= error.line <= text.count("\n") + 1
        assert error.column >= 1
        assert str(error).startswith(f"line {error.line}, column {error.column}: ")
    else:
        printed = print_module(module)
        assert repr(parse_module(printed)) == repr(module)
        assert all(problem.source for problem in module_problems(module, {}))


@MANY
@given(st.one_of(st.text(), st.text(alphabet='graph@%{}[]()<>,:=+*-"\\/ \n\tinput0189.eE$layer')))
def test_any_text_is_read_or_refused(text: str) -> None:
    for read in (parse_graph, parse_module, parse_type):
        try:
            read(text)
        except ParseError as error:
            assert error.line >= 1


JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=5),
        st.sampled_from(["main", "f32[", "f32[T]", "stored"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["name", "op", "symbol", "x"]), inner, max_size=3)
    ),
    max_leaves=5,
)


def places(data: Any) -> list[tuple[Any, Any]]:
    """Every ``(container, key)`` in a tree of JSON values."""
    keys = list(data.keys()) if isinstance(data, dict) else list(range(len(data))) if isinstance(data, list) else []
    return [(data, key) for key in keys] + [place for key in keys for place in places(data[key])]


@MANY
@given(st.data())
def test_damaged_json_is_read_or_refused(golden_texts: dict[str, str], data: st.DataObject) -> None:
    tree = json.loads(json.dumps(module_to_json(parse_module(golden_texts["awkward.cir"]))))
    for _ in range(data.draw(st.integers(1, 3))):
        container, key = data.draw(st.sampled_from(places(tree)))
        if data.draw(st.booleans()):
            container[key] = data.draw(JSON)
        else:
            del container[key]
            if not places(tree):
                break
    try:
        module = module_from_json(tree)
    except ParseError as error:
        assert str(error).startswith("module")
    else:
        assert repr(parse_module(print_module(module))) == repr(module)


@given(JSON)
def test_any_json_is_read_or_refused(data: Any) -> None:
    with pytest.raises(ParseError, match=r"^graph"):
        graph_from_json(data)


def test_json_names_the_field_that_is_wrong(golden_texts: dict[str, str]) -> None:
    tree = graph_to_json(parse_module(golden_texts["decode.cir"]).graph("decoder_layer"))
    tree["ops"][2]["results"][0]["type"] = "f32[T"
    with pytest.raises(ParseError, match=r"graph\.ops\[2\]\.results\[0\]\.type: line 1, column 6"):
        graph_from_json(tree)
    tree["ops"][2]["results"][0]["type"] = "f32[T]"
    tree["ops"][1]["operands"][0] = "out"
    with pytest.raises(ParseError, match=r"graph\.ops\[1\]\.operands\[0\] names a value that is not defined before it"):
        graph_from_json(tree)

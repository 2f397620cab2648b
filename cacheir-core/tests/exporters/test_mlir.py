"""The MLIR form: what is written is read back whole, and whatever else is read gives a module or a ParseError."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cacheir.errors import ParseError
from cacheir.exporters.mlir import print_mlir
from cacheir.exporters.mlir_reader import parse_mlir
from cacheir.exporters.mlir_types import mlir_string, string_of
from cacheir.ir import Module, parse_graph, verify_module
from cacheir.ops.table import core_ops
from cacheir.testing.strategies import modules, texts
from cacheir.testing.tiny_decoders import tiny_decoders

RELAXED = settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
MANY = settings(RELAXED, max_examples=300)

GRAPH = """\
graph @layer {
  dim T in [1, 8]
  input %x: f32[T, 4]
  input %0: u64[]
  state %kv: kv<layers=1, heads=1, head_dim=4, f32>
  weight @w: q4_1<f32>[4, 4] = stored "layers.$layer.w"
  weight @both: q4_1<f32>[8, 4] = concat(@w, @w) {axis = 0}
  %y: f32[T, 4], %9-a: bool[2*T + 1] = made.up-op(%x, @both, %0) {eps = 1e-05, in = [1, [true, "a"]]} at "a b"
  %z: f32[T, 4], %kv.1: kv<layers=1, heads=1, head_dim=4, f32> = call @other(%y, %kv) {layer = $layer}
  yield %z, %kv.1
}
"""


def module_of(text: str) -> Module:
    return Module("decode", (parse_graph(text),))


@RELAXED
@given(modules())
def test_what_is_written_is_read_back(module: Module) -> None:
    assert repr(parse_mlir(print_mlir(module))) == repr(module)


@pytest.mark.parametrize("name", sorted(tiny_decoders()))
def test_a_decoder_is_read_back_and_keeps_the_rules(name: str) -> None:
    module = tiny_decoders()[name].logical(core_ops())
    read = parse_mlir(print_mlir(module))
    assert read == module
    verify_module(read, core_ops(), stage="logical")


def test_how_each_piece_is_spelt() -> None:
    text = print_mlir(module_of(GRAPH))
    for piece in (
        '^bb0(%x: tensor<?x4xf32, "T, 4">, %$0: tensor<ui64>, %kv: !cacheir.kv<',
        '!cacheir.kv<"kv<layers=1, heads=1, head_dim=4, f32>">',
        '%w = "cacheir_module.weight"() {name = "w", stored = "layers.$layer.w"} : () -> !cacheir.quant<',
        '!cacheir.quant<"q4_1<f32>[4, 4]">',
        '{name = "both", made_by = "concat", of = ["w", "w"], with = {axis = 0 : i64}}',
        '%y, %$9-a = "cacheir.made.up-op"(%x, %both, %$0)',
        '{eps = 1.0e-05 : f64, in = [1 : i64, [true, "a"]]}',
        '-> (tensor<?x4xf32, "T, 4">, tensor<?xi1, "2*T + 1">) loc("a b")',
        '"cacheir.call"(%y, %kv) {callee = @other, layer = #cacheir.layer}',
        '{dims = [["T", 1 : i64, 8 : i64]], params = ["x", "0", "kv"], sym_name = "layer"}',
    ):
        assert piece in text, piece


@pytest.mark.parametrize("number", [5e-324, 2.2e-308, -0.0, 1e16, 1.7976931348623157e308, -1.5e-7])
def test_floats_keep_their_bits(number: float) -> None:
    graph = parse_graph(f"graph @g {{ %x: f32[] = f() {{v = {number!r}}} yield %x }}")
    (op,) = parse_mlir(print_mlir(Module("m", (graph,)))).main.ops
    value = op.attr("v")
    assert isinstance(value, float)
    assert (value, math.copysign(1, value)) == (number, math.copysign(1, number))


@MANY
@given(texts())
def test_strings_are_ascii_and_read_back(text: str) -> None:
    spelt = mlir_string(text)
    assert spelt.isascii() and spelt.isprintable()
    assert string_of(spelt) == text


def test_what_mlirs_own_printer_writes_is_read() -> None:
    """Its short form of the wrapper, numbered values, results by index, numbers in lists without types."""
    text = """
module attributes {cacheir.mode = "decode"} {
  "cacheir_module.graph"() ({
  ^bb0(%arg0: tensor<?x4xf32, "T, 4">):
    %0:2 = "cacheir.two"(%arg0) {eps = 1.000000e-05 : f64} : (tensor<?x4xf32, "T, 4">) -> (tensor<4xf32>, tensor<i32>)
    %1 = "cacheir.one"(%0#1) <{shape = [1, 2]}> : (tensor<i32>) -> tensor<2x0xf32>
    "cacheir_module.yield"(%1, %0#0) : (tensor<2x0xf32>, tensor<4xf32>) -> ()
  }) {dims = [["T", 1, 8]], params = ["1"], sym_name = "main"} : () -> ()
}
"""
    assert parse_mlir(text) == Module(
        "decode",
        (
            parse_graph("""
graph @main {
  dim T in [1, 8]
  input %1: f32[T, 4]
  %0.0: f32[4], %0.1: i32[] = two(%1) {eps = 1e-05}
  %1.1: f32[2, 0] = one(%0.1) {shape = [1, 2]}
  yield %1.1, %0.0
}"""),
        ),
    )


BROKEN = {
    "a shape said twice": ('%x: tensor<?x4xf32, "T, 4">', '%x: tensor<?x4xf32, "T, 5">', "one shape in its sizes"),
    "a size without a name": ('%x: tensor<?x4xf32, "T, 4">', "%x: tensor<?x4xf32>", "without a name"),
    "an element type of MLIR": ("%$0: tensor<ui64>", "%$0: tensor<f80>", "no type that CacheIR has"),
    "a size beyond 64 bits": ("%$0: tensor<ui64>", f"%$0: tensor<{'9' * 19}xui64>", "too large"),
    "an escape": ('sym_name = "layer"', 'sym_name = "\\q"', "escape"),
    "half a character": ('sym_name = "layer"', 'sym_name = "\\C3"', "UTF-8"),
    "a surrogate": ('loc("a b")', 'loc("\\ED\\A0\\80")', "UTF-8"),
    "a location of another kind": ('loc("a b")', "loc(#loc1)", "location's name"),
    "an op of another dialect": ('"cacheir.call"', '"arith.addf"', "not of the dialect"),
    "a call without a graph": ("callee = @other, ", "", "callee"),
    "a symbol in an op": ('"a"]]', "@a]]", "cannot have"),
    "other operands' types": ("(%y, %kv) {callee", "(%y, %x) {callee", "not those they are defined with"),
    "an unknown value": ("(%y, %kv) {callee", "(%y, %no) {callee", "before it is defined"),
    "a value twice": ("%y, %$9-a =", "%y, %y =", "defined twice"),
    "more names than types": ("%y, %$9-a =", "%y, %q, %$9-a =", "3 results have 2 types"),
    "no number": ("1.0e-05 : f64", "0x7FF0000000000000 : f64", "not finite"),
    "a small float": ("1.0e-05 : f64", "1.0e-05 : f32", "are f64"),
    "parameters": ('params = ["x", "0", "kv"]', 'params = ["x", "0"]', "each argument"),
    "sizes": ('["T", 1 : i64, 8 : i64]', '["T", 1.0 : f64, 8 : i64]', "two whole numbers"),
    "a mode": ('cacheir.mode = "decode"', "cacheir.mode = 3 : i64", "must be a string"),
    "an end": ("yield", "yields", "not of the dialect|expected"),
    "many results": ("%y, %$9-a =", "%y:99999999 =", "small whole number"),
    "deep lists": ('[true, "a"]', "[" * 40 + "]" * 40, "nested deeper"),
    "a long number": ("axis = 0 :", f"axis = {'9' * 500} :", "too long"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_contradicts_itself_is_refused_with_its_place(name: str) -> None:
    old, new, words = BROKEN[name]
    text = print_mlir(module_of(GRAPH))
    assert old in text
    with pytest.raises(ParseError, match=words) as caught:
        parse_mlir(text.replace(old, new, 1))
    assert caught.value.line > 0


@MANY
@given(st.randoms(use_true_random=False), st.integers(1, 4))
def test_damaged_text_gives_a_module_or_a_parse_error(chance: random.Random, times: int) -> None:
    text = print_mlir(module_of(GRAPH))
    for _ in range(times):
        start, length = chance.randrange(len(text)), chance.randrange(12)
        other = chance.randrange(len(text))
        text = (
            text[:start]
            + chance.choice(["", text[other : other + 9], '"', "{", "9" * 30, "\\", "\x00"])
            + text[start + length :]
        )
    try:
        parse_mlir(text)
    except ParseError as error:
        assert str(error)


@pytest.mark.parametrize("text", ["", "module {", '"builtin.module"() ({}) {} : () -> ()', "%", '"', "\ud800"])
def test_no_module_is_no_module(text: str) -> None:
    with pytest.raises(ParseError):
        parse_mlir(text)

"""Parse errors: where they point, what they say, and that no text can make reading costly."""

from __future__ import annotations

import time

import pytest

from cacheir.errors import IRError, ParseError
from cacheir.ir import LAYER, parse_graph, parse_module, parse_type
from cacheir.ir.spelling import MAX_INTEGER_BITS, MAX_NESTING, MAX_NUMBER_LENGTH, MAX_SIZE_TERMS

GOOD = """\
graph @g {
  dim T in [1, 8]
  input %x: f32[T, 4]
  weight @w: f32[4] = stored "w"
  %a: f32[T, 4] = rms_norm(%x, @w) {eps = 1e-05} at attn
  yield %a
}
"""


@pytest.mark.parametrize(
    ("old", "new", "line", "column", "says"),
    [
        ("graph", "grahp", 1, 1, "expected 'graph', found grahp"),
        ("@g", "%g", 1, 7, "expected a graph's @name"),
        ("@g", "@9", 1, 7, "begins with a letter"),
        ("[1, 8]", "[1, 8.5]", 2, 16, "expected a whole number, found 8.5"),
        ("dim T", "dim T.x", 2, 7, "letters, digits and '_'"),
        ("f32[T, 4]\n  weight", "f32[T, ]\n  weight", 3, 20, "expected a size"),
        ("f32[T, 4]\n  weight", "f32[T - 1]\n  weight", 3, 19, "cannot read '-'"),
        ("f32[T, 4]\n  weight", "f32\n  weight", 4, 3, "after the type f32"),
        ("f32[T, 4]\n  weight", "f32[T, 1" + "0" * MAX_NUMBER_LENGTH + "]\n  weight", 3, 20, "too long"),
        ('stored "w"', 'stored "w', 4, 30, "does not end on its line"),
        ('stored "w"', 'stored "\\x"', 4, 30, "is not a JSON string"),
        ('stored "w"', 'stored "\\ud800"', 4, 30, "surrogate"),
        ('stored "w"', "pack(%x)", 4, 28, "a recipe takes weights alone"),
        ("@w: f32[4]", "%w: f32[4]", 4, 10, "begins with '@'"),
        ("@w: f32[4]", "@x: f32[4]", 4, 10, "@x is defined twice"),
        ("(%x, @w)", "(%y, @w)", 5, 28, "%y is used before it is defined"),
        ("(%x, @w)", "(%a, @w)", 5, 28, "%a is used before it is defined"),
        ("(%x, @w)", "(%x, %w)", 5, 32, "%w is written @w where it is defined"),
        ("(%x, @w)", "(%x @w)", 5, 31, "expected ',', found @w"),
        ("eps = 1e-05", "eps = 1e999", 5, 43, "too large for a float"),
        ("eps = 1e-05", "eps = nan", 5, 43, "expected an attribute's value"),
        ("eps = 1e-05", "eps = $layers", 5, 43, "cannot read '$'"),
        ("eps = 1e-05", "eps = 1, eps = 1", 5, 46, "attribute eps is given twice"),
        ("rms_norm(", "call(", 5, 23, "expected a graph's @name"),
        ("rms_norm(%x, @w) {eps = 1e-05}", 'call @l(%x) {callee = "m"}', 5, 31, "names its graph after 'call'"),
        ("at attn", "at 3", 5, 53, "expected a scope"),
        ("%a: f32[T, 4] =", "%a: f32[T, 4], %a: f32[T, 4] =", 5, 18, "%a is defined twice"),
        ("yield %a", "yeild %a", 6, 3, "expected dim, input, state, weight, an op or yield"),
        ("yield %a", "yield %a,", 7, 1, "expected a value"),
        ("}\n", "", 7, 1, "the end of the text"),
        ("}\n", "}\n}\n", 8, 1, "expected the end of the text, found }"),
        ("%x: f32", "%: f32", 3, 9, "must follow '%'"),
        ("%x: f32", "%x! f32", 3, 11, "cannot read '!'"),
    ],
)  # fmt: skip
def test_fault_is_named_with_its_place(old: str, new: str, line: int, column: int, says: str) -> None:
    assert old in GOOD
    text = new.join(GOOD.rsplit(old, 1)) if old == "}\n" else GOOD.replace(old, new, 1)
    with pytest.raises(ParseError) as caught:
        parse_graph(text)
    assert says in str(caught.value)
    assert (caught.value.line, caught.value.column) == (line, column)


def test_error_shows_the_source_line_and_a_caret() -> None:
    with pytest.raises(ParseError) as caught:
        parse_graph(GOOD.replace("(%x, @w)", "(%y, @w)"))
    assert str(caught.value) == (
        "line 5, column 28: %y is used before it is defined\n"
        "    %a: f32[T, 4] = rms_norm(%y, @w) {eps = 1e-05} at attn\n"
        "                             ^"
    )


def test_error_shows_a_part_of_a_long_line_and_no_control_characters() -> None:
    text = "graph @g { input %x: f32[1] \x1b[2J" + "%a: f32[1] = f(%x) " * 2000 + "!"
    with pytest.raises(ParseError) as caught:
        parse_graph(text)
    message, source, caret = str(caught.value).split("\n")
    assert message == "line 1, column 29: cannot read '\\x1b'"
    assert source[len(caret) - 1] == "?" and caret.strip() == "^"
    assert len(source) <= 102 and source.isprintable()


def test_errors_are_ir_errors() -> None:
    with pytest.raises(IRError):
        parse_graph("")


def test_comments_order_and_layout_do_not_matter() -> None:
    loose = "// before\n\n graph @g // a graph\n{"
    loose += "input %x:f32[ 2*T+T+1+-1 ] %a:f32[3*T]=f(%x){b=2,a=[ ] ,c=$layer}// end\r\nyield %a}"
    graph = parse_graph(loose)
    assert str(graph.ops[0].result.type) == "f32[3*T]"
    assert graph.ops[0].attrs == (("a", ()), ("b", 2), ("c", LAYER))
    assert graph.params[0].type == graph.ops[0].result.type


def test_derived_weight_may_stand_before_what_it_is_made_of() -> None:
    graph = parse_graph(
        'graph @g { weight @a: f32[2] = pack(@b) {layout = "x"} weight @b: f32[2] = stored "b" yield @a }'
    )
    assert [weight.name for weight in graph.weights] == ["a", "b"]


def test_module_needs_a_graph_and_a_mode() -> None:
    for text in ("module decode", "module", GOOD, "module decode " + GOOD + "graph"):
        with pytest.raises(ParseError):
            parse_module(text)
    assert parse_module('module "" ' + GOOD).mode == ""


def nested(depth: int) -> str:
    return "graph @g { input %x: f32[1] %a: f32[1] = f(%x) {v = " + "[" * depth + "]" * depth + "} yield %a }"


def test_nesting_is_limited() -> None:
    assert parse_graph(nested(MAX_NESTING + 1))
    for depth in (MAX_NESTING + 2, 100_000):
        with pytest.raises(ParseError, match="nested deeper"):
            parse_graph(nested(depth))


def test_number_length_is_limited() -> None:
    longest = 1 - 2**MAX_INTEGER_BITS
    assert len(str(longest)) <= MAX_NUMBER_LENGTH
    graph = parse_graph(GOOD.replace("1e-05", str(longest)))
    assert graph.ops[0].attr("eps") == longest
    with pytest.raises(ParseError, match="too large"):
        parse_graph(GOOD.replace("1e-05", str(2**MAX_INTEGER_BITS)))
    with pytest.raises(ParseError, match="too long"):
        parse_graph(GOOD.replace("1e-05", "-" + "9" * 1_000_000))


def test_terms_of_a_size_are_limited() -> None:
    names = [f"n{number}" for number in range(MAX_SIZE_TERMS + 1)]
    assert parse_type(f"f32[{' + '.join(names[1:])}]")
    with pytest.raises(ParseError, match="more than 16 terms"):
        parse_type(f"f32[{' + '.join(names)}]")


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '"' + "\\\\" * 100_000, "%a" * 100_000, "// " * 100_000, "1" * 100_000, "a.-" * 100_000]
)
def test_hostile_text_is_refused_quickly(text: str) -> None:
    started = time.process_time()
    for prefix in ("", "graph @g { %x: f32[1] = f() {a = "):
        with pytest.raises(ParseError):
            parse_graph(prefix + text)
    assert time.process_time() - started < 10

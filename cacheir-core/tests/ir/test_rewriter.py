"""The rewriter: idle walks give the same object, stand-ins reach every reader, names stay unique, uses are counted."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cacheir.ir import Derived, Graph, Op, OpDef, Rewriter, Value, Weight, parse_graph, problems
from cacheir.testing.strategies import graphs

CHAIN = """\
graph @g {
  input %x: f32[4]
  weight @w: f32[4] = stored "w"
  %a: f32[4] = silu(%x)
  %b: f32[4] = silu(%a)
  %c: f32[4] = silu(%b)
  %d: f32[4] = add(%c, %a)
  yield %c, %d
}
"""


def lines(graph: Graph) -> list[str]:
    return [line.strip() for line in str(graph).splitlines() if "=" in line or "yield" in line]


def test_idle_walk_gives_the_same_object() -> None:
    graph = parse_graph(CHAIN)
    assert graph.rewrite(lambda op, rewriter: None) is graph


def test_stand_ins_reach_through_chains_and_outputs(ops: dict[str, OpDef]) -> None:
    graph = parse_graph(CHAIN).rewrite(lambda op, _: [op.operands[0]] if op.name == "silu" else None)
    assert lines(graph)[1:] == ["%d: f32[4] = add(%x, %x)", "yield %x, %d"]
    assert problems(graph, ops) == []


def test_rule_sees_operands_already_renamed() -> None:
    seen = []

    def rule(op: Op, rewriter: Rewriter) -> list[Value] | None:
        seen.append([str(value) for value in op.operands])
        return [op.operands[0]] if op.result.name == "a" else None

    parse_graph(CHAIN).rewrite(rule)
    assert seen == [["%x"], ["%x"], ["%b"], ["%c", "%x"]]


def test_emitted_ops_stand_where_the_rule_ran_and_get_fresh_names(ops: dict[str, OpDef]) -> None:
    def rule(op: Op, rewriter: Rewriter) -> tuple[Value, ...] | None:
        if op.name != "silu":
            return None
        return rewriter.emit("multiply", [op.operands[0], op.operands[0]], [op.result.type], hint="a", scope="s")

    graph = parse_graph(CHAIN).rewrite(rule)
    assert lines(graph)[1:] == [
        "%a.1: f32[4] = multiply(%x, %x) at s",
        "%a.2: f32[4] = multiply(%a.1, %a.1) at s",
        "%a.3: f32[4] = multiply(%a.2, %a.2) at s",
        "%d: f32[4] = add(%a.3, %a.1)",
        "yield %a.3, %d",
    ]
    assert problems(graph, ops) == []


def test_a_stale_value_from_the_old_graph_is_brought_up_to_date(ops: dict[str, OpDef]) -> None:
    old = parse_graph(CHAIN)
    makers = old.producers()

    def rule(op: Op, rewriter: Rewriter) -> list[Value] | tuple[Value, ...] | None:
        if op.result.name == "a":
            return rewriter.emit("silu", op.operands, [op.result.type], hint="new")
        if op.result.name == "b":
            return [makers["a"].result]
        if op.result.name == "d":
            return rewriter.emit("add", [makers["b"].result, makers["a"].result], [op.result.type], hint="sum")
        return None

    graph = old.rewrite(rule)
    assert lines(graph)[1:] == [
        "%new: f32[4] = silu(%x)",
        "%c: f32[4] = silu(%new)",
        "%sum: f32[4] = add(%new, %new)",
        "yield %c, %sum",
    ]
    assert problems(graph, ops) == []


def test_a_value_may_stand_in_for_a_result_still_to_come(ops: dict[str, OpDef]) -> None:
    offered = []

    def rule(op: Op, rewriter: Rewriter) -> None:
        offered.append(op.result.name)
        if op.result.name == "b":
            rewriter.stand_in(old.ops[2].result, op.operands[0])

    old = parse_graph(CHAIN)
    graph = old.rewrite(rule)
    assert offered == ["a", "b", "d"]
    assert lines(graph)[1:] == [
        "%a: f32[4] = silu(%x)",
        "%b: f32[4] = silu(%a)",
        "%d: f32[4] = add(%a, %a)",
        "yield %a, %d",
    ]


def test_chains_of_stand_ins_end_at_the_last(ops: dict[str, OpDef]) -> None:
    old = parse_graph(CHAIN)

    def rule(op: Op, rewriter: Rewriter) -> list[Value] | None:
        if op.result.name == "a":
            rewriter.stand_in(old.ops[2].result, op.result)  # %c -> %a, and then %a -> %x
            return [op.operands[0]]
        return None

    graph = old.rewrite(rule)
    assert lines(graph)[1:] == ["%b: f32[4] = silu(%x)", "%d: f32[4] = add(%x, %x)", "yield %x, %d"]


def test_declared_weights_are_added(ops: dict[str, OpDef]) -> None:
    def rule(op: Op, rewriter: Rewriter) -> tuple[Value, ...] | None:
        if op.name != "add":
            return None
        name = rewriter.fresh("w")
        packed = Value(name, op.result.type, "weight")
        rewriter.declare(Weight(packed, Derived("pack", ("w",), (("layout", "rows16"),))))
        return rewriter.emit("add", [op.operands[0], packed], [op.result.type])

    graph = parse_graph(CHAIN).rewrite(rule)
    assert 'weight @w.1: f32[4] = pack(@w) {layout = "rows16"}' in str(graph)
    assert problems(graph, ops) == []


def test_wrong_number_of_stand_ins_is_an_error() -> None:
    with pytest.raises(ValueError, match="add has 1 results, the rule gave 2"):
        parse_graph(CHAIN).rewrite(lambda op, _: op.operands if op.name == "add" else None)


def test_producer_finds_kept_and_emitted_ops() -> None:
    found = []

    def rule(op: Op, rewriter: Rewriter) -> tuple[Value, ...] | None:
        maker = rewriter.producer(op.operands[0])
        found.append(maker.name if maker else None)
        return rewriter.emit("other", op.operands, [op.result.type]) if op.result.name == "b" else None

    parse_graph(CHAIN).rewrite(rule)
    assert found == [None, "silu", "other", "silu"]


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(graphs(), st.data())
def test_uses_are_counted_through_any_rewriting(graph: Graph, data: st.DataObject) -> None:
    last: list[Rewriter] = []

    def rule(op: Op, rewriter: Rewriter) -> list[Value] | None:
        last[:] = [rewriter]
        choice = data.draw(st.sampled_from(["keep", "drop", "emit"]))
        if choice == "keep":
            return None
        if choice == "emit":
            return list(rewriter.emit(op.name, op.operands, [value.type for value in op.results]))
        stand_ins = [next((o for o in op.operands if o.type == r.type), None) for r in op.results]
        return None if None in stand_ins else stand_ins  # type: ignore[return-value]

    after = graph.rewrite(rule)
    counted = Counter(value.name for op in after.ops for value in op.operands)
    counted.update(value.name for value in after.outputs)
    for value in [*after.params, *(w.value for w in after.weights), *(r for op in after.ops for r in op.results)]:
        assert not last or last[0].use_count(value) == counted[value.name]
    names = (
        [value.name for value in after.params]
        + [w.name for w in after.weights]
        + [r.name for op in after.ops for r in op.results]
    )
    assert len(set(names)) == len(names)

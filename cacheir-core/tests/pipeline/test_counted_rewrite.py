"""Counted rewriting: numbers, the budget, history, what is left without a reader, and names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cacheir.ir.graph import Graph, Module, Value, Weight
from cacheir.ir.parser import parse_graph
from cacheir.ir.printer import print_graph
from cacheir.ir.verify import verify
from cacheir.ir.weights import Derived
from cacheir.ops.table import core_ops
from cacheir.pipeline.context import PassContext
from cacheir.pipeline.counted_rewrite import RewriteBudget
from cacheir.testing.random_runs import differences
from cacheir.testing.strategies import graphs

OPS = core_ops()


def chain(length: int) -> Graph:
    """silu after silu."""
    lines = [f"  %y{number}: f32[T, 4] = silu(%{f'y{number - 1}' if number else 'x'})" for number in range(length)]
    text = "\n".join(
        ["graph @main {", "  dim T in [1, 8]", "  input %x: f32[T, 4]", *lines, f"  yield %y{length - 1}", "}"]
    )
    return parse_graph(text)


def spell_out(op: Any, rewriter: Any) -> tuple[Value, ...] | None:
    """silu(x) -> x * sigmoid(x)."""
    if op.name != "silu":
        return None
    (gate,) = rewriter.emit("sigmoid", op.operands, [op.result.type], hint="gate")
    return tuple(rewriter.emit("multiply", (op.operands[0], gate), [op.result.type], hint=op.result.name))


@given(st.integers(1, 6), st.integers(0, 8))
def test_sites_are_numbered_and_the_budget_stops_them(length: int, limit: int) -> None:
    context = PassContext(ops=OPS, pass_name="spell-out", mode="decode", budget=RewriteBudget(limit))
    graph = chain(length)
    after = context.rewrite(graph, spell_out)
    done = min(length, limit)
    assert [site.number for site in context.sites] == list(range(1, done + 1))
    assert [op.name for op in after.ops] == ["sigmoid", "multiply"] * done + ["silu"] * (length - done)
    verify(after, OPS)
    assert (after is graph) == (done == 0)


def test_the_budget_is_shared_by_the_contexts_of_a_run() -> None:
    budget = RewriteBudget(3)
    first, second = (PassContext(ops=OPS, budget=budget) for _ in range(2))
    first.rewrite(chain(2), spell_out)
    after = second.rewrite(chain(2), spell_out)
    assert [site.number for site in second.sites] == [3] and [op.name for op in after.ops][-1] == "silu"
    assert budget.is_spent


def test_a_site_says_what_it_made_of_what() -> None:
    context = PassContext(ops=OPS, pass_name="spell-out", mode="decode")
    context.rewrite(chain(1), spell_out)
    (site,) = context.sites
    assert (site.pass_name, site.mode, site.graph, site.op, site.replaced) == (
        "spell-out",
        "decode",
        "main",
        "silu",
        "y0",
    )
    assert site.made == ("gate", "y0")


def test_new_values_take_the_names_of_those_that_are_gone() -> None:
    after = PassContext(ops=OPS).rewrite(chain(2), spell_out)
    assert [op.results[0].name for op in after.ops] == ["gate", "y0", "gate.1", "y1"]
    assert after.outputs[0].name == "y1"


DEAD = parse_graph("""graph @main {
  dim T in [1, 8]
  input %x: f32[T, 4]
  weight @w: f32[4, 4] = stored "w"
  weight @part: f32[2, 4] = stored "part"
  weight @whole: f32[4, 4] = concat(@part, @part) {axis = 0}
  weight @idle: f32[4, 4] = stored "idle"
  %dead: f32[T, 4] = silu(%x)
  %a: f32[T, 4] = linear(%x, @w)
  %b: f32[T, 4] = linear(%a, @whole)
  yield %b
}
""")


def test_what_a_rewrite_leaves_unread_goes_and_what_was_unread_stays() -> None:
    def skip_all(op: Any, rewriter: Any) -> list[Value] | None:
        return [rewriter.graph.params[0]] if op.results[0].name == "b" else None

    after = PassContext(ops=OPS).rewrite(DEAD, skip_all)
    assert [op.results[0].name for op in after.ops] == ["dead"]
    assert [weight.name for weight in after.weights] == ["idle"]


def test_a_rule_that_emits_but_keeps_changes_nothing() -> None:
    def indecisive(op: Any, rewriter: Any) -> None:
        rewriter.emit("silu", op.operands[:1], [op.result.type])

    context = PassContext(ops=OPS)
    assert context.rewrite(DEAD, indecisive) is DEAD and not context.sites


def test_a_match_of_several_ops_is_one_site() -> None:
    graph = parse_graph("""graph @main {
      dim T in [1, 8]
      input %x: f32[T, 4]
      weight @w: f32[4] = stored "norm"
      %sum: f32[T, 4] = add(%x, %x)
      %other: f32[T, 4] = silu(%sum)
      %normed: f32[T, 4] = rms_norm(%sum, @w)
      yield %other, %normed
    }""")

    def fuse(op: Any, rewriter: Any) -> list[Value] | None:
        if op.name != "add":
            return None
        norm = next(later for later in rewriter.graph.ops if later.name == "rms_norm")
        total, normed = rewriter.emit("add_rms_norm", (*op.operands, norm.operands[1]), [op.result.type] * 2)
        rewriter.stand_in(norm.result, normed)
        return [total]

    context = PassContext(ops=OPS, budget=RewriteBudget(1))
    after = context.rewrite(graph, fuse)
    assert [op.name for op in after.ops] == ["add_rms_norm", "silu"] and len(context.sites) == 1
    verify(after, OPS)
    assert not differences(Module("", (graph,)), Module("", (after,)), "main", OPS)


def test_a_rule_with_the_wrong_number_of_values_is_refused() -> None:
    with pytest.raises(ValueError, match="1 results, the rule gave 2"):
        PassContext(ops=OPS).rewrite(chain(1), lambda op, rewriter: [op.operands[0]] * 2)


def left_by_the_definition(graph: Graph, before: Graph) -> Graph:
    """``graph`` without what the rewriting left without a reader, found in all of it."""
    read_before = {*before.uses(), *(value.name for value in before.outputs)}
    read_before |= {part for weight in before.weights for part in parts_of(weight)}
    old = {value.name for op in before.ops for value in op.results} | set(before.recipes)
    unread = old - read_before
    ops, weights = list(graph.ops), list(graph.weights)
    while True:
        needed = {value.name for op in ops for value in op.operands} | {value.name for value in graph.outputs}
        needed |= {part for weight in weights for part in parts_of(weight)} | unread
        kept = [op for op in ops if any(value.name in needed for value in op.results)]
        held = [weight for weight in weights if weight.name in needed]
        if len(kept) == len(ops) and len(held) == len(weights):
            return replace(graph, ops=tuple(ops), weights=tuple(weights))
        ops, weights = kept, held


def parts_of(weight: Weight) -> tuple[str, ...]:
    return weight.recipe.operands if isinstance(weight.recipe, Derived) else ()


def random_rule(graph: Graph, choices: list[int]) -> Any:
    """A rule that does to each op what the number of its place says: keep, drop, write anew, join with a later one."""
    places = {op.results[0].name: number for number, op in enumerate(graph.ops)}

    def rule(op: Any, rewriter: Any) -> Any:
        number = places[op.results[0].name]
        choice = choices[number % len(choices)]
        alike = [value for value in op.operands if value.type == op.results[0].type and value.origin == "op"]
        if choice == 1 and len(op.results) == 1 and alike:
            return alike[:1]
        types = [value.type for value in op.results]
        if choice in (2, 4):
            again = rewriter.emit(op.name, op.operands, types, attrs=dict(op.attrs), hint=op.results[0].name)
            if choice == 4:  # what is not read
                rewriter.emit(op.name, op.operands, types, attrs=dict(op.attrs), hint="idle")
            return again
        if choice == 3:
            seen = {value.name for value in op.operands}
            for later in graph.ops[number + 1 :]:
                if later.name == op.name and later.operands == op.operands and later.attrs == op.attrs:
                    for old, new in zip(later.results, op.results):
                        rewriter.stand_in(old, new)
                    break
                if seen & {value.name for value in later.results}:
                    break
        if choice == 5:  # the op itself and one like it later, as fuse-qkv does
            made = rewriter.emit(op.name, op.operands, types, attrs=dict(op.attrs), hint="both")
            for old, new in zip(op.results, made):
                rewriter.stand_in(old, new)
            return made
        return None

    return rule


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(graphs(), st.lists(st.integers(0, 5), min_size=1, max_size=12))
def test_what_is_left_is_what_all_of_the_graph_says(graph: Graph, choices: list[int]) -> None:
    plain = left_by_the_definition(graph.rewrite(random_rule(graph, choices)), graph)
    after = PassContext(ops=OPS).rewrite(graph, random_rule(graph, choices))
    assert print_graph(after, canonical=True) == print_graph(plain, canonical=True)
    # The counts that the rewriting kept are those of the graph that it made.
    assert after.use_counts == replace(after, ops=tuple(after.ops)).use_counts
    names = [value.name for op in after.ops for value in op.results]
    assert len(names) == len(set(names))


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(graphs(), st.lists(st.integers(0, 5), min_size=1, max_size=12), st.data())
def test_a_rule_for_some_ops_alone_does_what_it_did_among_all(
    graph: Graph, choices: list[int], data: st.DataObject
) -> None:
    kinds = sorted({op.name for op in graph.ops} | {"no_such_op"})
    wanted = data.draw(st.lists(st.sampled_from(kinds), unique=True))
    rule = random_rule(graph, choices)
    every = PassContext(ops=OPS)
    some = PassContext(ops=OPS)
    expected = every.rewrite(graph, lambda op, rewriter: rule(op, rewriter) if op.name in wanted else None)
    assert some.rewrite(graph, rule, of=wanted) == expected
    assert some.sites == every.sites

"""Counted rewriting: numbers, the budget, history, what is left without a reader, and names."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cacheir.ir.graph import Graph, Module, Value
from cacheir.ir.parser import parse_graph
from cacheir.ir.verify import verify
from cacheir.ops.table import core_ops
from cacheir.pipeline.context import PassContext
from cacheir.pipeline.counted_rewrite import RewriteBudget
from cacheir.testing.random_runs import differences

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

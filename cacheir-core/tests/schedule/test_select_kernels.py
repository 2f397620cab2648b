"""Kernel selection: order, refusals, row classes, forcing, the hook, and what is said where nobody accepts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from cacheir.errors import NoKernelError, PluginError, UsageError
from cacheir.ir.graph import Graph, Module, Op, Value
from cacheir.ir.opdef import OpDef
from cacheir.ir.types import TensorType
from cacheir.ops.table import core_ops
from cacheir.plugins.specs import KernelChoice, KernelSpec
from cacheir.schedule.schedule import Choice
from cacheir.schedule.select_kernels import OfferedKernel, SelectionRules, Selector, select_kernels

KIND = TensorType.of("f32", "T", 8)
OPS = core_ops()


def silu_module(dtype: str = "f32") -> Module:
    kind = TensorType.of(dtype, "T", 8)
    x, y = Value("x", kind, "input"), Value("y", kind)
    return Module("decode", (Graph("main", (("T", 1, 8),), (x,), (), (Op("silu", (x,), (y,)),), (y,)),))


def kernel(name: str, **fields: Any) -> OfferedKernel:
    target = name.rpartition(".")[0]
    fields = {"op": "silu", "target": target, "entry": lambda x: x, **fields}
    return OfferedKernel(KernelSpec(name=name, **fields), plugin="fake", distribution="fake-dist")


def chosen(
    kernels: Sequence[OfferedKernel],
    *,
    module: Module | None = None,
    ops: dict[str, OpDef] = OPS,
    selector: Selector | None = None,
    **rules: Any,
) -> tuple[Choice, ...]:
    rules = {"target": "fake", "targets": ("fast", "slow"), **rules}
    table = {"silu": kernels}
    return select_kernels(module or silu_module(), ops, table, SelectionRules(**rules), selector)["main", "y"]


def refusals(choice: Choice) -> dict[str, str]:
    return {candidate.kernel: candidate.refusal for candidate in choice.candidates}


def test_order_is_target_then_rank_then_name() -> None:
    kernels = [kernel("slow.a", rank=9), kernel("fast.b"), kernel("fast.c", rank=1), kernel("fast.a")]
    (choice,) = chosen(kernels)
    assert choice.kernel == "fast.c"
    assert [candidate.kernel for candidate in choice.candidates] == ["fast.c", "fast.a", "fast.b", "slow.a"]
    assert choice.reason == "highest rank on fast"
    assert refusals(choice)["fast.c"] == ""
    assert all(refusals(choice)[name] for name in ("fast.a", "fast.b", "slow.a"))


def test_another_target_is_no_candidate() -> None:
    (choice,) = chosen([kernel("fast.a"), kernel("other.a", rank=99)])
    assert choice.kernel == "fast.a"
    assert [candidate.kernel for candidate in choice.candidates] == ["fast.a"]


def test_a_refusal_is_kept_in_words_and_the_next_is_taken() -> None:
    kernels = [
        kernel("fast.a", refuses=lambda op: f"{op.name} is not for me"),
        kernel("fast.b", dtypes=("f16", "bf16")),
        kernel("slow.a"),
    ]
    (choice,) = chosen(kernels)
    assert (choice.kernel, choice.reason) == ("slow.a", "the only kernel that takes it")
    assert refusals(choice) == {"fast.a": "silu is not for me", "fast.b": "takes f16 or bf16, not f32", "slow.a": ""}
    (choice,) = chosen(kernels, module=silu_module("bf16"))
    assert choice.kernel == "fast.b"


def test_row_classes_choose_apart() -> None:
    kernels = [kernel("fast.one", max_rows=1, rank=2), kernel("fast.few", min_rows=2, max_rows=8), kernel("slow.all")]
    choices = chosen(kernels, row_classes=(1, 8, 64, 0))
    assert [(choice.rows_up_to, choice.kernel) for choice in choices] == [
        (1, "fast.one"),
        (8, "fast.few"),
        (64, "slow.all"),
        (0, "slow.all"),
    ]
    assert refusals(choices[1])["fast.one"] == "takes at most 1 rows"
    assert refusals(choices[0])["fast.few"] == "takes 2 rows or more"
    assert refusals(choices[3])["fast.few"] == "takes at most 8 rows"


def test_precise_and_batch_invariant_refuse() -> None:
    kernels = [kernel("fast.a", numerics="int8-activations"), kernel("fast.b", row_order="varies"), kernel("slow.a")]
    assert chosen(kernels)[0].kernel == "fast.a"
    precise = chosen(kernels, precise=True)[0]
    assert precise.kernel == "fast.b"
    assert "int8-activations" in refusals(precise)["fast.a"]
    both = chosen(kernels, precise=True, batch_invariant=True)[0]
    assert both.kernel == "slow.a"
    assert "number of rows" in refusals(both)["fast.b"]


def test_where_nobody_accepts_the_op_runs_by_its_meaning() -> None:
    (choice,) = chosen([kernel("fast.a", refuses=lambda op: "the moon is full")])
    assert choice.kernel == ""
    assert "the moon is full" in choice.reason
    assert choice.reason.endswith("decomposition" if OPS["silu"].decompose else "reference kernel")
    (choice,) = chosen([])
    assert choice.reason.startswith("no kernel for fast or slow; runs by its ")


def test_forcing() -> None:
    kernels = [kernel("fast.a", rank=3), kernel("slow.a"), kernel("fast.b", refuses=lambda op: "no")]
    (choice,) = chosen(kernels, forced={"silu": "slow.a"})
    assert (choice.kernel, choice.reason) == ("slow.a", "forced by --kernel")
    (choice,) = chosen(kernels, forced={"silu": "reference"})
    assert choice.kernel == ""
    assert "forced by --kernel" in choice.reason
    with pytest.raises(UsageError, match=r"'fast.b' was forced, but no"):
        chosen(kernels, forced={"silu": "fast.b"})
    with pytest.raises(UsageError, match=r"there are: fast.a, fast.b, slow.a"):
        chosen(kernels, forced={"silu": "fast.x"})
    with pytest.raises(UsageError, match="no op 'swoosh'"):
        chosen(kernels, forced={"swoosh": "fast.a"})
    with pytest.raises(UsageError, match="calls fast or slow kernels, not other"):
        chosen([*kernels, kernel("other.a")], forced={"silu": "other.a"})


def test_a_forced_kernel_outside_its_rows_says_so() -> None:
    kernels = [kernel("fast.one", max_rows=1), kernel("slow.all")]
    one, more = chosen(kernels, forced={"silu": "fast.one"}, row_classes=(1, 0))
    assert one.reason == "forced by --kernel"
    assert more.kernel == "slow.all"
    assert "the forced fast.one takes at most 1 rows" in more.reason


def test_the_hook_may_take_another_that_accepts() -> None:
    seen: list[tuple[list[str], str, str]] = []

    def select(op: Op, candidates: Sequence[KernelSpec], target: str, mode: str) -> KernelChoice | None:
        seen.append(([candidate.name for candidate in candidates], target, mode))
        return KernelChoice(kernel=candidates[-1], reason="measured 3 us")

    kernels = [kernel("fast.a"), kernel("slow.a"), kernel("fast.b", refuses=lambda op: "no")]
    (choice,) = chosen(kernels, selector=select)
    assert (choice.kernel, choice.reason) == ("slow.a", "measured 3 us")
    assert seen == [(["fast.a", "slow.a"], "fake", "decode")]
    assert chosen(kernels, selector=lambda *_: None)[0].kernel == "fast.a"
    stranger = kernel("fast.z").spec
    with pytest.raises(PluginError, match=r"chose 'fast.z' for silu"):
        chosen(kernels, selector=lambda *_: KernelChoice(kernel=stranger, reason=""))


def test_a_refusal_that_raises_names_its_kernel() -> None:
    with pytest.raises(PluginError, match=r"'fast.a': refuses\(\) raised ZeroDivisionError"):
        chosen([kernel("fast.a", refuses=lambda op: str(1 / 0))])


def test_an_op_that_nobody_defines_is_an_error_with_its_place() -> None:
    with pytest.raises(NoKernelError, match=r"@main: silu \(%y\)"):
        chosen([], ops={})


@pytest.mark.parametrize(("name", "varies"), [("linear", True), ("matmul", True), ("silu", False), ("softmax", False)])
def test_a_meaning_with_a_product_is_named_where_rows_must_not_matter(name: str, varies: bool) -> None:
    x, weight = Value("x", KIND, "input"), Value("w", TensorType.of("f32", 8, 8), "input")
    operands = (x, weight) if name in ("linear", "matmul") else (x,)
    op = Op(name, operands, (Value("y", KIND),))
    module = Module("decode", (Graph("main", (("T", 1, 8),), operands, (), (op,), op.results),))
    (choice,) = chosen((), module=module, batch_invariant=True)
    assert choice.kernel == "" and ("may depend on the number of rows" in choice.reason) == varies
    (choice,) = chosen((), module=module)
    assert "number of rows" not in choice.reason

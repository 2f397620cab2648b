"""``KernelTests``: a good kernel passes every check, and each check catches its own culprit."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from cacheir.ir.graph import Op
from cacheir.plugins import KernelSpec, hookimpl
from cacheir.reference.kv_pool import KVPool
from cacheir.testing import KernelTests

PLUGIN = "cacheir_test_kernels"
CHECKS = (
    "test_equals_the_definition",
    "test_nan_gives_the_token_of_the_definition",
    "test_writes_only_into_out",
    "test_does_not_change_operands",
    "test_in_place_gives_the_same",
)


def good(x: Any, weight: Any, *, eps: float, out: Any) -> None:
    root = np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(eps))
    np.multiply(x / root, weight, out=out)


def forgets_eps(x: Any, weight: Any, *, eps: float, out: Any) -> None:
    good(x, weight, eps=0.1, out=out)


def fills_half(x: Any, weight: Any, *, eps: float, out: Any) -> None:
    whole = np.empty_like(out)
    good(x, weight, eps=eps, out=whole)
    out[..., :3] = whole[..., :3]


def spills(x: Any, weight: Any, *, eps: float, out: Any) -> None:
    good(x, weight, eps=eps, out=out)
    np.lib.stride_tricks.as_strided(out.reshape(-1), shape=(out.size + 1,), strides=(4,))[-1] = 3


def scribbles(x: Any, weight: Any, *, eps: float, out: Any) -> None:
    good(x, weight, eps=eps, out=out)
    x += 1


def loses_x(x: Any, weight: Any, *, eps: float, out: Any) -> None:
    """Right into a buffer of its own, wrong where out is x."""
    out[...] = 0
    good(x, weight, eps=eps, out=out)


def returns_doubles(x: Any, weight: Any, *, eps: float) -> Any:
    out = np.empty(x.shape)
    good(x, weight, eps=eps, out=out)
    return out


def append(kv: KVPool, k: Any, v: Any, slots: Any, *, layer: int) -> KVPool:
    kv.append(layer, k, v, slots)
    return kv


def append_to_first(kv: KVPool, k: Any, v: Any, slots: Any, *, layer: int) -> KVPool:
    kv.append(kv.layers[0], k, v, slots)
    return kv


def greedy(logits: Any, *, out: Any) -> None:
    out[...] = np.where(np.isnan(logits).any(-1), -1, logits.argmax(-1))


def greedy_whatever(logits: Any, *, out: Any) -> None:
    out[...] = np.nan_to_num(logits).argmax(-1)


def narrow_weights(op: Op) -> str | None:
    return None if op.operands[1].type.dtype == "f32" else f"takes weights in f32, not {op.operands[1].type}"


def kernel(entry: Callable[..., Any], **fields: Any) -> KernelSpec:
    defaults: dict[str, Any] = {"op": "rms_norm", "target": "test", "dtypes": ("f32",), "refuses": narrow_weights}
    return KernelSpec(entry=entry, **{"name": f"test.{entry.__name__}", **defaults, **fields})


@pytest.fixture
def tests_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[KernelSpec], KernelTests]:
    """The checks, for a plugin that registers one kernel."""

    def make(spec: KernelSpec) -> KernelTests:
        module = ModuleType(PLUGIN)

        @hookimpl
        def cacheir_register_kernels() -> list[KernelSpec]:
            return [spec]

        module.cacheir_register_kernels = cacheir_register_kernels  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, PLUGIN, module)

        class Checks(KernelTests):
            plugin = PLUGIN

        return Checks()

    return make


Make = Callable[[KernelSpec], KernelTests]


def complaints(tests: KernelTests) -> dict[str, str]:
    """Check -> what it says, of those that fail on some case."""
    found: dict[str, str] = {}
    for case in tests.cases():
        for check in CHECKS if case.refusal is None else ("test_a_refusal_is_a_sentence",):
            try:
                getattr(tests, check)(case)
            except AssertionError as error:
                found[check] = str(error)
    return found


@pytest.mark.parametrize(
    "spec",
    [
        kernel(good),
        kernel(good, in_place=True),
        kernel(append, op="kv_append", writes_out=False, refuses=None),
        kernel(greedy, op="greedy_token", refuses=None),
    ],
    ids=["plain", "in place", "a state op", "token ids"],
)
def test_a_good_kernel_passes(tests_of: Make, spec: KernelSpec) -> None:
    tests = tests_of(spec)
    assert complaints(tests) == {}
    tests.test_every_kernel_takes_an_example()
    assert any(case.refusal is None for case in tests.cases())


@pytest.mark.parametrize(
    ("spec", "check", "words"),
    [
        (kernel(forgets_eps), "test_equals_the_definition", "off by more than"),
        (kernel(fills_half), "test_equals_the_definition", "nan"),
        (kernel(returns_doubles, writes_out=False), "test_equals_the_definition", "is float64"),
        (
            kernel(append_to_first, op="kv_append", writes_out=False, refuses=None),
            "test_equals_the_definition",
            "off by more than",
        ),
        (
            kernel(greedy_whatever, op="greedy_token", refuses=None),
            "test_nan_gives_the_token_of_the_definition",
            "of %out",
        ),
        (kernel(spills), "test_writes_only_into_out", "writes beyond the ends of %out"),
        (kernel(scribbles), "test_does_not_change_operands", "changes its operands %x"),
        (kernel(loses_x, in_place=True), "test_in_place_gives_the_same", "in place of %x"),
        (kernel(good, refuses=lambda op: "no"), "test_a_refusal_is_a_sentence", "reason in words"),
    ],
    ids=lambda part: part.name if isinstance(part, KernelSpec) else None,
)
def test_each_check_catches_its_culprit(tests_of: Make, spec: KernelSpec, check: str, words: str) -> None:
    found = complaints(tests_of(spec))
    assert set(found) == {check}
    assert words in found[check]


def test_a_kernel_that_takes_no_example_is_named(tests_of: Make) -> None:
    tests = tests_of(kernel(good, refuses=lambda op: "this one takes nothing"))
    with pytest.raises(AssertionError, match=r"test\.good take no example"):
        tests.test_every_kernel_takes_an_example()


def test_a_kernel_for_an_op_of_another_plugin(tests_of: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    from cacheir.ir import OpDef, Operand, TensorType

    other = ModuleType("cacheir_test_other")

    @hookimpl
    def cacheir_register_ops() -> list[OpDef]:
        return [
            OpDef(
                name="twice",
                dialect="nn",
                operands=(Operand("x", "float"),),
                results=("out",),
                infer=lambda types, attrs: types,
                reference=lambda x, *, out_types: x + x,
                doc="2 x",
                examples=lambda: [((TensorType.of("f32", 3, 5),), {})],
            )
        ]

    @hookimpl
    def cacheir_register_kernels() -> list[KernelSpec]:
        return [kernel(good, op="twice", name="other.wrong", refuses=None)]

    other.cacheir_register_ops = cacheir_register_ops  # type: ignore[attr-defined]
    other.cacheir_register_kernels = cacheir_register_kernels  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, other.__name__, other)

    def twice(x: Any, *, out: Any) -> None:
        np.multiply(x, 2, out=out)

    def thrice(x: Any, *, out: Any) -> None:
        np.multiply(x, 3, out=out)

    with pytest.raises(AssertionError, match=r"test\.twice is for the op twice, which neither .* `needs`"):
        list(tests_of(kernel(twice, op="twice", refuses=None)).cases())
    for entry, expected in ((twice, set()), (thrice, {"test_equals_the_definition"})):
        tests = tests_of(kernel(entry, op="twice", refuses=None))
        type(tests).needs = (other.__name__,)
        assert [case.kernel.name for case in tests.cases()] == [f"test.{entry.__name__}"]
        assert set(complaints(tests)) == expected


def test_the_numbers_of_rows_that_a_kernel_takes_are_kept(tests_of: Make) -> None:
    rows = {
        case.op.operands[0].type.shape[0].constant for case in tests_of(kernel(good, min_rows=1, max_rows=2)).cases()
    }
    assert rows == {1, 2}

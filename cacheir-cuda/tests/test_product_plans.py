"""Which launch a product of many rows takes: by a plan, or torch's and why; cuBLASLt by a stand-in that multiplies."""

from __future__ import annotations

import ctypes
import gc
import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed, and the backend runs on it")

from cacheir.artifact.card import CompileOptions  # noqa: E402
from cacheir.errors import BackendUnavailable, UsageError  # noqa: E402
from cacheir.runtime.executor import ExecutorOptions  # noqa: E402
from cacheir.testing.hosts import plugin_host  # noqa: E402
from cacheir.testing.tiny_programs import TinyProgram  # noqa: E402
from cacheir_cuda import large_products as bound  # noqa: E402
from cacheir_cuda.block_seat import BlockSeat  # noqa: E402
from cacheir_cuda.cublas_lt import CublasLt, LargeProduct, cublas_lt  # noqa: E402
from cacheir_cuda.measure import product_search, product_times  # noqa: E402
from cacheir_cuda.measure.product_search import Measured, large_products, tune_products  # noqa: E402
from cacheir_cuda.options import read_options  # noqa: E402
from cacheir_cuda.product_plans import TORCH, ProductPlan, choose_rank, plans_for, plans_section, read_plans  # noqa: E402
from cacheir_cuda.tuned_tiles import read_table, write_table  # noqa: E402

CPU = torch.device("cpu")
PRODUCT = LargeProduct(3, 5, 7, "float16", "float32", adds=True)
PLAN = ProductPlan(PRODUCT, "a GPU", "cublasLt 1", 1, (1e-6, 2e-6), (3e-6,))


class StandIn:
    """cuBLASLt for matrices in the processor's memory, by the meaning of its documentation: columns come one by one."""

    def __init__(self, proposals: int = 2, refused: int = -1) -> None:
        self.held: dict[int, Any] = {}
        self.numbers = itertools.count(1)
        self.proposals, self.refused = proposals, refused
        self.cublasLtGetVersion = lambda: 1
        self.launched: list[int] = []

    def _new(self, target: Any, what: Any) -> int:
        number = next(self.numbers)
        target._obj.value = number
        self.held[number] = what
        return 0

    def cublasLtCreate(self, target: Any) -> int:
        return self._new(target, "handle")

    def cublasLtMatmulDescCreate(self, target: Any, compute: Any, scale: Any) -> int:
        assert (compute.value, scale.value) == (68, 0)
        return self._new(target, {})

    def cublasLtMatmulDescSetAttribute(self, operation: Any, name: Any, value: Any, size: Any) -> int:
        assert (name.value, size.value) == (3, 4)
        self.held[operation.value]["transposed"] = value._obj.value
        return 0

    def cublasLtMatrixLayoutCreate(self, target: Any, kind: Any, rows: Any, columns: Any, apart: Any) -> int:
        return self._new(target, (kind.value, rows.value, columns.value, apart.value))

    def cublasLtMatmulPreferenceCreate(self, target: Any) -> int:
        return self._new(target, {})

    def cublasLtMatmulPreferenceSetAttribute(self, preference: Any, name: Any, value: Any, size: Any) -> int:
        assert (name.value, size.value) == (1, 8)
        self.held[preference.value]["workspace"] = value._obj.value
        return 0

    def cublasLtMatmulAlgoGetHeuristic(self, *given: Any) -> int:
        *_, preference, most, proposals, found = given
        assert self.held[preference.value]["workspace"] and most.value >= self.proposals
        for number in range(self.proposals):
            proposals[number].algorithm.data[0] = number
        found._obj.value = self.proposals
        return 0

    def cublasLtMatmul(self, *given: Any) -> int:
        _, operation, alpha, first, layout, second, other, beta, third, added, target, out, algorithm, *_ = given
        number = algorithm._obj.data[0]
        if number == self.refused:
            return 15
        self.launched.append(number)
        assert self.held[operation.value]["transposed"] == 1 and third.value == target.value
        assert self.held[added.value] == self.held[out.value]
        a, b, c = (self._matrix(*each) for each in ((first, layout), (second, other), (target, out)))
        made = alpha._obj.value * (a.astype(np.float64).T @ b.astype(np.float64))
        c[...] = made + (beta._obj.value * c if beta._obj.value else 0.0)
        return 0

    def _let_go(self, which: Any) -> int:
        del self.held[which.value]
        return 0

    cublasLtMatmulPreferenceDestroy = cublasLtMatrixLayoutDestroy = cublasLtMatmulDescDestroy = _let_go

    def _matrix(self, at: Any, layout: Any) -> Any:
        kind, rows, columns, apart = self.held[layout.value]
        assert apart == rows
        element, dtype = {0: (ctypes.c_uint32, np.float32), 2: (ctypes.c_uint16, np.float16)}[kind]
        memory = (element * (rows * columns)).from_address(at.value)
        return np.frombuffer(memory, dtype).reshape((rows, columns), order="F")


@pytest.fixture
def on_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stream:
        cuda_stream = 0

    monkeypatch.setattr("torch.cuda.current_stream", lambda device: Stream)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: "a GPU")


def operands(product: LargeProduct) -> tuple[Any, Any, Any]:
    x = torch.randn(product.tokens, product.width).to(getattr(torch, product.dtype))
    weight = torch.randn(product.count, product.width).to(getattr(torch, product.dtype))
    return x, weight, torch.randn(product.tokens, product.count).to(getattr(torch, product.out))


@pytest.mark.usefixtures("on_the_processor")
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("out", ["float16", "float32"])
def test_a_proposal_is_the_product(out: str, adds: bool) -> None:
    """With the library's matrices the other way around; what it makes for a product is let go."""
    library = StandIn()
    blas = CublasLt(library, CPU)
    product = replace(PRODUCT, out=out, adds=adds)
    x, weight, made = operands(product)
    expected = x.double() @ weight.double().T + (made.double() if adds else 0)
    proposals = blas.proposals(product)
    assert len(proposals) == 2
    proposals.launch(1, x, weight, made, torch.empty(8, dtype=torch.uint8))
    assert library.launched == [1]
    assert (made.double() - expected).abs().max() < 2e-3 * expected.abs().max()
    proposals.close()
    assert list(library.held.values()) == ["handle"]


@pytest.mark.usefixtures("on_the_processor")
def test_a_plan_is_followed_where_it_is_for_this_product(monkeypatch: pytest.MonkeyPatch) -> None:
    library = StandIn()
    monkeypatch.setattr(bound, "cublas_lt", lambda device: CublasLt(library, device))
    x, weight, out = operands(PRODUCT)
    for plans, launched, reason in [
        ([PLAN], [1], ""),
        ([replace(PLAN, rank=TORCH)], [], ""),
        ([replace(PLAN, rank=7)], [], "proposes 2 launches"),
        ([replace(PLAN, toolchain="cublasLt 2")], [], "another library than cublasLt 1"),
        ([replace(PLAN, device="other")], [], "was not timed"),
        ([], [], ""),
    ]:
        library.launched.clear()
        products = bound.LargeProducts(CPU, plans)
        before = out.clone()
        products.bind(x, weight, out, adds=True)()
        assert library.launched == launched
        assert torch.allclose(out, before + x.float() @ weight.float().T, atol=1e-3)
        assert [reason in each for each in products.reasons] == [True] * bool(reason)


@pytest.mark.usefixtures("on_the_processor")
@pytest.mark.parametrize("what", ["device", "tokens"])
def test_plans_of_others_ask_for_no_library(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(device: Any) -> Any:
        pytest.fail("cuBLASLt was loaded")

    monkeypatch.setattr(bound, "cublas_lt", asked)
    other = replace(PLAN, device="other") if what == "device" else replace(PLAN, product=replace(PRODUCT, tokens=9))
    products = bound.LargeProducts(CPU, [other])
    products.bind(*operands(PRODUCT), adds=True)()
    assert ["on a GPU was not timed" in each for each in products.reasons] == [True]


@pytest.mark.usefixtures("on_the_processor")
@pytest.mark.parametrize("where", ["library", "heuristic"])
def test_without_the_library_torch_s_launch_runs_and_the_reason_is_told(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = StandIn()
    library.cublasLtMatmulAlgoGetHeuristic = lambda *given: 7  # type: ignore[method-assign]

    def given(device: Any) -> CublasLt:
        if where == "library":
            raise BackendUnavailable("libcublasLt.so cannot be used (no such file)")
        return CublasLt(library, device)

    monkeypatch.setattr(bound, "cublas_lt", given)
    products = bound.LargeProducts(CPU, [PLAN])
    x, weight, out = operands(PRODUCT)
    expected = out + x.float() @ weight.float().T
    products.bind(x, weight, out, adds=True)()
    assert torch.allclose(out, expected, atol=1e-3)
    seat = BlockSeat({}, {}, CPU, read_options({}), ExecutorOptions())
    seat._products = products
    (told,) = seat.counters()
    assert told.startswith("product_unplanned: ")
    assert ("no such file" if where == "library" else "Heuristic failed with status 7") in told
    gc.collect()
    assert set(library.held.values()) <= {"handle"}


@pytest.mark.usefixtures("on_the_processor")
def test_equal_products_share_what_the_library_holds_until_the_blocks_close(monkeypatch: pytest.MonkeyPatch) -> None:
    library = StandIn()
    monkeypatch.setattr(bound, "cublas_lt", lambda device: CublasLt(library, device))
    seat = BlockSeat({}, {}, CPU, read_options({}), ExecutorOptions())
    seat._products = bound.LargeProducts(CPU, [PLAN])
    bind = seat._products.bind
    launches = [bind(*operands(PRODUCT), adds=True) for _ in range(3)]
    for launch in launches:
        launch()
    assert library.launched == [1, 1, 1]
    held = [each for each in library.held.values() if not isinstance(each, str)]
    assert len(held) == 4  # the product and its three matrices, once
    seat.close()
    assert set(library.held.values()) == {"handle"}


@pytest.mark.usefixtures("on_the_processor")
def test_what_nothing_refers_to_is_let_go() -> None:
    library = StandIn()
    proposals = CublasLt(library, CPU).proposals(PRODUCT)
    assert len(library.held) > 4
    del proposals
    gc.collect()
    assert set(library.held.values()) <= {"handle"}


@pytest.mark.usefixtures("on_the_processor")
def test_a_launch_that_is_refused_says_so() -> None:
    proposals = CublasLt(StandIn(refused=0), CPU).proposals(PRODUCT)
    with pytest.raises(BackendUnavailable, match="cublasLtMatmul failed with status 15"):
        proposals.launch(0, *operands(PRODUCT), torch.empty(8, dtype=torch.uint8))


def test_a_library_that_is_not_there() -> None:
    def missing(name: str) -> Any:
        raise OSError(f"{name}: no such file")

    with pytest.raises(BackendUnavailable, match=r"libcublasLt\.so"):
        cublas_lt(CPU, missing)


def test_plans_are_kept_beside_tiles(tmp_path: Path) -> None:
    table = tmp_path / "tiles.json"
    other = replace(PLAN, product=replace(PRODUCT, tokens=9))
    write_table(table, [], plans_section((), [PLAN, other]))
    assert set(read_plans(table)) == {PLAN, other} and read_table(table) == ()
    newer = replace(PLAN, rank=TORCH)
    write_table(table, [], plans_section(read_plans(table), [newer]))
    assert set(read_plans(table)) == {newer, other}
    write_table(table, [])
    assert read_plans(table) == ()


@pytest.mark.parametrize("change", [
    {"rank": 16}, {"rank": -2}, {"rank": True}, {"tokens": 0}, {"tokens": "3"}, {"count": 1 << 40}, {"dtype": "int8"},
    {"adds": 1}, {"samples_s": "now"}, {"samples_s": [10**400]}, {"more": 1},
    {"samples_s": [math.nan]}, {"torch_s": [1e-6, math.inf]}, {"samples_s": [-1e-6]}, {"torch_s": "12"},
    {"torch_s": [True]},
])  # fmt: skip
def test_a_plan_is_not_believed(change: dict[str, Any], tmp_path: Path) -> None:
    table = tmp_path / "tiles.json"
    held = plans_section((), [PLAN])
    held["products"][0] |= change
    write_table(table, [], held)
    with pytest.raises(UsageError, match="is no table of product plans"):
        read_plans(table)


@pytest.mark.parametrize("config", ["[1]", '{"warps": Infinity}', "[" * 100_000])
@pytest.mark.parametrize("samples", ["[1]", "[1" + 400 * "0" + "]"])
def test_a_damaged_table_is_refused(config: str, samples: str, tmp_path: Path) -> None:
    table, names = tmp_path / "tiles.json", ("dtype", "device", "toolchain", "source")
    given = "".join(f'"{name}": "x", ' for name in names)
    row = f'{{"count": 1, "width": 1, "rows": 16, {given}"config": {config}, "samples_s": {samples}}}'
    table.write_text(f'{{"format": 1, "rows": [{row}]}}')
    with pytest.raises(UsageError, match="is no table of tuned tiles"):
        read_table(table)


def test_the_fastest_launch_is_planned_and_torch_s_where_none_is_faster() -> None:
    times = {
        PRODUCT: {TORCH: [3.0], 0: [2.9, 3.1, 3.0], 2: [2.0]},
        replace(PRODUCT, tokens=9): {TORCH: [3.0], 0: [2.99]},
    }
    said: list[str] = []

    def measure(product: LargeProduct) -> Measured:
        yield from times[product].items()

    plans = tune_products(list(times), measure, device="a GPU", toolchain="cublasLt 1", progress=said.append)
    assert [(plan.rank, plan.samples_s, plan.torch_s) for plan in plans] == [
        (2, (2.0,), (3.0,)),
        (TORCH, (3.0,), (3.0,)),
    ]
    assert "proposal 2" in said[0] and "torch's launch" in said[1]
    assert choose_rank(plans_for(plans, PRODUCT, "a GPU")[0], "cublasLt 1") == (2, "")
    late = tune_products(list(times), measure, device="", toolchain="", seconds=-1, progress=said.append)
    assert not late and "were over" in said[-1]


def test_no_launch_is_timed_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes a second: of the second product one launch is, and what the library held for it is let go."""
    now, said, ended = [0.0], list[str](), list[int]()
    monkeypatch.setattr(product_search, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def measure(product: LargeProduct) -> Measured:
        try:
            for rank in (TORCH, 0, 1):
                now[0] += 1
                yield rank, [1.0]
        finally:
            ended.append(product.tokens)

    wanted = [replace(PRODUCT, tokens=tokens) for tokens in (3, 9, 27)]
    plans = tune_products(wanted, measure, device="", toolchain="", seconds=3.5, progress=said.append)
    assert [plan.product for plan in plans] == wanted[:1] and ended == [3, 9] and now == [4.0]
    assert "no plan, the 3.5 seconds were over after 1 launches" in said[1] and "not timed" in said[2]


@pytest.mark.usefixtures("on_the_processor")
def test_launches_are_timed_as_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is refused is passed over; torch's comes first, and the library keeps nothing."""
    library = StandIn(proposals=3, refused=1)
    monkeypatch.setattr(product_times, "WORKSPACE_BYTES", 8)
    measure = product_times.measure_products_on(CublasLt(library, CPU))
    assert [rank for rank, _ in measure(PRODUCT)] == [TORCH, 0, 2]
    assert set(library.held.values()) == {"handle"}
    library.launched.clear()
    some = measure(PRODUCT)
    assert next(some)[0] == TORCH and not library.launched
    assert next(some)[0] == 0 and set(library.launched) == {0}
    some.close()
    assert set(library.held.values()) == {"handle"}


def test_the_products_of_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """q, k and v; out; gate and up; down: those that end in the residual stream are added to it."""
    monkeypatch.setenv("CACHEIR_CUDA_DEVICE", "cpu")
    program = TinyProgram("grouped", plugin_host("cacheir_cuda.plugin"), CompileOptions(target="cuda")).program
    found = list(large_products(program, [96, 512], "bfloat16", 512))
    shapes = {(one.count, one.width, one.adds) for one in found}
    assert shapes == {(64, 32, False), (32, 32, True), (128, 32, False), (32, 64, True)}
    assert {one.out for one in found if not one.adds} == {"float32", "bfloat16"}
    assert {one.out for one in found if one.adds} == {"float32"}
    assert {one.out for one in found if one.tokens == 512 and not one.adds} == {"bfloat16"}
    json.dumps([one.tokens for one in found])

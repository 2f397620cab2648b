"""The CUDA C++ kernels of single ops: what they refuse and how they are launched; on a GPU, each beside a formula."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from ctypes import Structure
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed, and the kernels take its tensors")

from cacheir.errors import BackendUnavailable, UsageError  # noqa: E402
from cacheir.ir import Op  # noqa: E402
from cacheir.ir.types import KVType  # noqa: E402
from cacheir.plugins import resolve  # noqa: E402
from cacheir.testing.arrays import example_op  # noqa: E402
from cacheir.testing.hosts import plugin_host  # noqa: E402
from cacheir_cuda.chain import cubins  # noqa: E402
from cacheir_cuda.compiled import attention, launching, products, refusals, rows  # noqa: E402
from cacheir_cuda.compiled.table import compiled_kernels  # noqa: E402
from cacheir_cuda.driver import DriverProblem  # noqa: E402
from cacheir_cuda.pool import Pool  # noqa: E402

DEVICE = torch.device(os.environ.get("CACHEIR_TEST_DEVICE", "cpu"))
on_a_gpu = pytest.mark.skipif(DEVICE.type != "cuda", reason="CUDA C++ runs on a GPU alone")
Launch = tuple[str, Sequence[int], int, Structure, int]


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Launch]]:
    """What would be launched."""
    made: list[Launch] = []

    def note(name: str, grid: Any, threads: int, given: Structure, device: Any, shared_bytes: int = 0) -> None:
        made.append((name, grid, threads, given, shared_bytes))

    for module in (attention, products, rows):
        monkeypatch.setattr(module, "launch", note)
    yield made


def examples(op: str) -> list[Op]:
    definition = plugin_host("cacheir_cuda.plugin").ops.by_name()[op]
    assert definition.examples is not None
    return [example_op(definition, types, attrs) for types, attrs in resolve(definition.examples)()]


def test_where_they_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "_why_no_cubin", refusals._why_no_cubin.__wrapped__)
    monkeypatch.setenv("CACHEIR_CUDA_DEVICE", "cpu")
    assert refusals.why_not_here() == "the CUDA C++ kernels run on a GPU alone"
    monkeypatch.setenv("CACHEIR_CUDA_DEVICE", "cuda:1")
    asked = []

    def no_gpu(number: int) -> tuple[int, int]:
        asked.append(number)
        raise DriverProblem("no driver", missing=True)

    monkeypatch.setattr(refusals, "ask_capability", no_gpu)
    assert refusals.why_not_here() == "no driver" and asked == [1]
    monkeypatch.setattr(refusals, "ask_capability", lambda number: (7, 5))
    reason = refusals.why_not_here()
    assert reason is not None and ("this GPU has 7.5" in reason or "not built" in reason)


def test_a_cubin_that_comes_along_is_found_in_the_same_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As ``keep_carried`` leaves it: what was refused before it came is asked again."""
    monkeypatch.setenv("CACHEIR_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("CACHEIR_CUDA_DEVICE", raising=False)
    monkeypatch.setattr(refusals, "ask_capability", lambda number: (9, 0))

    def load(capability: tuple[int, int], folder: Path, others: list[Path], source: str) -> bytes:
        for other in others:
            if (other / f"{source}.sm_90a.cubin").is_file():
                return b""
        raise BackendUnavailable("no cubin here")

    monkeypatch.setattr(refusals, "load_cubin", load)
    refusals._why_no_cubin.cache_clear()
    assert refusals.why_not_here() == "no cubin here"
    (tmp_path / "cubins").mkdir()
    (tmp_path / "cubins" / "kernels.sm_90a.cubin").write_bytes(b"x")
    assert refusals.why_not_here() is None
    refusals._why_no_cubin.cache_clear()


def test_what_they_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "why_not_here", lambda: None)
    plain, quantised = (
        next(op for op in examples("linear") if op.operands[0].type.shape[-1].constant == n) for n in (7, 64)
    )
    assert refusals.product(plain) == "rows of 7 elements are no whole number of the 8 that the kernel copies at once"
    assert refusals.product(quantised) is None
    turned = [refusals.turned_product(op) for op in examples("fused_rmsnorm_qkv_rope")]
    assert any(turned) and None in turned
    taken = [op for op in examples("paged_attention_decode") if refusals.paged(op) is None]
    assert {op.attr("window", 0) for op in taken} == {0, 3} and any(op.attr("sinks", 0) for op in taken)
    half = next(op for op in examples("paged_attention_decode") if op.operands[0].type.dtype == "f16")
    assert "is f16, not f32" in str(refusals.paged(half))


@pytest.mark.parametrize(("dim", "words"), [(12, "heads are of 12"), (264, "heads are of 264"), (256, "")])
def test_heads_of_other_sizes(dim: int, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "why_not_here", lambda: None)
    definition = plugin_host("cacheir_cuda.plugin").ops.by_name()["paged_attention_decode"]
    types, attrs = next(iter(resolve(definition.examples)()))
    wide = [type(types[0])("f32", (*types[0].shape[:2], type(types[0].shape[2])(dim))), *types[1:]]
    wide[1] = KVType(layers=2, heads=2, head_dim=dim, dtype="f32")
    assert words in str(refusals.paged(example_op(definition, wide, attrs)))


def test_pages_of_codes_are_refused_when_they_are_opened() -> None:
    records = {spec.name: spec for spec in compiled_kernels()}
    kind = KVType(layers=1, heads=1, head_dim=8, dtype="f32")
    for dtype in ("int8", "bf16"):
        pools = [Pool(kind, [0], 1, 16, torch.device("cpu"), dtype)]
        if dtype == "bf16":
            refusals.check_pages(records, pools)
            continue
        with pytest.raises(UsageError, match="reads pages of f32, f16, bf16, and these hold int8"):
            refusals.check_pages(records, pools)


def test_matrices_in_float32_are_refused(launches: list[Launch]) -> None:
    with pytest.raises(UsageError, match="held as torch"):
        products.linear(torch.zeros(1, 8), torch.zeros(3, 8), out=torch.zeros(1, 3))
    assert not launches


@pytest.mark.parametrize(("count", "name"), [(1, "m16_n16"), (33, "m64_n32"), (300, "m128_n128")])
def test_a_product_covers_every_row_and_column(count: int, name: str, launches: list[Launch]) -> None:
    x, weight = torch.zeros(count, 24), torch.zeros(131, 24, dtype=torch.bfloat16)
    products.linear(x, weight, out=torch.zeros(count, 131))
    ((kernel, grid, threads, given, shared),) = launches
    tile = products.tile_of(count)
    assert (
        kernel.startswith(f"linear_{name}_k")
        and kernel.endswith("_bf16")
        and threads == 32 * tile.warps
        and shared == tile.shared_bytes
    )
    assert grid[0] * tile.columns >= 131 > (grid[0] - 1) * tile.columns
    assert grid[1] * tile.rows >= count > (grid[1] - 1) * tile.rows
    assert (given.rows, given.columns, given.width) == (count, 131, 24)


def test_nothing_is_launched_for_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of prompts may want no head."""
    asked: list[tuple[Any, ...]] = []
    monkeypatch.setattr(launching, "_function", lambda *wanted: asked.append(wanted))
    empty = torch.empty(0, 8)
    rows.rms_norm(empty, torch.ones(8), eps=1e-6, out=empty)
    products.linear(empty, torch.ones(3, 8, dtype=torch.float16), out=torch.empty(0, 3))
    assert not asked


def test_tiles_fit_the_shared_memory_of_both_architectures() -> None:
    assert all(tile.shared_bytes <= 163 << 10 for tile in products.TILES)


@pytest.mark.parametrize(("heads", "kv_heads", "blocks", "kernel"), [
    (2, 2, 2, "l16_g1"), (12, 2, 2, "l16_g8"), (32, 2, 4, "l16_g8"), (6, 2, 2, "l16_g4"),
])  # fmt: skip
def test_every_query_head_has_a_block(
    heads: int, kv_heads: int, blocks: int, kernel: str, launches: list[Launch]
) -> None:
    pool = Pool(KVType(layers=1, heads=kv_heads, head_dim=128, dtype="f16"), [0], 4, 16, torch.device("cpu"))
    q, table, last = torch.zeros(3, heads, 128), torch.zeros(3, 2, dtype=torch.int32), torch.zeros(3, dtype=torch.int32)
    given = {"layer": 0, "scale": 1.0, "window": 0, "out": torch.zeros_like(q)}
    attention.paged_attention_decode_batched(q, pool, table, last, last + 1, **given)
    attention.paged_attention_decode_reduced(q, pool, table, last, last + 1, **given)
    whole, parts, merge = launches
    assert whole[0] == parts[0] == f"paged_decode_f16_{kernel}" and merge[0] == "paged_reduce"
    assert whole[1] == (3, blocks, 1) and parts[1][:2] == (3, blocks) and parts[1][2] == parts[3].splits > 1
    assert merge[1] == (3 * heads, 1, 1)


def test_keys_are_split_so_that_a_gpu_is_full() -> None:
    assert [attention.splits_of(blocks, 8192) for blocks in (1, 8, 64, 1000)] == [64, 64, 8, 2]
    assert [attention.splits_of(8, keys) for keys in (16, 512, 4096)] == [2, 8, 64], "few keys are not worth a part"


def test_the_built_cubins_have_every_kernel() -> None:
    if not (cubins.FOLDER / cubins.MANIFEST).exists():
        pytest.skip("the CUDA C++ kernels are not built here")
    cubins.read_manifest.cache_clear()
    built = [cubin for cubin in cubins.read_manifest() if cubin.source == refusals.SOURCE]
    if not built:
        pytest.skip("these kernels are not built here")
    wanted = {"rms_norm", "rms_norm_f16", "rms_norm_bf16", "swiglu", "paged_reduce"}
    wanted |= {
        f"{op}_{tile.name}_{dtype}"
        for op in ("linear", "gated", "qkv")
        for tile in products.TILES
        for dtype in products.NAMES.values()
    }
    wanted |= {
        attention.kernel_of(dtype, dim, group)
        for dtype in (torch.float32, torch.float16, torch.bfloat16)
        for dim in (64, 128, 256)
        for group in (1, 2, 3, 8)
    }
    for cubin in built:
        assert wanted <= cubin.kernels
        assert cubins.load_cubin(cubin.capability, source=refusals.SOURCE)


def random(*shape: int, seed: int = 0, dtype: Any = torch.float32) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng([seed, *shape]).standard_normal(shape)).to(DEVICE).to(dtype)


def exact(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    made: np.ndarray[Any, Any] = tensor.double().cpu().numpy()
    return made


def near(found: torch.Tensor, expected: np.ndarray[Any, Any], bound: float) -> None:
    apart = np.abs(exact(found) - expected).max() / np.abs(expected).max()
    assert apart < bound, f"{apart:.1e} of the largest value"


@on_a_gpu
def test_there_is_a_cubin_for_this_gpu() -> None:
    try:
        assert launching._module(DEVICE)
    except BackendUnavailable as reason:
        pytest.fail(str(reason))


@on_a_gpu
@pytest.mark.parametrize(("count", "width"), [(1, 1), (1, 7), (3, 1024), (257, 4096), (2, 130), (5, 8960)])
def test_norms_and_gates_of_any_width(count: int, width: int) -> None:
    x, weight, up = random(count, width), random(width), random(count, width, seed=1)
    out, gated = torch.full_like(x, torch.nan), torch.full_like(x, torch.nan)
    rows.rms_norm(x, weight, eps=1e-6, out=out)
    given = exact(x)
    near(out, given / np.sqrt((given**2).mean(1, keepdims=True) + 1e-6) * exact(weight), 1e-6)
    rows.swiglu(x, up, out=gated)
    near(gated, given / (1 + np.exp(-given)) * exact(up), 1e-6)
    odd = torch.full((count * width,), torch.nan, device=DEVICE)[1:]  # 4 bytes off what 16 at a time need
    if count * width > 1:
        rows.swiglu(x.flatten()[1:], up.flatten()[1:], out=odd)
        near(odd, (given / (1 + np.exp(-given)) * exact(up)).ravel()[1:], 1e-6)


@on_a_gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("count", "columns", "width"),
    [(1, 5, 8), (16, 1024, 1024), (17, 33, 136), (33, 130, 600), (64, 64, 2048), (129, 259, 72), (300, 384, 1000)],
)
def test_products_of_odd_sizes(count: int, columns: int, width: int, dtype: Any) -> None:
    x, weight, bias = random(count, width, dtype=dtype), random(columns, width, dtype=dtype), random(columns)
    out = torch.full((count, columns), torch.nan, device=DEVICE)
    products.linear(x.float(), weight, bias, out=out)
    made = exact(x) @ exact(weight).T + exact(bias)
    near(out, made, 1e-5)
    products.linear(x.float(), weight, out=out)
    near(out, made - exact(bias), 1e-5)
    stacked, biases = random(2 * columns, width, dtype=dtype, seed=3), random(2, columns, seed=4)
    gated = torch.full((count, columns), torch.nan, device=DEVICE)
    products.fused_swiglu(x.float(), stacked, biases[0], biases[1], out=gated)
    both = exact(x) @ exact(stacked).T + exact(biases).ravel()
    gate, up = np.split(both, 2, axis=1)
    near(gated, gate / (1 + np.exp(-gate)) * up, 1e-4)


@on_a_gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize(
    ("count", "heads", "kv_heads", "dim", "half", "width"),
    [(1, 16, 8, 128, 64, 1024), (5, 3, 1, 64, 16, 200), (40, 6, 2, 20, 10, 72), (300, 12, 2, 128, 64, 1536)],
)
def test_qkv_with_its_norm_and_rotation(
    count: int, heads: int, kv_heads: int, dim: int, half: int, width: int, layout: str, dtype: Any
) -> None:
    """Odd sizes, a part of each head that is not turned, tiles that begin within a head."""
    x, norm = random(count, width), random(width, seed=1)
    stacked = random((heads + 2 * kv_heads) * dim, width, dtype=dtype, seed=2)
    biases = [random(n * dim, seed=3 + n) for n in (heads, kv_heads, kv_heads)]
    angles = random(count, half, seed=9)
    out = tuple(torch.full((count, n, dim), torch.nan, device=DEVICE) for n in (heads, kv_heads, kv_heads))
    products.fused_rmsnorm_qkv_rope(
        x, norm, stacked, angles.cos(), angles.sin(), *biases, eps=1e-6, layout=layout, out=out, heads=heads
    )
    given = exact(x)
    normed = given / np.sqrt((given**2).mean(1, keepdims=True) + 1e-6) * exact(norm)
    made = normed @ exact(stacked).T + np.concatenate([exact(bias) for bias in biases])
    parts = np.split(made.reshape(count, -1, dim), [heads, heads + kv_heads], axis=1)
    cos, sin = (exact(part)[:, None] for part in (angles.cos(), angles.sin()))
    first = np.arange(half) if layout == "half" else 2 * np.arange(half)
    second = first + (half if layout == "half" else 1)
    for number, part in enumerate(parts):
        if number < 2:
            a, b = part[..., first].copy(), part[..., second].copy()
            part[..., first], part[..., second] = a * cos - b * sin, b * cos + a * sin
        near(out[number], part, 8e-3 if dtype == torch.bfloat16 else 1e-3)


@on_a_gpu
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "page_tokens", "attrs"),
    [
        (16, 8, 128, 16, {}),
        (12, 2, 128, 16, {"window": 21}),
        (9, 3, 64, 4, {"softcap": 3.0}),
        (28, 4, 80, 7, {"window": 9, "sinks": 5}),
        (32, 1, 256, 32, {}),
        (4, 4, 8, 1, {"window": 3}),
    ],
)
def test_attention_over_pages(
    heads: int, kv_heads: int, dim: int, page_tokens: int, attrs: dict[str, Any], dtype: str
) -> None:
    """Ragged rows over scattered pages, NaN where nobody may look, lengths beside the borders of pages."""
    lengths = [1, 2, page_tokens, page_tokens + 1, 63, 200, 517]
    chance = np.random.default_rng(5)
    pages_of = [-(-length // page_tokens) for length in lengths]
    order = chance.permutation(sum(pages_of))
    pool = Pool(KVType(layers=2, heads=kv_heads, head_dim=dim, dtype=dtype), [1, 0], len(order), page_tokens, DEVICE)
    pool.storage.fill_(torch.nan)
    table = torch.zeros((len(lengths), max(pages_of)), dtype=torch.int32)
    held, start = [], 0
    for row, (length, count) in enumerate(zip(lengths, pages_of)):
        pages = order[start : start + count]
        start += count
        table[row, :count] = torch.from_numpy(pages.astype(np.int32))
        slots = np.array([pages[i // page_tokens] * page_tokens + i % page_tokens for i in range(length)], np.int32)
        keys, values = (chance.standard_normal((length, kv_heads, dim)).astype(np.float32) for _ in range(2))
        pool.append(0, keys, values, slots)
        kind = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[dtype]
        held.append([torch.from_numpy(part).to(kind).double().numpy() for part in (keys, values)])
    q = random(len(lengths), heads, dim)
    last = torch.tensor(lengths, dtype=torch.int32, device=DEVICE) - 1
    window, sinks, softcap = attrs.get("window", 0), attrs.get("sinks", 0), attrs.get("softcap", 0.0)
    expected = np.zeros((len(lengths), heads, dim))
    for row, (keys, values) in enumerate(held):
        at = np.arange(lengths[row])
        seen = (at > lengths[row] - 1 - window) | (at < sinks) if window else at >= 0
        for head in range(heads):
            k, v = (part[seen, head * kv_heads // heads] for part in (keys, values))
            scores = k @ exact(q[row, head]) * dim**-0.5
            scores = softcap * np.tanh(scores / softcap) if softcap else scores
            weights = np.exp(scores - scores.max())
            expected[row, head] = weights @ v / weights.sum()
    named = {"layer": 0, "scale": dim**-0.5, "window": window, "sinks": sinks, "softcap": softcap}
    for kernel in (attention.paged_attention_decode_batched, attention.paged_attention_decode_reduced):
        out = torch.full_like(q, torch.nan)
        kernel(q, pool, table.to(DEVICE), last, last + 1, **named, out=out)
        near(out, expected, 1e-5)
        again = torch.empty_like(q)
        kernel(q, pool, table.to(DEVICE), last, last + 1, **named, out=again)
        assert torch.equal(out, again)

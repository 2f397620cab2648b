"""The kernels of whole blocks in Triton's interpreter: each beside a formula in float64, a model beside the CPU's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed, and the backend's kernels take its tensors")
pytest.importorskip("triton", reason="Triton is not installed")

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

from cacheir.artifact.card import CompileOptions  # noqa: E402
from cacheir.ir.types import KVType  # noqa: E402
from cacheir.reference.sampling import sample as meaning  # noqa: E402
from cacheir.testing.hosts import plugin_host  # noqa: E402
from cacheir.testing.opened_backend import OpenedBackend  # noqa: E402
from cacheir.testing.tiny_programs import TinyProgram  # noqa: E402
from cacheir_cuda import block_launches, large_products  # noqa: E402
from cacheir_cuda.kernels import triton_block, triton_gated, triton_paged, triton_step, triton_tiles  # noqa: E402
from cacheir_cuda.kernels.triton_sampling import sample  # noqa: E402
from cacheir_cuda.pool import Pool  # noqa: E402
from cacheir_cuda.prefill_graphs import bucket_of  # noqa: E402

pytestmark = pytest.mark.usefixtures("interpreted")
CPU = torch.device("cpu")


def near(found: torch.Tensor, expected: np.ndarray, bound: float = 3e-3) -> None:
    """Within ``bound`` of the largest expected value."""
    apart = np.abs(found.double().numpy() - expected).max() / np.abs(expected).max()
    assert apart < bound, f"{apart:.1e} of the largest value"


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng([seed, *shape]).standard_normal(shape)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("rows", "count", "width", "parts"), [(1, 70, 96, 1), (5, 130, 600, 3), (67, 64, 256, 2)])
def test_parts_of_a_product_sum_to_it(rows: int, count: int, width: int, parts: int, dtype: torch.dtype) -> None:
    x, weight = random(rows, width, dtype=dtype), random(count, width, dtype=dtype)
    out = torch.full((parts, rows, count), torch.nan)
    triton_tiles.product_parts(x, weight, out)
    near(out.sum(0), x.double().numpy() @ weight.double().numpy().T)


def test_a_row_has_the_same_bits_beside_others() -> None:
    x, weight = random(40, 256, dtype=torch.float16), random(96, 256, dtype=torch.float16)
    together, alone = torch.empty(1, 40, 96), torch.empty(1, 1, 96)
    triton_tiles.product_parts(x, weight, together)
    triton_tiles.product_parts(x[7:8].contiguous(), weight, alone)
    assert torch.equal(together[0, 7], alone[0, 0])


@pytest.mark.parametrize("biased", [False, True])
def test_gated_product(biased: bool) -> None:
    x, weight = random(3, 128, dtype=torch.float16), random(2 * 50, 128, dtype=torch.float16, seed=1)
    bias = random(100) if biased else None
    out, large = torch.empty(3, 50, dtype=torch.float16), torch.empty(3, 50, dtype=torch.float16)
    triton_tiles.product_gated(x, weight, bias, out)
    both = x.double().numpy() @ weight.double().numpy().T
    triton_block.gated(torch.from_numpy(both).float()[None], bias, out=large)
    gate, up = np.split(both + (bias.double().numpy() if biased else 0), 2, axis=1)
    for found in (out, large):
        near(found, gate / (1 + np.exp(-gate)) * up)


@pytest.mark.parametrize(("rows", "count", "width"), [(1, 8, 8), (300, 136, 72)])
def test_gated_product_of_many_rows(rows: int, count: int, width: int) -> None:
    x, weight = random(rows, width, dtype=torch.float16), random(2 * count, width, dtype=torch.float16, seed=1)
    out = torch.full((rows, count), torch.nan, dtype=torch.float16)
    assert triton_gated.takes(weight)
    triton_gated.gated_product(x, weight, out)
    gate, up = np.split(x.double().numpy() @ weight.double().numpy().T, 2, axis=1)
    near(out, gate / (1 + np.exp(-gate)) * up)


@pytest.mark.parametrize("parts", [0, 3])
def test_norm_of_a_sum(parts: int) -> None:
    hidden, weight, bias = random(4, 90), random(90), random(90, seed=2)
    terms = random(parts, 4, 90) if parts else None
    before = hidden.double().numpy()
    total = before + (terms.double().numpy().sum(0) + bias.double().numpy() if parts else 0)
    expected = total / np.sqrt((total**2).mean(1, keepdims=True) + 1e-6) * weight.double().numpy()
    out = torch.empty(4, 90, dtype=torch.float16)
    chosen = torch.empty(2, 90)
    given = (terms, bias if parts else None, weight)
    triton_block.sum_norm(hidden.clone(), *given, eps=1e-6, out=chosen, rows=torch.tensor([3, 1], dtype=torch.int32))
    triton_block.sum_norm(hidden, *given, eps=1e-6, out=out)
    near(hidden, total, 1e-6)
    near(out, expected)
    near(chosen, expected[[3, 1]], 1e-5)


@pytest.mark.parametrize("window", [0, 7])
@pytest.mark.parametrize("dim", [16, 24])
def test_attention_of_prompts_and_of_single_queries(window: int, dim: int) -> None:
    """Ragged rows over random pages, NaN where nobody may look, beside the formula; the last token both ways."""
    heads, kv_heads, page_tokens, lengths, fresh = 6, 2, 4, (37, 9, 1), (21, 9, 1)
    kind = KVType(layers=1, heads=kv_heads, head_dim=dim, dtype="f32")
    pool = Pool(kind, [0], 32, page_tokens, CPU)
    pool.storage.fill_(torch.nan)
    order = np.random.default_rng(3).permutation(32)
    table = torch.zeros((3, 12), dtype=torch.int32)
    starts, positions, tables, start = [0], [], [], 0
    for row, (length, new) in enumerate(zip(lengths, fresh)):
        pages = order[start : start + -(-length // page_tokens)]
        start += len(pages)
        table[row, : len(pages)] = torch.from_numpy(pages.astype(np.int32))
        slots = np.array([pages[i // page_tokens] * page_tokens + i % page_tokens for i in range(length)], np.int32)
        keys, values = (random(length, kv_heads, dim, seed=10 * row + n).numpy() for n in (0, 1))
        pool.append(0, keys, values, slots)
        tables.append((keys, values))
        starts.append(starts[-1] + new)
        positions += list(range(length - new, length))
    q = random(starts[-1] + 2, heads, dim)  # two tokens of padding that no row has
    out = torch.zeros_like(q)
    at = torch.tensor([*positions, 0, 0], dtype=torch.int32)
    row_starts = torch.tensor(starts, dtype=torch.int32)
    named = {"layer": 0, "scale": 0.2, "window": window, "softcap": 5.0}
    triton_paged.prefill(q, pool, table, row_starts, at, **named, out=out)
    last = torch.tensor([stop - 1 for stop in starts[1:]])
    single = torch.empty((3, heads, dim))
    triton_paged.decode(q[last].contiguous(), pool, table, at[last].contiguous(), **named, out=single)
    for row, (keys, values) in enumerate(tables):
        for token in range(starts[row], starts[row + 1]):
            seen = range(max(0, positions[token] + 1 - window) if window else 0, positions[token] + 1)
            for head in range(heads):
                k, v = (x[list(seen), head // 3].astype(np.float64) for x in (keys, values))
                scores = 5.0 * np.tanh(k @ q[token, head].double().numpy() * 0.2 / 5.0)
                weights = np.exp(scores - scores.max())
                near(out[token, head], weights @ v / weights.sum(), 1e-4)
    near(single, out[last].double().numpy(), 1e-5)
    assert not out[starts[-1] :].any(), "tokens that no row has are left alone"
    if not window:  # the step's own keys and values from elsewhere; in the pages nobody looks for them
        own, again = torch.full((2, kv_heads, len(q), dim), torch.nan), torch.zeros_like(q)
        for row, (both, new) in enumerate(zip(tables, fresh)):
            for part in range(2):
                own[part, :, starts[row] : starts[row + 1]] = torch.from_numpy(both[part][-new:]).transpose(0, 1)
            for i in range(lengths[row] - new, lengths[row]):
                pool.storage[0, table[row, i // page_tokens], :, :, i % page_tokens] = torch.nan
        triton_paged.prefill(q, pool, table, row_starts, at, **named, own=own, out=again)
        near(again, out.double().numpy(), 1e-5)


def test_splits_follow_the_number_of_rows_and_keys() -> None:
    assert [triton_paged.splits_of(rows * 8, 4096) for rows in (1, 4, 16, 64)] == [16, 16, 4, 1]
    assert triton_paged.splits_of(8, 256) == 1, "few keys are not worth a merge"


def test_the_beginning_of_a_step() -> None:
    """A token of -1 reads the first row."""
    tokens, positions = torch.tensor([2, -1, 9], dtype=torch.int32), torch.tensor([0, 7, 31], dtype=torch.int32)
    table, frequencies = random(10, 20, dtype=torch.float16), torch.tensor([1.0, 0.1, 0.01])
    hidden, cos, sin = torch.empty(3, 20), torch.empty(3, 3), torch.empty(3, 3)
    triton_step.begin(tokens, positions, table, frequencies, 0.5, hidden=hidden, cos=cos, sin=sin)
    assert torch.equal(hidden, table[[2, 0, 9]].float())
    angles = positions.numpy()[:, None] * frequencies.double().numpy()
    near(cos, 0.5 * np.cos(angles), 1e-5)
    near(sin, 0.5 * np.sin(angles), 1e-5)


@pytest.mark.parametrize("rounded", [False, True])
def test_sampled_tokens_are_the_reference_s(rounded: bool) -> None:
    """Every filter, with ties, masks, NaN and nothing to choose from; the tokens are equal, not only their shares."""
    random_ = np.random.default_rng(8)
    logits = (random_.standard_normal((7, 4500)) * 3).astype(np.float32)
    logits = np.round(logits) if rounded else logits
    logits[5, 17], logits[6] = np.nan, -np.inf
    mask = random_.integers(0, 2**32, (7, 141), dtype=np.uint32)
    mask[5, 0] = 0xFFFFFFFF
    given = (
        logits,
        np.array([0, 0.7, 1.3, 1, 2, 0.5, 1], np.float32),
        np.array([3, 0, 5, 9000, 2, 0, 0], np.int32),
        np.array([0.5, 0.9, 0.6, 1, 0.8, 0.3, 1], np.float32),
        np.array([0, 0.1, 0, 0.05, 0, 0, 0], np.float32),
        random_.integers(0, 2**64, 7, dtype=np.uint64),
        random_.integers(0, 4000, 7).astype(np.int32),
        random_.integers(0, 400, 7).astype(np.int32),
        mask,
    )
    out = torch.empty(7, dtype=torch.int32)
    sample(*map(torch.from_numpy, given), out=out)
    assert out.tolist() == meaning(*given).tolist()


def _told(row_starts: Any, rows: int, out: Any, groups: tl.constexpr, queries: tl.constexpr) -> None:
    """out [programs, 2]: the row of each program's tile, and which tile of the row it is."""
    row, tile = triton_paged._row_of(tl.program_id(0), row_starts, rows, groups, queries)
    tl.store(out + 2 * tl.program_id(0), row)
    tl.store(out + 2 * tl.program_id(0) + 1, tile)


@pytest.mark.parametrize("rows", [1, 5, 150])
def test_each_tile_of_ragged_rows_is_some_program_s(rows: int) -> None:
    """And one program's alone; the others are told of a tile that begins behind its row."""
    drawn = np.random.default_rng()
    queries = int(drawn.choice([16, 64, 128]))
    lengths = drawn.integers(1, 40, rows) * drawn.integers(0, 9, rows)
    starts = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    programs = int(starts[-1] + drawn.integers(0, 50)) // queries + rows
    out = torch.full((programs, 2), -1, dtype=torch.int32)
    triton.jit(_told)[(programs,)](starts, rows, out, triton.cdiv(rows, 128), queries)
    found = [(row, tile) for row, tile in out.tolist() if tile * queries < lengths[row]]
    expected = [(row, tile) for row in range(rows) for tile in range(-(-int(lengths[row]) // queries))]
    assert found == expected, f"queries {queries}, lengths {lengths.tolist()}"
    assert (out >= 0).all()


def test_a_product_adds_to_the_residual_stream() -> None:
    hidden, x, weight = random(5, 12), random(5, 30, dtype=torch.float16), random(12, 30, dtype=torch.float16)
    expected = hidden.double().numpy() + x.double().numpy() @ weight.double().numpy().T
    large_products.add_product(hidden, x, weight.t())
    near(hidden, expected, 1e-5)


def test_a_bucket_holds_the_count() -> None:
    assert [bucket_of(count, (16, 32, 64), 48) for count in (1, 16, 17, 40)] == [16, 16, 32, 48]


@pytest.mark.parametrize(
    ("dtype", "kv", "bound"),
    [("float16", "", 1e-2), ("float16", "int8", 0.1), ("float16", "fp8", 0.3), ("bfloat16", "bf16", 6e-2)],
)
@pytest.mark.parametrize(("few", "decoder"), [(64, "interleaved-biased"), (4, "interleaved-biased"), (4, "grouped")])
def test_a_model_runs_as_blocks(
    few: int, decoder: str, dtype: str, kv: str, bound: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ragged prompts in one step, then single tokens together, beside the meaning.

    The prompts are a step of few rows and one of many, whose products are torch's.
    """
    monkeypatch.setenv("CACHEIR_CUDA_DEVICE", "cpu")
    monkeypatch.setattr(block_launches, "MOST_ROWS", few)
    monkeypatch.setattr(block_launches, "_GATED_ROWS", few)
    installation = plugin_host("cacheir_cuda.plugin")
    tiny = TinyProgram(decoder, installation, CompileOptions(target="cuda"))
    ids = [7, 3, 11, 2, 9, 5]
    opened = OpenedBackend(tiny, page_tokens=4, kv_dtype=kv, extra={"cuda_dtype": dtype})
    assert opened.executor._blocks.takes("prefill") and opened.executor._blocks.takes("decode")
    opened.step("prefill", opened.row(0, ids[:5]), opened.row(1, ids[:2]))
    rows = (opened.row(0, ids[5:6], 5, want="logits"), opened.row(1, ids[2:3], 2, want="logits"))
    for made, count in zip(opened.step("decode", *rows), (6, 3)):
        assert made.logits is not None
        expected = tiny.logits(ids[:count])[-1]
        assert np.abs(made.logits[-1] - expected).max() < bound * np.abs(expected).max()
    opened.executor.close()

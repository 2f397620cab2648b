"""The kernels for several rows on the host: names, arguments, launches, and where they are chosen."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed, and the backend runs on it")

from cacheir.artifact.card import CompileOptions  # noqa: E402
from cacheir.ir.types import KVType, TensorType  # noqa: E402
from cacheir.models.decoder_spec import DecoderSpec, LayerSpec, RopeSpec  # noqa: E402
from cacheir.models.weight_shapes import weight_shapes  # noqa: E402
from cacheir.schedule.flatten import flatten  # noqa: E402
from cacheir.testing import tiny_programs  # noqa: E402
from cacheir.testing.hosts import plugin_host  # noqa: E402
from cacheir.testing.tiny_decoders import TinyDecoder  # noqa: E402
from cacheir_cuda.chain import (  # noqa: E402
    cubins,
    rows_arguments,
    rows_attention_tiles,
    rows_refusal,
    rows_run,
    rows_tiles,
    tiles,
)
from cacheir_cuda.chain.launches import ChainWeights  # noqa: E402
from cacheir_cuda.chain.plan_step import GREEDY  # noqa: E402
from cacheir_cuda.chain.recognise import Chain, recognise  # noqa: E402
from cacheir_cuda.chain.rows_blocks import why_other  # noqa: E402
from cacheir_cuda.chain.rows_launches import RowsBuffers, RowsInputs, RowsStep  # noqa: E402
from cacheir_cuda.layer_plan import MainPlan, plan_main  # noqa: E402
from cacheir_cuda.pool import Pool  # noqa: E402

SOURCES = Path(__file__).resolve().parents[1] / "cpp"
CPU = torch.device("cpu")
needs_sources = pytest.mark.skipif(not SOURCES.is_dir(), reason="the kernels' sources are in the tree alone")
ROPE = RopeSpec(theta=1e6, dims=128)
QWEN3_06B = LayerSpec(heads=16, kv_heads=8, head_dim=128, feed_forward=3072, rope=ROPE, qk_norm=True)
QWEN3_17B = LayerSpec(heads=16, kv_heads=8, head_dim=128, feed_forward=6144, rope=ROPE, qk_norm=True)
R1_15B = LayerSpec(heads=12, kv_heads=2, head_dim=128, feed_forward=8960, rope=ROPE, qkv_bias=True)


def decoder(monkeypatch: pytest.MonkeyPatch, layer: LayerSpec, hidden: int) -> tuple[Chain, dict[str, MainPlan]]:
    """The chain of four layers of ``layer``, and the plans of main by mode; no weight is made."""
    monkeypatch.setenv("CACHEIR_CUDA_DEVICE", "cpu")
    spec = DecoderSpec(
        family="llama", label="shape", vocab_size=1024, hidden=hidden, max_positions=32, norm_eps=1e-6,
        layers=(layer,) * 4, tied_head=True,
    )  # fmt: skip
    types = {
        key: TensorType.of("bf16", *shape) for key, shape in weight_shapes(spec).items() if key in spec.weight_keys()
    }
    monkeypatch.setattr(tiny_programs, "tiny_decoders", lambda: {"shape": TinyDecoder(spec=spec, weights=types)})
    options = CompileOptions(target="cuda", max_seq=32, max_rows=4, max_tokens=24)
    program = tiny_programs.TinyProgram("shape", plugin_host("cacheir_cuda.plugin"), options).program
    mains = {mode: flatten(program, mode, module.main.name) for mode, module in program.modules.items()}
    chain = recognise(program, mains["decode"], flatten(program, "decode", GREEDY))
    return chain, {mode: plan_main(launches) for mode, launches in mains.items()}


class NoWeights:
    """Residents whose tensors are empty."""

    def get(self, layout: str, recipes: Any) -> Any:
        return torch.zeros(1)


def step_of(chain: Chain) -> RowsStep:
    pool = Pool(KVType(4, chain.kv_heads, 128, "bf16"), range(4), 3, 16, CPU)
    weights = ChainWeights(chain, NoWeights())  # type: ignore[arg-type]
    return RowsStep(chain, weights, RowsBuffers(chain, CPU, 32), pool)


def rows_of(count: int, starts: bool = False) -> RowsInputs:
    values = torch.zeros(count, dtype=torch.int32)
    table = torch.zeros((count, 2), dtype=torch.int32)
    return RowsInputs(values, values, values, table, torch.zeros(count + 1, dtype=torch.int32) if starts else None)


@pytest.mark.parametrize(("layer", "hidden"), [(QWEN3_06B, 1024), (QWEN3_17B, 2048), (R1_15B, 1536)])
@pytest.mark.parametrize("count", [2, 5, 8, 9, 16, 17, 32])
def test_the_launches_of_a_step(layer: LayerSpec, hidden: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chain, _ = decoder(monkeypatch, layer, hidden)
    assert rows_refusal.why_not_rows(chain) == ""
    step, bucket = step_of(chain), rows_tiles.bucket(count)
    launches = list(step.layers(rows_of(count)))
    kinds = [one.kernel.split("_")[1] for one in launches]
    assert ["attention" if kind == "attention" else "product" for kind in kinds] == (
        ["product", "attention", *["product"] * 3] * 4
    )
    assert set(kinds) <= {"attention", "parts", "product", "residual", "stream"}
    parts = rows_tiles.parts_tile(chain.matrices["qkv"], bucket)
    assert (kinds[0] == "parts") == (parts is not None)
    assert all(f"_c{bucket // 8}" in one.kernel for one in launches if "_attention_" not in one.kernel)
    attention = launches[1]
    tile = rows_attention_tiles.attention_tile(chain.attention, count)
    assert attention.blocks == count * chain.kv_heads * tile.shares * tile.ranks
    assert (attention.threads, attention.shared_bytes) == (32 * tile.warps, 4096 * tile.warps * tile.pieces)
    assert {one.kernel for one in launches} | {step.head(count).kernel} <= rows_tiles.all_kernels()
    assert attention.arguments.row_starts is None
    assert tile.parts == (parts.split if parts else 1) and attention.arguments.qkv == launches[0].arguments.out
    assert attention.arguments.square_count == (step.squares("down", count) if parts else 0)
    parts = [
        (one.arguments.square_count, step.squares(name, count)) for one, name in zip(launches[::3], ("down", "output"))
    ]
    assert all(found == left and left % rows_tiles.SQUARES_AT_ONCE == 0 for found, left in parts)
    page_bytes = 2 * chain.kv_heads * 16 * 128 * 2
    bringer, names = rows_tiles.BRINGERS[hidden][bucket], ("qkv", "attention", "output", "gate_up", "down")
    bring = [name for name, one in zip(names * 2, launches) if getattr(one.arguments, "page_bytes", 0) == page_bytes]
    assert bring == (["qkv", *[bringer] * 2][: 3 if bringer != "qkv" else 2] if bringer else [])
    prompt = list(step.layers(rows_of(count, starts=True)))
    assert [one.kernel.split("_")[1] for one in prompt[1:3]] == ["append", "prompt"]
    assert prompt[0].arguments.page_bytes == 0
    assert prompt[1].blocks == count and prompt[1].threads == 2 * 32 * chain.kv_heads
    of_prompt = rows_attention_tiles.PROMPTS[chain.attention]
    assert prompt[2].blocks == of_prompt.blocks(chain.attention, count)
    advance = step.advance(rows_of(count), torch.zeros((4, count), dtype=torch.int32), torch.zeros(count), 2, 3)
    assert (advance.arguments.step, advance.arguments.steps, advance.arguments.blocks) == (
        2,
        3,
        step.head(count).blocks,
    )
    assert step.advance(rows_of(count), torch.zeros(1), torch.zeros(1), 1, 3).arguments.steps == 0


@pytest.mark.parametrize("heads", rows_attention_tiles.ATTENTIONS)
def test_every_attention_fits_the_chip(heads: tiles.Heads) -> None:
    by_rows = rows_attention_tiles.ATTENTIONS[heads]
    assert list(by_rows) == sorted(by_rows) and list(by_rows)[-1] == rows_tiles.BUCKETS[-1]
    for tile in [*by_rows.values(), rows_attention_tiles.PROMPTS[heads]]:
        every, left = divmod(heads.heads // heads.kv_heads, tile.shares)
        assert left == 0 and every + 2 <= tile.warps  # a warp for each query, one for the key, one for the value
        assert tile.ranks in (1, 2, 4, 8) and (tile.alone == 0 or tile.ranks > 1)
        assert every * (tiles.HEAD_DIM + 8) * 4 + 128 <= tile.pieces * 4096  # a warp's part lies over its ring
        columns = 8 * -(-every // 4)
        known = columns * (tiles.HEAD_DIM + 8) * 2 + 2 * tiles.HEAD_DIM * 2 + tile.warps * every * 8 + every * 64 * 16
        assert tile.shared_bytes + known + 1024 <= rows_tiles.SHARED_BYTES
        assert tile.fit * tile.threads <= 2048 and 65536 // (tile.fit * tile.threads) >= 64  # registers of a thread


@pytest.mark.parametrize("count", rows_tiles.BUCKETS)
def test_every_choice_fits_the_chip(count: int) -> None:
    for shape in rows_tiles.shapes():
        kind, rows, columns = shape
        tile = rows_tiles.rows_tile(shape, count)
        assert tile is not None
        at_once = 1 if isinstance(tile, rows_tiles.ResidualTile) else tile.fit  # of that ``fit`` bounds registers alone
        assert at_once * (tile.shared_bytes(columns) + 1024) <= rows_tiles.SHARED_BYTES + 1024
        assert tile.fit * tile.threads <= 2048
        assert tile.squares(rows) % rows_tiles.SQUARES_AT_ONCE == 0 or kind != "residual"
        assert kind != "residual" or tile.squares(rows) <= rows // 4  # what RowsBuffers has room for
        if isinstance(tile, rows_tiles.ResidualTile):
            assert rows % tile.outputs == 0 and columns % 64 == 0 and tile.split <= 8 and tile.parts <= 15
            fewest, of_block = columns // 64 // tile.split, -(columns // -64 // tile.split)
            most = -(-of_block // tile.parts)
            assert tile.parts <= fewest and min(2, most) <= tile.slots <= most and tile.stages >= 1
            assert tile.slots > 1 or not tile.early
            lanes = 1 << (tile.quads - 1).bit_length()  # that finish a row
            assert lanes <= 8 and count * lanes <= tile.threads
        elif isinstance(tile, rows_tiles.StreamTile):
            assert columns % (32 * tile.warps) == 0 and rows % 16 == 0
            assert tile.packed.rows == 16 and tile.packed.hold != "stored"
        elif tile.hold == "shared":  # a warp's sums lie over its weights
            sums = 4 * (count * (tile.packed.tiles * 16 + 4) + 8) + 96
            assert sums <= tile.shared_bytes(columns) // tile.packed.warps
    for width in rows_tiles.HEADS:
        candidates = rows_tiles.HEAD_WARPS * count * 8
        assert rows_tiles.head_shared_bytes(width, count) + candidates + 1024 <= rows_tiles.SHARED_BYTES
        assert rows_tiles.HEAD_THREADS <= 1024


def test_every_choice_of_parts_fits_the_chip() -> None:
    for shape, by_rows in rows_tiles.PARTS.items():
        _, rows, columns = shape
        for count in by_rows:
            tile = rows_tiles.parts_tile(shape, count)
            assert tile is not None and tile.rows == count and tile.split > 1
            assert rows % tile.outputs == 0 and columns % (32 * tile.split * tile.parts) == 0
            assert tile.shared_bytes(columns) + 1024 <= rows_tiles.SHARED_BYTES and tile.threads <= 1024
            assert (
                tiles.CHOICES[shape].rows == 16 and tiles.CHOICES[shape].hold != "stored"
            )  # as its weights are packed
            assert rows_tiles.parts_tile(shape, 8 * count) is None


@needs_sources
def test_the_sources_have_each_kernel_that_may_be_asked_for() -> None:
    """And no other, but for those that are compiled with -DTIMED alone."""
    text = (SOURCES / "rows_chain.cu").read_text()
    kept, _, timed = text.partition("#ifdef TIMED")
    asked = rows_tiles.all_kernels()
    assert kernels_of(kept) | {rows_tiles.BEGIN, rows_tiles.ADVANCE} == asked
    assert kernels_of(timed) and not kernels_of(timed) & asked


def kernels_of(text: str) -> set[str]:
    """The names of the kernels that the macros of ``text`` make."""

    def found(macro: str) -> list[list[str]]:
        return [line.split(", ") for line in re.findall(rf"^{macro}\(([^)\n]*)\)$", text, re.MULTILINE)]

    made = {
        f"rows_product_{kind}_k{columns}_r{rows}_t{count}_w{warps}_{hold}_b{fit}_p{pace}_c{row_tiles}"
        for kind, columns, rows, count, warps, hold, fit, pace, row_tiles, _ in found("PRODUCT")
    }
    made |= {
        f"rows_residual_k{columns}_t{count}_g{groups}_p{parts}_s{ranks}_w{stages}_n{slots}_b{fit}_c{row_tiles}{ending}"
        for macro, ending in (("RESIDUAL", ""), ("RESIDUAL_EARLY", "_early"))
        for columns, count, groups, parts, ranks, stages, slots, fit, row_tiles in found(macro)
    }
    made |= {
        f"rows_{macro.lower()}_{name}_q{heads}_kv{kv}_h{shares}_s{ranks}_w{warps}_p{pieces}_a{ahead}_o{alone}_b{fit}"
        for macro in ("ATTENTION", "PROMPT")
        for heads, kv, name, _, shares, ranks, warps, pieces, ahead, alone, fit in found(macro)
    }
    made |= {
        f"rows_attention_{name}_q{heads}_kv{kv}_h{shares}_s{ranks}_w{warps}_p{pieces}_a{ahead}_o{alone}_b{fit}_of{parts}"
        for parts, heads, kv, name, _, shares, ranks, warps, pieces, ahead, alone, fit in found("ATTENTION_OF_PARTS")
    }
    made |= {
        f"rows_parts_qkv_k{columns}_t{count}_g{groups}_p{parts}_s{split}_c{row_tiles}"
        for columns, _, count, groups, parts, split, row_tiles in found("PARTS_OF")
    }
    made |= {f"rows_append_{name}_q{heads}_kv{kv}" for heads, kv, name, _ in found("APPEND")}
    made |= {f"rows_head_h{width}_c{row_tiles}_s{stages}" for width, row_tiles, stages in found("HEAD_OF")}
    return made | {
        f"rows_stream_{kind}_k{columns}_t{together}_w{warps}_s{stages}_c{row_tiles}"
        for kind, columns, together, warps, stages, row_tiles in found("STREAM")
    }


@needs_sources
@pytest.mark.parametrize(
    ("file", "ours"),
    [
        ("rows_product.cuh", rows_arguments.RowsProduct), ("rows_attention.cuh", rows_arguments.RowsAttention),
        ("rows_head.cuh", rows_arguments.RowsBegin), ("rows_head.cuh", rows_arguments.RowsHead),
        ("rows_head.cuh", rows_arguments.RowsAdvance),
    ],
)  # fmt: skip
def test_arguments_are_the_structures_of_the_sources(file: str, ours: Any) -> None:
    body = (SOURCES / file).read_text().partition(f"struct {ours.__name__}Arguments {{")[2].partition("};")[0]
    found = []
    for line in body.splitlines():
        kind, _, names = line.partition("//")[0].strip().rstrip(";").removeprefix("const ").partition(" ")
        for name in filter(None, names.split(",")):
            found.append((name.strip(" *"), "pointer" if "*" in name else kind))
    sizes = {"pointer": "c_void_p", "int": "c_int", "float": "c_float", "RowsBeginArguments": "RowsBegin"}
    assert [(name, sizes[kind]) for name, kind in found] == [(name, type_.__name__) for name, type_ in ours._fields_]


def test_the_built_cubin_has_every_kernel() -> None:
    if not (cubins.FOLDER / cubins.MANIFEST).exists():
        pytest.skip("the CUDA C++ kernels are not built here")
    cubins.read_manifest.cache_clear()
    built = [cubin for cubin in cubins.read_manifest() if cubin.source == rows_run.SOURCE]
    if not built:
        pytest.skip("the kernels for several rows are not built here")
    assert rows_tiles.all_kernels() <= built[0].kernels


def test_main_of_both_modes_is_the_chain_or_it_is_said_where_not(monkeypatch: pytest.MonkeyPatch) -> None:
    chain, plans = decoder(monkeypatch, QWEN3_06B, 1024)
    for plan in plans.values():
        assert why_other(plan, chain) == ""
        first = plan.layers[0]

        def changed(**given: Any) -> str:
            return why_other(replace(plan, layers=[replace(first, **given), *plan.layers[1:]]), chain)  # noqa: B023

        assert "other weights" in changed(down="another")
        assert "other weights" in changed(out_bias="some")
        assert "eps, scale or rotation" in changed(eps=1e-5)
        assert "eps, scale or rotation" in changed(scale=1.0)
        assert "window" in changed(window=4)
        assert "window" in changed(softcap=30.0)
        assert "3 layers" in why_other(replace(plan, layers=plan.layers[1:]), chain)
        assert "angles" in why_other(replace(plan, turn=replace(plan.turn, theta=1e4)), chain)
        assert "begins or ends" in why_other(replace(plan, norm="another"), chain)


def test_the_plan_names_the_kernels_or_why_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    chain, _ = decoder(monkeypatch, QWEN3_06B, 1024)
    rows: Any = rows_refusal.rows_note(chain)["rows"]
    for count, kernels in rows.items():
        launches = list(step_of(chain).layers(rows_of(int(count))))[:5]
        assert kernels == [*(one.kernel for one in launches), step_of(chain).head(int(count)).kernel]
    assert "512" in str(rows_refusal.rows_note(replace(chain, hidden=512))["rows_refused"])


def test_shapes_without_kernels_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    chain, _ = decoder(monkeypatch, QWEN3_06B, 1024)
    assert "no qkv kernel for several rows is compiled for a matrix of 4096 x 512" in rows_refusal.why_not_rows(
        replace(chain, hidden=512)
    )
    assert "head kernel" in rows_refusal.why_not_rows(replace(chain, vocabulary=1030))

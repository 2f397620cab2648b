"""Packed weights are what the products of the decode chain read: there and back, and by the kernel's own indexing."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed, and weights are packed by it")

from cacheir_cuda.chain import arguments, tiles  # noqa: E402
from cacheir_cuda.chain.packing import pack, unpack  # noqa: E402
from cacheir_cuda.chain.tiles import Tile  # noqa: E402

SOURCES = Path(__file__).resolve().parents[1] / "cpp"
SMALL = [
    (Tile("qkv", 16, 2, 4, "registers", 1, 0), 64, 256),
    (Tile("residual", 8, 1, 2, "registers", 1, 0), 24, 256),
    (Tile("residual", 4, 1, 2, "shared", 1, 0), 12, 512),
    (Tile("swiglu", 16, 3, 2, "registers", 1, 0), 96, 128),
    (tiles.packed("swiglu", 16, 2, 3, 2), 96, 128),
    (tiles.packed("residual", 4, 2, 2, 2), 20, 512),
]
STREAMS = [
    (tiles.stored("swiglu", 16, 3, 3, 5), 96, 192),
    (tiles.stored("residual", 16, 2, 3, 2), 32, 256),
    (tiles.stored("residual", 8, 2, 3, 2), 24, 256),
    (tiles.stored("residual", 4, 3, 3, 2), 20, 1280),  # 10 steps of 3 warps: the last has two
]
needs_sources = pytest.mark.skipif(not SOURCES.is_dir(), reason="the kernels' sources are in the tree alone")


@pytest.mark.parametrize(("tile", "rows", "columns"), SMALL)
def test_there_and_back(tile: Tile, rows: int, columns: int) -> None:
    matrix = torch.from_numpy(np.random.default_rng().standard_normal((rows, columns), np.float32))
    assert torch.equal(unpack(pack(matrix, tile), tile, rows, columns), matrix)


@pytest.mark.parametrize(("tile", "rows", "columns"), SMALL)
def test_the_product_read_as_the_kernel_reads_it(tile: Tile, rows: int, columns: int) -> None:
    """cpp/product.cuh and stream.cuh: 8 elements of a lane are a fragment of rows g and g + 8 of its tile."""
    random = np.random.default_rng()
    matrix, x = random.standard_normal((rows, columns)), random.standard_normal(columns)
    packed = pack(torch.from_numpy(matrix), tile).numpy()
    parts = 16 // tile.rows
    part = columns // parts
    slice_ = part // tile.warps
    steps = slice_ // 32
    outputs = np.zeros(rows)
    for block in range(rows // (tile.rows * tile.tiles)):
        sums = np.zeros((tile.tiles, 16))
        for warp in range(tile.warps):
            for step in range(steps):
                for n in range(tile.tiles):
                    for half in range(2):
                        at = ((((block * tile.warps + warp) * steps + step) * tile.tiles + n) * 2 + half) * 256
                        for lane in range(32):
                            g, t = lane >> 2, lane & 3
                            first = warp * slice_ + 32 * step + 8 * t + 4 * half
                            a = packed[at + 8 * lane : at + 8 * lane + 8].reshape(2, 2, 2)  # columns, rows, pair
                            for side in range(2):
                                row = g + 8 * side
                                k = row // tile.rows * part + first
                                sums[n, row] += a[:, side].ravel() @ x[k : k + 4]
        if tile.kind == "swiglu":
            for n in range(tile.tiles):
                gate = (block * tile.tiles + n) * 8
                outputs[gate : gate + 8], outputs[rows // 2 + gate : rows // 2 + gate + 8] = sums[n, :8], sums[n, 8:]
        else:
            folded = sums.reshape(tile.tiles, parts, tile.rows).sum(1).ravel()
            outputs[block * len(folded) : (block + 1) * len(folded)] = folded
    np.testing.assert_allclose(outputs, matrix @ x, rtol=1e-9, atol=1e-9)


def stage_of_lines(
    tile: tiles.Stream, shape: tuple[int, int], number: int, warp: int, first_step: int
) -> dict[int, tuple[int, int]]:
    """Where a stage of two steps holds what of the tile ``number``: byte -> row and column, as its lanes ask for it."""
    (rows, columns), held = shape, {}
    part, outputs = columns // (16 // tile.rows), 8 if tile.kind == "swiglu" else tile.rows
    first = (warp * tile.steps(columns) + first_step) * 32
    for lower, four, lane in np.ndindex(2, 2, 32):
        line, piece = lane >> 3, lane & 7
        row, column = number * outputs + line, first + 8 * piece
        if tile.rows == 4:
            column += four * part
        else:
            row += 4 * four
        if lower and tile.kind == "swiglu":
            row += rows // 2
        elif lower and tile.rows == 16:
            row += 8
        elif lower:
            column += 8 // tile.rows * part
        held[1024 * lower + 512 * four + 128 * line + (piece ^ (line & 1) << 2) * 16] = row, column
    assert len(held) == 128, "every piece of 16 bytes has a place of its own"
    return held


@pytest.mark.parametrize(("tile", "rows", "columns"), STREAMS)
def test_the_product_of_a_matrix_as_it_is_stored(tile: tiles.Stream, rows: int, columns: int) -> None:
    """cpp/stream.cuh: a lane reads 16 bytes of two rows in each step; four of them hold two products' fragments."""
    random = np.random.default_rng()
    matrix, x = random.standard_normal((rows, columns)), random.standard_normal(columns)
    outputs_of_tile = 8 if tile.kind == "swiglu" else tile.rows
    part, steps = columns // (16 // tile.rows), tile.steps(columns)
    found, used = np.zeros(rows), np.zeros((rows, columns), int)
    for number, warp, step in np.ndindex(rows // tile.rows, tile.warps, steps):
        if step >= part // 32 - warp * steps:
            continue
        held = stage_of_lines(tile, (rows, columns), number, warp, step // 2 * 2)
        for lane in range(32):
            g, t = lane >> 2, lane & 3
            upper = number * outputs_of_tile + g % outputs_of_tile
            first = g // outputs_of_tile * part + (warp * steps + step) * 32 + 8 * t
            if tile.kind == "swiglu":
                lower, second = upper + rows // 2, first
            else:
                lower, second = (upper + 8, first) if tile.rows == 16 else (upper, first + 8 // tile.rows * part)
            at = 128 * g + ((4 * (step % 2) + t) ^ (g & 1) << 2) * 16
            assert (held[at], held[at + 1024]) == ((upper, first), (lower, second))
            for row, column in ((upper, first), (lower, second)):
                found[row] += matrix[row, column : column + 8] @ x[column : column + 8]
                used[row, column : column + 8] += 1
    assert (used == 1).all()
    np.testing.assert_allclose(found, matrix @ x, rtol=1e-9, atol=1e-9)


def test_lanes_that_read_a_line_together_read_other_banks() -> None:
    for step, group in np.ndindex(2, 4):
        lanes = range(8 * group, 8 * group + 8)
        places = {(128 * (lane >> 2) // 16 + ((4 * step + (lane & 3)) ^ (lane >> 2 & 1) << 2)) % 8 for lane in lanes}
        assert len(places) == 8


@pytest.mark.parametrize(("kind", "together"), [("qkv", 1), ("qkv", 2), ("swiglu", 1), ("swiglu", 3)])
@pytest.mark.parametrize("warps", [1, 2, 8])
def test_a_step_of_a_tile_is_a_kilobyte_for_any_number_of_warps(kind: str, together: int, warps: int) -> None:
    columns, tiles_of_all = 256, 2 * together
    matrix = torch.randn(16 * tiles_of_all, columns, dtype=torch.float64)
    packed = pack(matrix, Tile(kind, 16, together, warps, "shared", 1, 0))
    steps = columns // 32
    for tile in range(tiles_of_all):
        first = tile * 8 if kind == "swiglu" else tile * 16
        other = first + (8 * tiles_of_all if kind == "swiglu" else 8)  # of swiglu the up rows
        for step in range(steps):
            begin = 512 * (tile // together * steps * together + step * together + tile % together)
            for lane in range(32):
                row, column = lane // 4, 32 * step + 8 * (lane % 4)
                for half in range(2):
                    found = packed[begin + 256 * half + 8 * lane :][:8].view(2, 2, 2)  # pair, row, column
                    rows = torch.stack([matrix[first + row], matrix[other + row]])
                    expected = rows[:, column + 4 * half : column + 4 * half + 4].view(2, 2, 2).transpose(0, 1)
                    assert torch.equal(found, expected)


def test_a_matrix_that_is_no_whole_number_of_tiles_is_refused() -> None:
    tile = Tile("qkv", 16, 2, 4, "registers", 1, 0)
    for shape in ((48, 256), (64, 192)):
        with pytest.raises(ValueError, match=r"64 x 192|48 x 256"):
            pack(torch.zeros(shape), tile)


@pytest.mark.parametrize(("shape", "tile"), tiles.CHOICES.items(), ids=str)
def test_every_choice_fits_its_matrix_and_the_chip(shape: tuple[str, int, int], tile: Tile) -> None:
    kind, rows, columns = shape
    assert tile.kind == kind
    parts = 16 // tile.rows
    if isinstance(tile, tiles.Stream):
        assert rows % tile.rows == 0
        assert columns % (parts * 32 * (tile.warps if tile.hold == "packed" else 1)) == 0
        assert tile.blocks(rows) <= rows // tile.rows, "a block without a tile leaves no sum of squares"
        assert tile.steps(columns) % tile.stage == 0
        assert columns // parts // 32 % tile.stage == 0, "the last warp's steps are whole stages too"
        assert (tile.warps - 1) * tile.steps(columns) < columns // parts // 32, "every warp has a step"
    else:
        assert tile.blocks(rows) * tile.rows * tile.tiles == rows
        assert columns % (parts * tile.warps * 32) == 0
    finishing = tile.tiles * (8 if kind == "swiglu" else tile.rows)
    assert finishing <= tile.warps * 8, "four threads finish one output"
    assert 32 * tile.warps <= 1024
    blocks = 1 if isinstance(tile, tiles.Stream) else tile.fit  # of a stream only registers are bounded
    assert blocks * tile.shared_bytes(columns) <= 220 * 1024
    assert tile.fit * tile.warps * 32 <= 2048


@needs_sources
def test_the_sources_have_each_kernel_that_may_be_asked_for() -> None:
    text = (SOURCES / "decode_chain.cu").read_text()
    products = re.findall(r"^PRODUCT\((\w+), (\d+), (\d+), (\d+), (\d+), (\w+), (\d+), (\d+)\)", text, re.MULTILINE)
    made = {
        Tile(kind, int(rows), int(count), int(warps), hold, int(fit), int(pace)).kernel(int(columns))
        for kind, columns, rows, count, warps, hold, fit, pace in products
    }
    for kind, hold, columns, *sizes in re.findall(
        r"^STREAM\((\w+), (\w+), (\d+), (\d+), (\d+), (\d+), (\d+), (\d+)\)", text, re.MULTILINE
    ):
        height, warps, fit, stage, stages = map(int, sizes)
        streams = {"stored": tiles.stored, "packed": tiles.packed}[hold]
        asked = streams(kind, height, warps, stages, fit=fit)
        assert asked.stage == stage
        made.add(asked.kernel(int(columns)))
    attentions = re.findall(r"^ATTENTION\((\d+), (\d+), (\w+), (?:true|false), (\d)\)", text, re.MULTILINE)
    made |= {f"attention_{kind}_q{heads}_kv{kv}_b{fit}" for heads, kv, kind, fit in attentions}
    assert made | {tiles.ADVANCE} == tiles.all_kernels()


@needs_sources
@pytest.mark.parametrize(
    ("file", "structure", "ours"),
    [
        ("product.cuh", "ProductArguments", arguments.Product),
        ("attention.cuh", "AttentionArguments", arguments.Attention),
        ("advance.cuh", "AdvanceArguments", arguments.Advance),
    ],
)
def test_arguments_are_the_structures_of_the_sources(file: str, structure: str, ours: type) -> None:
    text = (SOURCES / file).read_text()
    body = text.partition(f"struct {structure} {{")[2].partition("};")[0]
    found: list[tuple[str, str]] = []
    for line in body.splitlines():
        declared = line.partition("//")[0].strip().rstrip(";")
        if not declared or declared == "TRACE_FIELD":
            continue
        kind, _, names = declared.removeprefix("const ").partition(" ")
        for name in names.split(","):
            pointer = "*" in name
            found.append((name.strip(" *"), "pointer" if pointer else kind))
    sizes = {"pointer": "c_void_p", "int": "c_int", "float": "c_float"}
    given = [(field[0], field[1].__name__) for field in ours._fields_]  # type: ignore[attr-defined]
    assert [(name, sizes[kind]) for name, kind in found] == given

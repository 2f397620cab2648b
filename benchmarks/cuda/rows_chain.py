"""The CUDA C++ kernels for several rows on a GPU, each beside float32 torch, then whole steps and their times.

python rows_chain.py CUBIN MODEL PART...: products, attention, prompt, ends, step, times, kernels or variants.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from eager_reference import EagerDecoder
from rows_bench import DEVICE, EPS, PAGE_TOKENS, Bench
from rows_times import kernels, times, variants
from torch import Tensor

from cacheir_cuda.chain import rows_tiles, tiles
from cacheir_cuda.chain.rows_launches import RowsInputs


def compare(name: str, found: Tensor, expected: Tensor, allowed: float = 0.01) -> None:
    """One line: the largest error relative to the largest value, and where the first wrong value is."""
    found, expected = found.float(), expected.float()
    error = (found - expected).abs()
    relative = float(error.max() / expected.abs().max())
    wrong = (~(error <= allowed * expected.abs().max())).nonzero()
    where = "" if not len(wrong) else f" FIRST WRONG {wrong[0].tolist()} of {len(wrong)}: {list(expected.shape)}"
    tell(not len(wrong), f"{name}: error {relative:.2e}{where}")


def tell(holds: bool, what: str) -> None:
    print("ok   " if holds else "WRONG", what, flush=True)


def tiled(x: Tensor) -> Tensor:
    """[R, K] as the products read it: 8 rows by 32 elements together."""
    rows, width = x.shape
    return x.view(rows // 8, 8, width // 32, 32).transpose(1, 2).reshape(rows, width)


def untiled(x: Tensor) -> Tensor:
    """What ``tiled`` was given."""
    rows, width = x.shape
    return x.view(rows // 8, width // 32, 8, 32).transpose(1, 2).reshape(rows, width)


def parts_of(squares: Tensor, parts: int) -> Tensor:
    """[32, parts] of a buffer of parts of sums of squares."""
    return squares[: 32 * parts].view(32, parts)


def normed_rows(x: Tensor, gain: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + EPS) * gain


def products(bench: Bench) -> None:
    """Each product with random rows; the residual ones also leave the next rows and their squares."""
    chain, buffers, tensors = bench.chain, bench.buffers, {key: w.float() for key, w in bench.tensors.items()}
    layer, wide = chain.layers[0], chain.heads * tiles.HEAD_DIM
    for rows in rows_tiles.BUCKETS:
        inputs = bench.inputs([5] * rows)
        launches = {one.kernel.split("_")[2] + str(i): one for i, one in enumerate(bench.step.layers(inputs)) if i < 5}
        x = torch.randn(32, chain.hidden, device=DEVICE) * 3
        buffers.hidden.copy_(x)
        buffers.normed.copy_(tiled(x * tensors[layer.norm]))
        buffers.squares.zero_()
        ends_parts, middle_parts = (bench.step.squares(name, rows) for name in ("down", "output"))
        parts_of(buffers.squares, ends_parts)[:, 3] = (x * x).sum(-1)
        names = list(launches)
        bench.launch([launches[names[0]]])
        expected = normed_rows(x, tensors[layer.norm]) @ torch.cat([tensors[name] for name in layer.qkv]).T
        if layer.biases:
            expected += torch.cat([tensors[name] for name in layer.biases])
        compare(f"{rows} rows, qkv", qkv_of(bench, rows), expected[:rows])
        mixed = torch.randn(32, wide, device=DEVICE).bfloat16()
        buffers.attended.copy_(tiled(mixed))
        bench.launch([launches[names[2]]])
        middle = x + mixed.float() @ tensors[layer.output].T
        compare(f"{rows} rows, output", buffers.middle[:rows], middle[:rows])
        following = tensors[layer.feed_forward_norm]
        compare(f"{rows} rows, output next", untiled(buffers.middle_normed)[:rows], (middle * following)[:rows])
        compare(
            f"{rows} rows, output squares",
            parts_of(buffers.middle_squares, middle_parts)[:rows].sum(-1),
            (middle * middle).sum(-1)[:rows],
        )
        bench.launch([launches[names[3]]])
        y = normed_rows(middle, tensors[layer.feed_forward_norm])
        gate, up = (y @ tensors[name].T for name in layer.gate_up)
        gated = torch.nn.functional.silu(gate) * up
        compare(f"{rows} rows, gate and up", untiled(buffers.gated)[:rows], gated[:rows])
        bench.launch([launches[names[4]]])
        end = middle + gated @ tensors[layer.down].T
        compare(f"{rows} rows, down", buffers.hidden[:rows], end[:rows])
        following = tensors[chain.layers[1].norm]
        compare(f"{rows} rows, down next", untiled(buffers.normed)[:rows], (end * following)[:rows])
        compare(
            f"{rows} rows, down squares",
            parts_of(buffers.squares, ends_parts)[:rows].sum(-1),
            (end * end).sum(-1)[:rows],
        )


def qkv_of(bench: Bench, rows: int) -> Tensor:
    """[rows, N] as attention takes it: where the sums lie in parts, added, scaled and with the bias."""
    buffers, layer, shape = bench.buffers, bench.chain.layers[0], bench.chain.matrices["qkv"]
    tile = rows_tiles.parts_tile(shape, rows_tiles.bucket(rows) or 0)
    if tile is None:
        return buffers.qkv[:rows]
    sums = buffers.qkv_parts.flatten()[: rows * tile.split * shape[1]].view(rows, tile.split, shape[1]).sum(1)
    squares = buffers.squares[: rows * bench.step.squares("down", rows)].view(rows, -1).sum(-1, keepdim=True)
    made = sums * torch.rsqrt(squares / bench.chain.hidden + EPS)
    return made + torch.cat([bench.tensors[name].float() for name in layer.biases]) if layer.biases else made


def draw_qkv(bench: Bench, rows: int) -> Tensor:
    """Random query, key and value of each row, where attention finds them; returns ``qkv_of``."""
    for buffer in (bench.buffers.qkv, bench.buffers.qkv_parts):
        buffer.copy_(torch.randn(buffer.shape, device=DEVICE) * 2)
    bench.buffers.squares.copy_(torch.rand(bench.buffers.squares.shape, device=DEVICE) * 25)
    return qkv_of(bench, rows)


def reference_attention(bench: Bench, qkv: Tensor, inputs: RowsInputs, row: int, sequence: int) -> tuple[Tensor, ...]:
    """(mixed, key, value) of one row in float32; keys of rows before it in the same sequence lie in the pages."""
    chain, pages = bench.chain, bench.pool.layer(0)
    position, tensors, layer = int(inputs.positions[row]), bench.tensors, chain.layers[0]
    heads, kv_heads, half = chain.heads, chain.kv_heads, 64
    q, k, v = qkv[row].view(-1, 128).split([heads, kv_heads, kv_heads])
    if layer.q_norm:
        q, k = normed_rows(q, tensors[layer.q_norm].float()), normed_rows(k, tensors[layer.k_norm].float())
    frequencies = bench.shape.rope_theta ** (-torch.arange(half, dtype=torch.float64, device=DEVICE) / half)
    angle = position * frequencies
    cos, sin = angle.cos().float(), angle.sin().float()

    def turn(x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    q, k = turn(q), turn(k)
    used = pages[inputs.page_table[sequence].long()].permute(1, 2, 0, 3, 4).flatten(2, 3).float()  # [2, K, tokens, D]
    keys, values = used[0, :, : position + 1].clone(), used[1, :, : position + 1].clone()
    keys[:, position], values[:, position] = k.bfloat16().float(), v.bfloat16().float()
    scores = q.view(kv_heads, heads // kv_heads, 128) @ keys.transpose(1, 2) * chain.scale
    return (torch.softmax(scores, -1) @ values).reshape(-1), k, v


def attention(bench: Bench) -> None:
    """Decode rows at many positions, one of them kept nowhere; bit for bit again, and in other company."""
    pages = bench.pool.storage
    short = [200, 1, 15, 16, 17, 127, 128, 0, 255, 256, 300, 31, 32, 33, 47, 48] * 2
    for given in ([2100, 1023, 1024, 511, 513, 768, 2047, 1500], short[:2], short[:3], short[:8], short[:16], short):
        pages.copy_(torch.randn(pages.shape, device=DEVICE) * 2)
        rows = len(given)
        inputs = bench.inputs(given, seed=rows)
        qkv = draw_qkv(bench, rows)
        expected = [reference_attention(bench, qkv, inputs, row, row) for row in range(rows)]
        spared = int(inputs.slots[rows - 1])
        inputs.slots[rows - 1] = -1
        before = pages.clone()
        bench.launch([list(bench.step.layers(inputs))[1]])
        torch.cuda.synchronize()
        name = f"{rows} rows"
        compare(f"{name}, attention", untiled(bench.buffers.attended)[:rows], torch.stack([e[0] for e in expected]))
        at = inputs.slots[: rows - 1].long()
        kept = bench.pool.layer(0)[at // PAGE_TOKENS, :, :, at % PAGE_TOKENS]  # [rows, 2, K, D]
        compare(f"{name}, keys", kept[:, 0], torch.stack([e[1] for e in expected[:-1]]))
        compare(f"{name}, values", kept[:, 1], torch.stack([e[2] for e in expected[:-1]]))
        changed = (pages.view(torch.int16) != before.view(torch.int16)).flatten(3).any(-1)[0].any(-1)  # [pages]
        wanted = set((at // PAGE_TOKENS).tolist()) | {bench.pool.pages}
        extra = set(changed.nonzero()[:, 0].tolist()) - wanted
        tell(not extra, f"{name}, pages changed beside: {extra} (spared slot {spared})")
        made = untiled(bench.buffers.attended).view(torch.int16)
        for _ in range(20):
            bench.launch([list(bench.step.layers(inputs))[1]])
        again = torch.equal(untiled(bench.buffers.attended).view(torch.int16)[:rows], made[:rows])
        inputs.positions[1:] = inputs.positions[1:].flip(0) // 2
        bench.launch([list(bench.step.layers(inputs))[1]])
        alike = torch.equal(untiled(bench.buffers.attended).view(torch.int16)[0], made[0])
        tell(again and alike, f"{name}, bits of 20 repeats {again}, of the first row in other company {alike}")


def prompt(bench: Bench) -> None:
    """Rows of prompts: several sequences, one after earlier tokens, padding behind them."""
    pages = bench.pool.storage
    for lengths, firsts, padding in (([16], [0], 0), ([5, 7], [0, 100], 4), ([20, 1, 9], [250, 0, 15], 2)):
        pages.copy_(torch.randn(pages.shape, device=DEVICE) * 2)
        positions = [first + i for length, first in zip(lengths, firsts) for i in range(length)]
        starts = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
        inputs = bench.inputs(positions, seed=len(lengths), starts=starts)
        bench.buffers.qkv.copy_(torch.randn(bench.buffers.qkv.shape, device=DEVICE) * 2)
        expected = []
        for sequence, (first, last) in enumerate(zip(starts, starts[1:])):
            for row in range(first, last):
                made = reference_attention(bench, bench.buffers.qkv, inputs, row, sequence)
                place = int(inputs.slots[row])
                for part in (0, 1):
                    bench.pool.layer(0)[place // PAGE_TOKENS, part, :, place % PAGE_TOKENS] = made[1 + part].bfloat16()
                expected.append(made[0])
        for row in range(len(positions)):  # again, so that the kernels must write them
            place = int(inputs.slots[row])
            bench.pool.layer(0)[place // PAGE_TOKENS, :, :, place % PAGE_TOKENS] = 9.0

        zeros = torch.zeros(padding, dtype=torch.int32, device=DEVICE)
        padded = RowsInputs(
            torch.cat([inputs.tokens, zeros]), torch.cat([inputs.positions, zeros]),
            torch.cat([inputs.slots, zeros - 1]), inputs.page_table, inputs.row_starts,
        )  # fmt: skip
        bench.launch(list(bench.step.layers(padded))[1:3])
        compare(
            f"prompts of {lengths} after {firsts}",
            untiled(bench.buffers.attended)[: len(positions)],
            torch.stack(expected),
        )


def candidates(bench: Bench, rows: int) -> tuple[Tensor, Tensor]:
    """(ids, logits) [R, blocks] that the head left."""
    blocks = rows_tiles.MULTIPROCESSORS
    flat = (
        buffer.flatten()[: rows * blocks].view(rows, blocks) for buffer in (bench.buffers.best_id, bench.buffers.best)
    )
    ids, best = flat
    return ids.long().clamp(min=0), best


def ends(bench: Bench) -> None:
    """Embedding, head, and the step to the next token."""
    chain, buffers = bench.chain, bench.buffers
    embedding, head = (bench.tensors[name].float() for name in (chain.embedding, chain.head))
    first, final = (bench.tensors[name].float() for name in (chain.layers[0].norm, chain.final_norm))
    for rows in (2, 8, 16, 32):
        inputs = bench.inputs(([15, 16, 30, 31] * 8)[:rows])
        bench.launch([bench.step.begin(inputs)])
        x = embedding[inputs.tokens.long()]
        compare(f"{rows} rows, embedding", buffers.hidden[:rows], x)
        compare(f"{rows} rows, embedding next", untiled(buffers.normed)[:rows], x * first)
        parts = bench.step.squares("down", rows)
        compare(f"{rows} rows, embedding squares", parts_of(buffers.squares, parts)[:rows].sum(-1), (x * x).sum(-1))
        x = torch.randn(32, chain.hidden, device=DEVICE)
        buffers.normed.copy_(tiled(x * final))
        buffers.squares.zero_()
        parts_of(buffers.squares, parts)[:, 0] = (x * x).sum(-1)
        bench.launch([bench.step.head(rows)])
        logits = normed_rows(x[:rows], final) @ head.T
        ids, best = candidates(bench, rows)
        compare(f"{rows} rows, candidates", best, logits.gather(1, ids))
        ring = torch.zeros((4, rows), dtype=torch.int32).pin_memory()
        produced = torch.zeros(rows, dtype=torch.int32, device=DEVICE)
        positions = inputs.positions.clone()
        for step in range(2):
            bench.launch([bench.step.advance(inputs, ring, produced, step, 2)])
        torch.cuda.synchronize()
        same = (ring[:2] == logits.argmax(-1).int().cpu()).float().mean()
        page = inputs.page_table.gather(1, ((positions + 2) // PAGE_TOKENS).long()[:, None])[:, 0]
        moved = torch.equal(inputs.positions, positions + 2) and bool((produced == 2).all())
        slots = torch.equal(inputs.slots, page * PAGE_TOKENS + (positions + 2) % PAGE_TOKENS)
        tell(moved and slots and same > 0.9, f"{rows} rows: same tokens {same:.2f}, moved {moved} {slots}")
        compare(f"{rows} rows, next rows", buffers.hidden[:rows], embedding[ring[1].long().to(DEVICE)])


def step(bench: Bench) -> None:
    """Whole steps beside eager float32: the candidates of the head against the reference's logits at the same ids."""
    for rows in (2, 8, 16, 32):
        positions = [40 + 13 * i for i in range(rows)]
        inputs = bench.inputs(positions, seed=rows)
        pages = bench.pool.storage
        pages.copy_(torch.randn(pages.shape, device=DEVICE) * 0.7)
        ring = torch.zeros((8, rows), dtype=torch.int32).pin_memory()
        produced = torch.zeros(rows, dtype=torch.int32, device=DEVICE)
        decoders, base = [], None
        for row in range(rows):
            used = pages[:, inputs.page_table[row].long()].permute(2, 0, 3, 1, 4, 5).flatten(3, 4).contiguous()
            if base is None:
                base = EagerDecoder(bench.tensors, bench.shape, EPS, used[0], used[1])
            one = copy.copy(base)
            one.keys, one.values = used[0], used[1]
            decoders.append(one)
        tokens, worst, equal, largest, clear = inputs.tokens.tolist(), 0.0, 0, 0.0, []
        bench.launch([bench.step.begin(inputs)])
        for number in range(4):
            logits = torch.stack([one.step(tokens[row], positions[row] + number) for row, one in enumerate(decoders)])
            bench.launch([*bench.step.layers(inputs, number), bench.step.head(rows)])
            bench.launch([bench.step.advance(inputs, ring, produced, number, 4)])
            torch.cuda.synchronize()
            ids, best = candidates(bench, rows)
            worst = max(worst, float((logits.gather(1, ids) - best).abs().max()))
            largest = max(largest, float(logits.abs().max()))
            top = logits.topk(2).values
            made = ring[number].tolist()
            expected = logits.argmax(-1).tolist()
            equal += sum(a == b for a, b in zip(made, expected))
            clear += [(float(m), a == b) for m, a, b in zip(top[:, 0] - top[:, 1], made, expected)]
            tokens = made
        wrong = sum(not same and margin > 4 * worst for margin, same in clear)
        out = sum(margin <= 4 * worst for margin, _ in clear) / len(clear)
        tell(
            not wrong and worst / largest < 0.03,
            f"step of {rows} rows: error {worst / largest:.2e}, tokens equal {equal}/{4 * rows}, clear wrong {wrong}, "
            f"left out {out:.3f}",
        )


PARTS: dict[str, tuple[Callable[[Bench], None], int]] = {
    "products": (products, 4), "attention": (attention, 4), "prompt": (prompt, 4), "ends": (ends, 4), "step": (step, 0),
    "times": (times, 0), "kernels": (kernels, 0), "variants": (variants, 0),
}  # fmt: skip


def main() -> None:
    """Run the parts, each with a model of its own."""
    for part in sys.argv[3:]:
        run, layers = PARTS[part]
        with torch.no_grad():
            run(Bench(Path(sys.argv[1]), sys.argv[2], layers))
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        print(part, "is over", flush=True)


if __name__ == "__main__":
    main()

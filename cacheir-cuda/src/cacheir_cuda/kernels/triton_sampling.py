"""Sampling on the device without a sort: filters by a search for their last kept logit, then Gumbel-max.

What is computed is ``cacheir.reference.sampling``'s rule with weights summed in float32. A row's logits are cut into
tiles of one program each. A filter keeps what lies above a threshold: the largest bit pattern for which the weight (or
count) above it is below a bound is found four bits at a time, each launch counting for the next.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped, no-any-return"
# Triton reads its own annotations: tl.constexpr says what is compiled in.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_TILE = 2048
_BITS = (28, 24, 20, 16, 12, 8, 4, 0)
# Columns of a row's state: the prefix before each of the eight launches of a search, of both; then their thresholds.
_STATE = 32
_NOTHING = tl.constexpr(0x7F800000)  # the pattern of -infinity without its sign: from here on nothing is kept


@triton.jit
def _tile_logits(logits, mask, row, at, size, words, MASKED: tl.constexpr):
    found = tl.load(logits + row * size + at, mask=at < size, other=float("-inf"))
    if MASKED:
        word = tl.load(mask + row * words + at // 32, mask=at < size, other=0)
        found = tl.where(((word >> (at % 32).to(tl.uint32)) & 1) != 0, found, float("-inf"))
    return found


@triton.jit
def _largest(peaks, row, tiles, TILES: tl.constexpr):
    each = tl.arange(0, TILES)
    return tl.max(tl.load(peaks + row * tiles + each, mask=each < tiles, other=float("-inf")), axis=0)


@triton.jit
def _scaled(logits, mask, peaks, temperature, row, at, size, words, tiles, MASKED: tl.constexpr, TILES: tl.constexpr):
    """z of the reference, and its bits without the sign: the smaller, the likelier."""
    found = _tile_logits(logits, mask, row, at, size, words, MASKED)
    largest = _largest(peaks, row, tiles, TILES)
    largest = tl.where((largest < float("inf")) & (largest > float("-inf")), largest, 0.0)  # else there is no token
    z = tl.div_rn(found - largest, temperature + tl.zeros_like(found))
    return z, z.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def _digit(counts, row, tiles, bound, TILES: tl.constexpr):
    """The largest digit whose count or weight, summed over the tiles, is below ``bound``."""
    each, digit = tl.arange(0, TILES), tl.arange(0, 16)
    place = counts + (row * tiles + each)[:, None] * 16 + digit[None, :]
    sums = tl.sum(tl.load(place, mask=(each < tiles)[:, None], other=0.0), axis=0)
    return tl.max(tl.where(sums < bound, digit, 0), axis=0)


@triton.jit
def _column(settled, row, tiles, column, before, TILES: tl.constexpr):
    """One column of ``settled`` [R, tiles, 4] summed over the tiles before ``before``."""
    each = tl.arange(0, TILES)
    kept = (each < tiles) & (each < before)
    return tl.sum(tl.load(settled + (row * tiles + each) * 4 + column, mask=kept, other=0.0), axis=0)


@triton.jit
def _count_bound(top_k, settled, top_p, threshold, row, tiles, MASS: tl.constexpr, TILES: tl.constexpr):
    """What the weight (or count) before a token must be below for it to stay; -1 where the filter is off."""
    k = tl.load(top_k + row)
    if MASS:
        p = tl.load(top_p + row)
        above = _column(settled, row, tiles, 0, tiles, TILES)
        weight = _column(settled, row, tiles, 1, tiles, TILES)
        last = tl.exp((threshold | -2147483648).to(tl.float32, bitcast=True))
        equal = tl.where(k > 0, tl.maximum(k - above, 0.0), 0.0)
        equal = tl.minimum(equal, _column(settled, row, tiles, 2, tiles, TILES))
        return tl.where(p < 1.0, tl.maximum(p, 1e-30) * (weight + equal * last), -1.0)
    else:
        return tl.where(k > 0, k.to(tl.float32), -1.0)


@triton.jit
def _peaks(logits, mask, peaks, size, words, tiles, MASKED: tl.constexpr, TILE: tl.constexpr):
    row, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = tile * TILE + tl.arange(0, TILE)
    found = _tile_logits(logits, mask, row, at, size, words, MASKED)
    found = tl.where(found == found, found, float("inf"))  # a NaN is the largest too
    tl.store(peaks + row * tiles + tile, tl.max(found, axis=0))


@triton.jit
def _search(logits, mask, peaks, temperature, top_k, top_p, settled, state, before, after, size, words, tiles,
            STEP: tl.constexpr, SHIFT: tl.constexpr, MASS: tl.constexpr, MASKED: tl.constexpr, TILE: tl.constexpr,
            TILES: tl.constexpr):  # fmt: skip
    row, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    heat = tl.load(temperature + row)
    here = state + row * 32 + MASS * 8
    bound = _count_bound(top_k, settled, top_p, tl.load(state + row * 32 + 16), row, tiles, MASS, TILES)
    if (heat > 0) & (bound >= 0):
        prefix = 0
        if STEP > 0:
            digit = _digit(before, row, tiles, bound, TILES)
            prefix = tl.load(here + STEP - 1) + (digit << (SHIFT + 4))
        at = tile * TILE + tl.arange(0, TILE)
        z, bits = _scaled(logits, mask, peaks, heat, row, at, size, words, tiles, MASKED, TILES)
        weight = tl.where(bits < _NOTHING, 1.0, 0.0)
        if MASS:
            weight = tl.exp(z)
        place = after + (row * tiles + tile) * 16
        tl.store(place, 0.0)
        for digit in tl.static_range(1, 16):
            if SHIFT == 28 and digit > 7:  # no sign bit: nothing is that large
                tl.store(place + digit, float("inf"))
            else:
                tl.store(place + digit, tl.sum(tl.where(bits < prefix + (digit << SHIFT), weight, 0.0), axis=0))
        if tile == 0:
            tl.store(here + STEP, prefix)


@triton.jit
def _settle(logits, mask, peaks, temperature, top_k, top_p, settled, state, before, after, size, words, tiles,
            MASS: tl.constexpr, MASKED: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr):  # fmt: skip
    """The threshold; then for each tile: count and weight above it, and how many are equal to it."""
    row, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    heat = tl.load(temperature + row)
    if heat > 0:
        first = _NOTHING
        if MASS:
            first = tl.load(state + row * 32 + 16)
        threshold = first
        bound = _count_bound(top_k, settled, top_p, first, row, tiles, MASS, TILES)
        if bound >= 0:
            found = tl.load(state + row * 32 + MASS * 8 + 7) + _digit(before, row, tiles, bound, TILES)
            threshold = tl.minimum(found, first)
        at = tile * TILE + tl.arange(0, TILE)
        z, bits = _scaled(logits, mask, peaks, heat, row, at, size, words, tiles, MASKED, TILES)
        above = bits < threshold
        place = after + (row * tiles + tile) * 4
        tl.store(place, tl.sum(tl.where(above, 1.0, 0.0), axis=0))
        tl.store(place + 1, tl.sum(tl.where(above, tl.exp(z), 0.0), axis=0))
        tl.store(place + 2, tl.sum(tl.where((bits == threshold) & (bits < _NOTHING), 1.0, 0.0), axis=0))
        if tile == 0:
            tl.store(state + row * 32 + 16 + MASS, threshold)


@triton.jit
def _noise(seed, position, draw, at):
    """The Gumbel noise of tokens ``at``: word ``at % 4`` of the Philox block of counter (at / 4, position, draw, 0)."""
    block = (at // 4).to(tl.uint32)
    zero = block * 0
    a, b, c, d = tl.philox(seed, block, position.to(tl.uint32) + zero, draw.to(tl.uint32) + zero, zero)
    word = tl.where(at % 4 == 0, a, tl.where(at % 4 == 1, b, tl.where(at % 4 == 2, c, d)))
    u = tl.minimum((word.to(tl.float32) + 0.5) * 2.3283064365386963e-10, 1.0 - 5.960464477539063e-08)
    # log(1 - u) with the rounding of 1 - u made good.
    rest = 1.0 - u
    change = rest - 1.0
    log = tl.where(change == 0.0, -u, tl.log(rest) * (-u / tl.where(change == 0.0, 1.0, change)))
    return -tl.log(-log)


@triton.jit
def _choose(logits, mask, peaks, temperature, top_k, top_p, min_p, seed, position, draw, state, first, second, values,
            ids, size, words, tiles, MASKED: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr):  # fmt: skip
    row, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    heat = tl.load(temperature + row)
    at = tile * TILE + tl.arange(0, TILE)
    score = _tile_logits(logits, mask, row, at, size, words, MASKED)
    if heat > 0:
        z, bits = _scaled(logits, mask, peaks, heat, row, at, size, words, tiles, MASKED, TILES)
        of_k, threshold = tl.load(state + row * 32 + 16), tl.load(state + row * 32 + 17)
        k = tl.load(top_k + row)
        equal = tl.where(k > 0, k - _column(first, row, tiles, 0, tiles, TILES), 0.0)
        equal = tl.where(threshold < of_k, 1e9, equal)
        share = _count_bound(top_k, first, top_p, of_k, row, tiles, True, TILES)
        last = tl.exp((threshold | -2147483648).to(tl.float32, bitcast=True))
        # A token of less than 1e-30 has no share that float32 could tell beside the largest's 1: one fits, or all do.
        room = tl.ceil((share - _column(second, row, tiles, 1, tiles, TILES)) / tl.maximum(last, 1e-30))
        equal = tl.where(share >= 0, tl.minimum(equal, tl.maximum(room, 1.0)), equal)
        same = (bits == threshold) & (bits < _NOTHING)
        earlier = _column(second, row, tiles, 2, tile, TILES)
        number = earlier + tl.cumsum(same.to(tl.int32), axis=0).to(tl.float32) - 1.0
        kept = (bits < threshold) | (same & (number < equal))
        kept = kept & (bits < _NOTHING) & (tl.exp(z) >= tl.minimum(tl.load(min_p + row), 1.0))
        noise = _noise(tl.load(seed + row), tl.load(position + row), tl.load(draw + row), at)
        score = tl.where(kept, z + noise, float("-inf"))
    best = tl.max(score, axis=0)
    tl.store(values + row * tiles + tile, best)
    tl.store(ids + row * tiles + tile, tl.min(tl.where(score == best, at, 2147483647), axis=0))


@triton.jit
def _winner(peaks, values, ids, out, tiles, TILES: tl.constexpr):
    row, each = tl.program_id(0).to(tl.int64), tl.arange(0, TILES)
    largest = _largest(peaks, row, tiles, TILES)
    found = tl.load(values + row * tiles + each, mask=each < tiles, other=float("-inf"))
    named = tl.load(ids + row * tiles + each, mask=each < tiles, other=2147483647)
    best = tl.max(found, axis=0)
    token = tl.min(tl.where(found == best, named, 2147483647), axis=0)
    tl.store(out + row, tl.where((largest < float("inf")) & (largest > float("-inf")), token, -1))


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seed: Tensor,
    position: Tensor,
    draw: Tensor,
    mask: Tensor | None = None,
    *,
    out: Tensor,
) -> None:
    """logits f32 [R, V], all parameters [R], mask u32 [R, ceil(V / 32)] -> out i32 [R], -1 where there is no token."""
    rows, size = logits.shape
    tiles = triton.cdiv(size, _TILE)
    words = 0 if mask is None else mask.shape[1]
    given = logits if mask is None else mask
    shape = {"MASKED": mask is not None, "TILE": _TILE, "num_warps": 8}
    across = {"TILES": triton.next_power_of_2(max(2, tiles))}
    peaks, values = logits.new_empty((2, rows, tiles))
    counts = logits.new_empty((2, rows, tiles, 16))
    settled = logits.new_empty((2, rows, tiles, 4))
    state = logits.new_empty((rows, _STATE), dtype=torch.int32)
    ids = logits.new_empty((rows, tiles), dtype=torch.int32)
    grid = (rows, tiles)
    _peaks[grid](logits, given, peaks, size, words, tiles, **shape)
    common = (logits, given, peaks, temperature, top_k, top_p)
    for mass in (False, True):
        for step, shift in enumerate(_BITS):
            _search[grid](
                *common, settled[0], state, counts[1 - step % 2], counts[step % 2], size, words, tiles,
                STEP=step, SHIFT=shift, MASS=mass, **shape, **across,
            )  # fmt: skip
        _settle[grid](
            *common, settled[0], state, counts[1], settled[int(mass)], size, words, tiles, MASS=mass, **shape, **across
        )
    _choose[grid](
        *common, min_p, seed, position, draw, state, settled[0], settled[1], values, ids, size, words, tiles,
        **shape, **across,
    )  # fmt: skip
    _winner[(rows,)](peaks, values, ids, out, tiles, **across)

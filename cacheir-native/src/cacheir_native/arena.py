"""Places of buffers in the arena: best fit over the steps in which each is alive.

The program's memory plan gives every op's result a place. Joined instructions have fewer values that live longer, so
the runner's code is laid out anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cacheir_native.code import Buffer, Code, reads_of, writes_of

ALIGNMENT = 64  # bytes: a cache line, and the widest vector register


@dataclass(frozen=True)
class Frame:
    """Offsets in bytes of the buffers that have no region of their own, and how many bytes they take."""

    places: Mapping[Buffer, int]
    nbytes: int


def lay_out(code: Code) -> Frame:
    """Places for ``code``; no step writes where it reads, and what a head yields stays to its end."""
    last: dict[Buffer, int] = {}
    for index, step in enumerate(code.steps):
        for buffer in (*reads_of(step), *writes_of(step)):
            last[buffer] = index
    places: dict[Buffer, int] = {}
    alive: list[tuple[int, int, Buffer]] = []  # (offset, end, buffer), by offset
    nbytes = 0
    for index, step in enumerate(code.steps):
        for buffer in writes_of(step):
            if buffer.region or buffer in places:
                continue
            offset = _fit(alive, buffer.nbytes)
            places[buffer] = offset
            alive.append((offset, offset + _rounded(buffer.nbytes), buffer))
            alive.sort(key=lambda span: span[0])
            nbytes = max(nbytes, offset + _rounded(buffer.nbytes))
        alive = [span for span in alive if last[span[2]] > index]
    return Frame(places, nbytes)


def _fit(alive: list[tuple[int, int, Buffer]], nbytes: int) -> int:
    """The offset of the smallest gap that holds ``nbytes``, else the end of what is alive."""
    best, least, start = -1, 0, 0
    for offset, end, _ in alive:
        gap = offset - start
        if gap >= _rounded(nbytes) and (best < 0 or gap < least):
            best, least = start, gap
        start = max(start, end)
    return best if best >= 0 else start


def _rounded(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT

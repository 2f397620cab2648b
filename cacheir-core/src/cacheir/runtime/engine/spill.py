"""Cold pages move to host memory, or to a disk, where that is cheaper than computing them: a cost model and a store."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cacheir.errors import UsageError
from cacheir.runtime.engine.disk_blocks import DiskBlocks
from cacheir.runtime.executor import Executor
from cacheir.runtime.pages import FREED

if TYPE_CHECKING:
    import numpy as np

    from cacheir.ir.types import KVType

MODES = ("off", "advised", "on")
# Formats whose pages come back bit for bit from float32; a format with scales of its own does not promise that.
EXACT_FORMATS = frozenset({"f32", "f16", "bf16"})
# Until the first page has been moved, on a machine that is not calibrated: what host memory gives at the least (bytes
# each second, both ways together).
ASSUMED_BYTES_PER_S = 2e9
# Where the speed of a move comes from: this run's own moves, `cacheir profile --calibrate`, or nothing better.
SPEED_SOURCES = ("measured", "calibration", "assumed")


@dataclass(frozen=True, kw_only=True)
class SpillPolicy:
    """``off`` drops what is evicted, ``on`` always keeps it on the host, ``advised`` where the cost model says so.

    ``host_bytes`` bounds what is kept; the oldest goes first. With a ``folder`` blocks lie in a file there, instead of
    in memory; it has no name, and is gone with the process. ``calibrated_bytes_per_s`` is how fast pages move on this
    machine (``bench.spill_speed``), used until the run has moved some itself; None where that was never measured.
    """

    mode: str = "off"
    host_bytes: int = 1 << 30
    folder: Path | None = None
    calibrated_bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise UsageError(f"there is no spill mode {self.mode!r}", hint=f"there are {', '.join(MODES)}")


@dataclass(kw_only=True)
class SpillCounts:
    """Bytes moved out to the host and back in, blocks that were not worth it, and blocks dropped for room.

    ``unwritten_blocks`` were dropped since the disk did not take them.
    """

    out_bytes: int = 0
    in_bytes: int = 0
    spilled_blocks: int = 0
    restored_blocks: int = 0
    recomputing_is_cheaper: int = 0
    dropped_blocks: int = 0
    unwritten_blocks: int = 0


@dataclass(frozen=True, kw_only=True)
class SpillEstimate:
    """What one block costs by either way, in seconds: moved out and back, or computed anew.

    ``bytes_per_s`` is the speed of a move, ``source`` where that comes from (of ``SPEED_SOURCES``).
    """

    block_bytes: int
    bytes_per_s: float
    source: str
    transfer_s: float
    recompute_s: float

    @property
    def worth_it(self) -> bool:
        """Whether the host is the cheaper way."""
        return self.transfer_s < self.recompute_s


class SpillStore:
    """The blocks on the host, by a key of their own. Speeds are measured on what it moves and the engine computes."""

    def __init__(self, executor: Executor, policy: SpillPolicy, page_tokens: int, groups: Sequence[KVType]) -> None:
        inexact = [group.dtype for group in groups if group.dtype not in EXACT_FORMATS]
        if policy.mode != "off" and inexact:
            raise UsageError(
                f"pages stored as {inexact[0]} do not come back bit for bit, so they cannot be spilled",
                hint="use --spill off, or KV pages of f32, f16 or bf16",
            )
        self.policy = policy
        self.counts = SpillCounts()
        self.token_seconds = 0.0  # of computing one token of a prompt, as the engine measures it; 0: not measured
        self._executor = executor
        self._page_tokens = page_tokens
        # Pages are read and written as float32.
        values = sum(2 * group.layers * group.heads * group.head_dim for group in groups)
        self._block_bytes = 4 * values * page_tokens
        self._blocks: MutableMapping[int, dict[int, np.ndarray]] = OrderedDict()  # by group
        if policy.mode != "off" and policy.folder is not None:
            self._blocks = DiskBlocks(policy.folder, self._block_bytes)
        self._next = 0
        self._bytes = 0
        self._seconds = 0.0

    @property
    def bytes_held(self) -> int:
        """Bytes on the host now."""
        return self._bytes

    def estimate(self) -> SpillEstimate:
        """The cost of one block by the best speeds known so far."""
        block_bytes, calibrated = self._block_bytes, self.policy.calibrated_bytes_per_s
        moved = self.counts.out_bytes + self.counts.in_bytes
        if moved and self._seconds:
            speed, source = moved / self._seconds, "measured"
        elif calibrated:
            speed, source = calibrated, "calibration"
        else:
            speed, source = ASSUMED_BYTES_PER_S, "assumed"
        return SpillEstimate(
            block_bytes=block_bytes,
            bytes_per_s=speed,
            source=source,
            transfer_s=2 * block_bytes / speed,
            recompute_s=self.token_seconds * self._page_tokens,
        )

    def put(self, pages: Sequence[int]) -> int | None:
        """Copies a block, one page of each group, to the host; its key, or None where it is to be dropped.

        A page may be ``FREED``; a block of nothing else is dropped.
        """
        if self.policy.mode == "off":
            return None
        if self.policy.mode == "advised" and not self.estimate().worth_it:
            self.counts.recomputing_is_cheaper += 1
            return None
        if self._block_bytes > self.policy.host_bytes or all(page == FREED for page in pages):
            return None
        began = time.perf_counter()
        arrays = {group: self._executor.read_pages(group, (page,)) for group, page in enumerate(pages) if page != FREED}
        try:
            self._blocks[self._next] = arrays
        except OSError:  # the disk is full: what does not fit is computed anew
            self.counts.unwritten_blocks += 1
            return None
        self._seconds += time.perf_counter() - began
        size = _bytes_of(arrays)
        self.counts.out_bytes += size
        self._bytes += size
        self.counts.spilled_blocks += 1
        self._next += 1
        return self._next - 1

    def overfull(self, in_use: Callable[[int], bool]) -> int | None:
        """The key of the oldest block that may be dropped while more is held than may be; None where all are in use."""
        if self._bytes <= self.policy.host_bytes:
            return None
        return next((key for key in self._blocks if not in_use(key)), None)

    def has(self, key: int, group: int) -> bool:
        """Whether the block has a page of ``group``."""
        return group in self._blocks[key]

    def restore(self, key: int, pages: Sequence[int]) -> None:
        """Writes a block into fresh pages, those that are not ``FREED``, and forgets it."""
        arrays = {group: array for group, array in self._blocks[key].items() if pages[group] != FREED}
        began = time.perf_counter()
        for group, array in arrays.items():
            self._executor.write_pages(group, (pages[group],), array)
        self._seconds += time.perf_counter() - began
        self.counts.in_bytes += _bytes_of(arrays)
        self.counts.restored_blocks += 1
        self.drop(key)

    def drop(self, key: int) -> None:
        """Forgets a block."""
        self._bytes -= _bytes_of(self._blocks.pop(key))

    def close(self) -> None:
        """Forgets all blocks, and lets go of the file where there is one."""
        if isinstance(self._blocks, DiskBlocks):
            self._blocks.close()


def _bytes_of(arrays: Mapping[int, np.ndarray]) -> int:
    return sum(array.nbytes for array in arrays.values())

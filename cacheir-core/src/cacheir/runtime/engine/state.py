"""The engine's queues and what they share. ``apply_step`` alone changes them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cacheir.runtime.engine.counters import EngineCounters
from cacheir.runtime.engine.entry import Entry
from cacheir.runtime.engine.outbox import Outbox
from cacheir.runtime.engine.plan_step import EngineLimits, Reuse, Space, WindowSpace
from cacheir.runtime.engine.prefix_index import PrefixIndex
from cacheir.runtime.engine.prefix_node import Node
from cacheir.runtime.kv_space import KVSpace

if TYPE_CHECKING:
    import numpy as np

NOTHING = Reuse()


@dataclass(eq=False)
class EngineState:
    """``running`` is in order of rank. ``by_job`` finds the computation that answers a job, ``by_key`` a twin's.

    ``mask`` is the packed vocabulary mask u32 [ceil(V / 32)] that every token is held to, None for all ids.
    """

    kv: KVSpace
    index: PrefixIndex
    limits: EngineLimits
    mask: np.ndarray | None
    reuses: bool = True  # False where keys depend on the length of their sequence, so that no page fits another
    spills: bool = False  # whether pages that are given back may go to the host
    switches: tuple[int, ...] = ()  # ``DecoderSpec.rotation_switches``
    running: list[Entry] = field(default_factory=list)
    waiting: list[Entry] = field(default_factory=list)
    by_job: dict[str, Entry] = field(default_factory=dict)
    by_key: dict[Any, Entry] = field(default_factory=dict)
    counters: EngineCounters = field(default_factory=EngineCounters)
    outbox: Outbox = field(default_factory=Outbox)
    changes: int = 0  # rises whenever anything but a row's own next tokens changes what a plan is made from

    @property
    def space(self) -> Space:
        """The pages that a step may count on."""
        kv, windowed = self.kv, self.kv.windowed
        if not windowed:
            free = min((pool.free for pool in kv.pools), default=1 << 30)
            return Space(free=free, evictable=self.index.evictable, page_tokens=kv.page_tokens)
        plain = [pool.free for group, pool in enumerate(kv.pools) if group not in windowed]
        return Space(
            free=min(plain, default=1 << 30),
            evictable=self.index.evictable,
            page_tokens=kv.page_tokens,
            windows=tuple(self._window_space(group) for group in windowed),
        )

    def _window_space(self, group: int) -> WindowSpace:
        pool, reach = self.kv.pools[group], self.kv.reaches[group]
        most = reach.most_pages(self.limits.chunk_tokens, self.kv.page_tokens)
        return WindowSpace(pages=pool.free + pool.idle, most=most)

    @property
    def queued_tokens(self) -> int:
        """Prompt tokens that wait."""
        return sum(entry.pending for entry in self.waiting)

    def found(self, entry: Entry) -> list[Node]:
        """The blocks that ``entry`` can take from the prefix index. The block of its last token is never among them,

        since an output must come out of that token, and no page is ever shared with somebody who writes.
        """
        job = entry.job
        if not self.reuses or not job.reuse or job.prompt_logprobs is not None:
            return []
        path = self.index.match(entry.sequence.ids, job.salt)
        return path[: self.index.usable(path, (len(entry.sequence.ids) - 1) // self.kv.page_tokens)]

    def reuse(self, entry: Entry) -> Reuse:
        """What ``plan_step`` needs to know of ``found``."""
        path = self.found(entry)
        if not path and not self.kv.windowed:
            return NOTHING
        resident = [node for node in path if node.spilled is None]
        idle = sum(node.users == 0 for node in resident)
        windows = tuple(self.index.seen_pages(resident, len(path), group) for group in self.kv.windowed)
        return Reuse(blocks=len(path), pages=len(resident), evictable_pages=idle, windows=windows)

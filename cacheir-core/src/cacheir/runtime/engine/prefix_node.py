"""What the prefix index is made of: a node for each block of tokens, and exact counts with a reason for every miss."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

Block = tuple[int, ...]

# Why a token of a prompt had to be computed. "last_token": its block was found, but an output comes out of it.
# "window": its block was found, but not all pages that the layers with a window see from there.
MISS_REASONS = ("new", "evicted", "partial_page", "last_token", "window", "not_asked")


class Node:
    """One block of tokens; ``pages`` has one page for each KV group.

    In a group with a window that may be ``FREED``: such pages are cached for as long as nobody needs their room.
    ``users`` counts the sequences whose tables hold these pages. A sequence that holds a node holds its parents too.
    A spilled node has no pages but the key of its block on the host, and neither has any node below it;
    ``resident`` counts the children that have pages. ``trail`` is a hash of salt and all tokens up to the block's end;
    it names reasons of misses, and never finds a page.
    """

    __slots__ = (
        "block",
        "children",
        "pages",
        "parent",
        "resident",
        "salt",
        "spilled",
        "tick",
        "trail",
        "users",
    )

    def __init__(self, parent: Node | None, salt: str, block: Block, pages: tuple[int, ...]) -> None:
        self.parent = parent  # None for a root, and once it is evicted
        self.salt = salt
        self.block = block
        self.pages = pages
        self.trail: int = hash(salt) if parent is None else hash((parent.trail, block))
        self.children: dict[Block, Node] = {}
        self.spilled: int | None = None
        self.resident = 0
        self.users = 0
        self.tick = 0


def trails(ids: Sequence[int], salt: str, size: int) -> list[int]:
    """``Node.trail`` of each whole block of ``size`` tokens."""
    made, trail = list[int](), hash(salt)
    for start in range(0, len(ids) - size + 1, size):
        trail = hash((trail, tuple(ids[start : start + size])))
        made.append(trail)
    return made


class Evictions:
    """Trails of the last blocks that were evicted, so that a miss can say whether its block was ever there.

    They serve to name a reason alone, never to find a page.
    """

    MOST = 4096

    def __init__(self) -> None:
        self._trails: OrderedDict[int, None] = OrderedDict()

    def add(self, nodes: Iterable[Node]) -> None:
        """Remembers ``nodes``, and forgets the oldest beyond ``MOST``."""
        self._trails.update((node.trail, None) for node in nodes)
        while len(self._trails) > self.MOST:
            self._trails.popitem(last=False)

    def __contains__(self, trail: int) -> bool:
        return trail in self._trails


@dataclass
class PrefixCounts:
    """Exact counts of prompt tokens: those found, those computed by reason, and blocks that came and went."""

    hit_tokens: int = 0
    missed_tokens: Counter[str] = field(default_factory=Counter)
    inserted_blocks: int = 0
    evicted_blocks: int = 0
    evicted_window_pages: int = 0  # of blocks that stayed
    merged_blocks: int = 0  # computed twice, kept once

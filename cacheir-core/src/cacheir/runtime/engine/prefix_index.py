"""Which tokens already have keys and values: a radix tree over blocks of one page, by salt, with its reasons."""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from cacheir.runtime.kv_space import KVSpace, Tables

Block = tuple[int, ...]

# Why a token of a prompt had to be computed. "last_token": its block was found, but an output comes out of it.
MISS_REASONS = ("new", "evicted", "partial_page", "last_token", "not_asked")
# Paths of evicted blocks that are remembered, so that a miss can say whether the block was ever there.
_REMEMBERED_EVICTIONS = 4096


class Node:
    """One block of tokens, from position ``start`` on; ``pages`` has one page for each KV group.

    ``users`` counts the sequences whose tables hold these pages. A sequence that holds a node holds its parents too.
    """

    __slots__ = ("block", "children", "pages", "parent", "salt", "start", "tick", "users")

    def __init__(self, parent: Node | None, salt: str, start: int, block: Block, pages: tuple[int, ...]) -> None:
        self.parent = parent  # None for a root, and once it is evicted
        self.salt = salt
        self.start = start
        self.block = block
        self.pages = pages
        self.children: dict[Block, Node] = {}
        self.users = 0
        self.tick = 0


@dataclass
class PrefixCounts:
    """Exact counts of prompt tokens: those found, those computed by reason, and blocks that came and went."""

    hit_tokens: int = 0
    missed_tokens: Counter[str] = field(default_factory=Counter)
    inserted_blocks: int = 0
    evicted_blocks: int = 0
    merged_blocks: int = 0  # computed twice, kept once


class PrefixIndex:
    """A tree over whole pages. Blocks are compared token by token, so no hash decides what is equal.

    A prompt of another salt is another tree: tenants with different salts never share a page, nor can they learn from
    the time of an answer what others asked. The index holds each of its pages once (``PagePool.share``). Only leaves
    that no sequence uses are evicted, the longest unused first.
    """

    def __init__(self, kv: KVSpace) -> None:
        self.counts = PrefixCounts()
        self._kv = kv
        self._roots: dict[str, Node] = {}
        self._size = 0
        self._in_use = 0
        self._clock = 0
        # Leaves by last use. An entry whose tick is old, or whose node has children or is gone, is skipped when popped.
        self._leaves: list[tuple[int, int, Node]] = []
        # What was evicted. It serves to name a reason alone, never to find a page.
        self._evicted: OrderedDict[tuple[str, int, Block], None] = OrderedDict()

    @property
    def blocks(self) -> int:
        """All blocks, each a page in every group."""
        return self._size

    @property
    def evictable(self) -> int:
        """Blocks that no sequence uses: so many pages of each group could be freed now."""
        return self._size - self._in_use

    def match(self, ids: Sequence[int], salt: str = "") -> list[Node]:
        """The nodes of the longest known beginning of ``ids``; changes nothing."""
        node, path = self._roots.get(salt), list[Node]()
        size = self._kv.page_tokens
        for start in range(0, len(ids) - size + 1, size):
            node = node.children.get(tuple(ids[start : start + size])) if node else None
            if node is None:
                break
            path.append(node)
        return path

    def acquire(self, nodes: Sequence[Node]) -> None:
        """One more user for ``nodes``, which become the newest; the caller's tables share their pages from now on."""
        for node in nodes:
            self._use(node)
        for group, pool in enumerate(self._kv.pools):
            pool.share(node.pages[group] for node in nodes)

    def release(self, nodes: Sequence[Node]) -> None:
        """One user less; the pages themselves are the caller's to give back."""
        for node in nodes:
            node.users -= 1
            if node.users == 0:
                self._in_use -= 1
        if nodes:
            self._list(nodes[-1])

    def extend(self, path: list[Node], ids: Sequence[int], length: int, tables: Tables, salt: str) -> int:
        """Enters the whole pages of the first ``length`` of ``ids`` behind ``path``, and appends their nodes to it.

        ``path`` are the nodes of a sequence so far, ``tables`` its pages. Gives the number of blocks for which the tree
        already had pages: the caller swaps its own for those (``adopted``), so that a block that two sequences
        computed at once is kept once.
        """
        size, merged = self._kv.page_tokens, 0
        for number in range(len(path), length // size):
            parent = path[-1] if path else self._roots.setdefault(salt, Node(None, salt, 0, (), ()))
            block = tuple(ids[number * size : (number + 1) * size])
            node = parent.children.get(block)
            if node is None:
                pages = tuple(table[number] for table in tables)
                node = parent.children[block] = Node(parent, salt, number * size, block, pages)
                for group, pool in enumerate(self._kv.pools):
                    pool.share((node.pages[group],))
                self._size += 1
                self.counts.inserted_blocks += 1
            else:
                merged += 1
                self.counts.merged_blocks += 1
            self._use(node)
            path.append(node)
        return merged

    def adopted(self, path: Sequence[Node], tables: Tables) -> Tables:
        """``tables`` with the pages of ``path`` in front; pages that were the sequence's own are given back."""
        changed = []
        for group, (pool, table) in enumerate(zip(self._kv.pools, tables)):
            front = tuple(node.pages[group] for node in path)
            theirs = [page for page, own in zip(front, table) if page != own]
            pool.share(theirs)
            pool.give_back(own for page, own in zip(front, table) if page != own)
            changed.append(front + table[len(front) :])
        return tuple(changed)

    def evict(self, blocks: int) -> int:
        """Frees up to ``blocks`` blocks that nobody uses, the longest unused leaf first; gives how many."""
        freed = 0
        while freed < blocks and self._leaves:
            tick, _, node = heapq.heappop(self._leaves)
            # Who uses a node now lists it again when it is released.
            if tick == node.tick and node.parent is not None and not node.children and not node.users:
                self._remove(node)
                freed += 1
        return freed

    def count(self, ids: Sequence[int], salt: str, found: int, reused: int) -> None:
        """Counts one admission: ``found`` tokens of ``ids`` were in the tree, ``reused`` of them are not computed."""
        size = self._kv.page_tokens
        self.counts.hit_tokens += reused
        missed = self.counts.missed_tokens
        missed["last_token"] += found - reused
        tail = len(ids) % size
        missed["partial_page"] += tail
        for start in range(found, len(ids) - tail, size):
            key = (salt, start, tuple(ids[start : start + size]))
            missed["evicted" if key in self._evicted else "new"] += size

    def clear(self) -> int:
        """Evicts all that nobody uses; gives how many blocks."""
        return self.evict(self._size)

    def _use(self, node: Node) -> None:
        if node.users == 0:
            self._in_use += 1
        node.users += 1
        self._clock += 1
        node.tick = self._clock

    def _list(self, node: Node) -> None:
        """Puts a leaf among those that may be evicted."""
        if not node.children:
            heapq.heappush(self._leaves, (node.tick, id(node), node))

    def _remove(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        del parent.children[node.block]
        self._remember(node)
        node.parent = None
        for group, pool in enumerate(self._kv.pools):
            pool.give_back((node.pages[group],))
        self._size -= 1
        self.counts.evicted_blocks += 1
        if parent.parent is not None:
            if not parent.users:
                self._list(parent)
        elif not parent.children:
            del self._roots[parent.salt]

    def _remember(self, node: Node) -> None:
        self._evicted[node.salt, node.start, node.block] = None
        while len(self._evicted) > _REMEMBERED_EVICTIONS:
            self._evicted.popitem(last=False)

"""Which tokens already have keys and values: a radix tree over blocks of one page, by salt, with its reasons."""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from cacheir.errors import OutOfPages
from cacheir.runtime.engine.spill import SpillStore
from cacheir.runtime.kv_space import KVSpace, Tables

Block = tuple[int, ...]

# Why a token of a prompt had to be computed. "last_token": its block was found, but an output comes out of it.
MISS_REASONS = ("new", "evicted", "partial_page", "last_token", "not_asked")
# Paths of evicted blocks that are remembered, so that a miss can say whether the block was ever there.
_REMEMBERED_EVICTIONS = 4096


class Node:
    """One block of tokens, from position ``start`` on; ``pages`` has one page for each KV group.

    ``users`` counts the sequences whose tables hold these pages. A sequence that holds a node holds its parents too.
    A spilled node has no pages but the key of its block on the host, and neither has any node below it;
    ``resident`` counts the children that have pages.
    """

    __slots__ = ("block", "children", "pages", "parent", "resident", "salt", "spilled", "start", "tick", "users")

    def __init__(self, parent: Node | None, salt: str, start: int, block: Block, pages: tuple[int, ...]) -> None:
        self.parent = parent  # None for a root, and once it is evicted
        self.salt = salt
        self.start = start
        self.block = block
        self.pages = pages
        self.children: dict[Block, Node] = {}
        self.spilled: int | None = None
        self.resident = 0
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

    def __init__(self, kv: KVSpace, store: SpillStore | None = None) -> None:
        self.counts = PrefixCounts()
        self._store = store
        self._spilled: dict[int, Node] = {}
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
        """One more user for ``nodes``, which become the newest, and are not evicted until they are released."""
        for node in nodes:
            self._use(node)

    def restore(self, nodes: Sequence[Node]) -> None:
        """Brings back those of ``nodes``, all acquired, that lie on the host; ``OutOfPages`` where there is no room."""
        spilled = [node for node in nodes if node.spilled is not None]
        lacking = len(spilled) - min((pool.free for pool in self._kv.pools), default=0)
        if lacking > 0:
            self.evict(lacking)
        for node in spilled:
            self._restore(node)

    def tables(self, nodes: Sequence[Node]) -> Tables:
        """Tables over the pages of ``nodes``, one more holder for each."""
        for group, pool in enumerate(self._kv.pools):
            pool.share(node.pages[group] for node in nodes)
        return tuple(tuple(node.pages[group] for node in nodes) for group in range(len(self._kv.pools)))

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
                self._hold(node)
                self.counts.inserted_blocks += 1
            elif node.spilled is not None:
                # What was just computed stands in for what lies on the host.
                self._forget_spilled(node)
                node.pages = tuple(table[number] for table in tables)
                self._hold(node)
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

    def evict(self, blocks: int, *, keep: bool = True) -> int:
        """Frees up to ``blocks`` blocks that nobody uses, the longest unused leaf first; gives how many.

        ``keep`` lets the store have them.
        """
        freed = 0
        while freed < blocks and self._leaves:
            tick, _, node = heapq.heappop(self._leaves)
            # Who uses a node now lists it again when it is released.
            if tick == node.tick and node.pages and not node.resident and not node.users:
                self._let_go(node, keep)
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
        """Forgets all that nobody uses, on the host too; gives how many blocks had pages."""
        freed = self.evict(self._size, keep=False)
        for node in list(self._spilled.values()):
            self._forget_spilled(node)
            self._detach(node)
        return freed

    def _use(self, node: Node) -> None:
        if node.users == 0:
            self._in_use += 1
        node.users += 1
        self._clock += 1
        node.tick = self._clock

    def _list(self, node: Node) -> None:
        """Puts a leaf among those that may be evicted."""
        if not node.resident:
            heapq.heappush(self._leaves, (node.tick, id(node), node))

    def _hold(self, node: Node) -> None:
        """The index holds the pages of ``node`` from now on."""
        for group, pool in enumerate(self._kv.pools):
            pool.share((node.pages[group],))
        self._size += 1
        if node.parent is not None:
            node.parent.resident += 1

    def _let_go(self, node: Node, keep: bool) -> None:
        """Gives the pages of ``node`` back; its block moves to the host where the store takes it."""
        parent = node.parent
        assert parent is not None
        key = self._store.put(node.pages) if keep and self._store is not None else None
        for group, pool in enumerate(self._kv.pools):
            pool.give_back((node.pages[group],))
        node.pages = ()
        self._size -= 1
        parent.resident -= 1
        self.counts.evicted_blocks += 1
        if key is None:
            self._remember(node)
            self._drop_below(node)
            self._detach(node)
        else:
            node.spilled = key
            self._spilled[key] = node
            self._make_room_on_host()
        if parent.parent is not None and not parent.users:
            self._list(parent)

    def _restore(self, node: Node) -> None:
        assert self._store is not None and node.spilled is not None
        taken: list[tuple[int, ...]] = []
        try:
            for pool in self._kv.pools:
                taken.append(pool.take(1))
        except OutOfPages:
            for pool, pages in zip(self._kv.pools, taken):
                pool.give_back(pages)
            raise
        node.pages = tuple(pages[0] for pages in taken)
        key, node.spilled = node.spilled, None
        del self._spilled[key]
        self._store.restore(key, node.pages)
        # ``take`` made the index their holder.
        self._size += 1
        if node.parent is not None:
            node.parent.resident += 1

    def _make_room_on_host(self) -> None:
        # A block that is about to be restored stays: room for it on the device may be what spilled the last one.
        in_use = lambda key: self._spilled[key].users > 0  # noqa: E731
        while self._store is not None and (key := self._store.overfull(in_use)) is not None:
            node = self._spilled[key]
            self._store.counts.dropped_blocks += 1
            self._remember(node)
            self._forget_spilled(node)
            self._drop_below(node)
            self._detach(node)

    def _forget_spilled(self, node: Node) -> None:
        assert node.spilled is not None
        if self._store is not None:
            self._store.drop(node.spilled)
        del self._spilled[node.spilled]
        node.spilled = None

    def _drop_below(self, node: Node) -> None:
        """What lies on the host below a node that goes is found by nobody any more."""
        below = list(node.children.values())
        while below:
            child = below.pop()
            below += child.children.values()
            self._forget_spilled(child)

    def _detach(self, node: Node) -> None:
        parent = node.parent
        if parent is None:
            return
        del parent.children[node.block]
        node.parent = None
        if parent.parent is None and not parent.children:
            self._roots.pop(parent.salt, None)

    def _remember(self, node: Node) -> None:
        self._evicted[node.salt, node.start, node.block] = None
        while len(self._evicted) > _REMEMBERED_EVICTIONS:
            self._evicted.popitem(last=False)

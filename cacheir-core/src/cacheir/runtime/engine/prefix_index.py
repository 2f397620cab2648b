"""Which tokens already have keys and values: a radix tree over blocks of one page, by salt, with its reasons."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from cacheir.errors import OutOfPages
from cacheir.runtime.engine.prefix_node import Evictions, Node, PrefixCounts, trails
from cacheir.runtime.engine.spill import SpillStore
from cacheir.runtime.kv_space import KVSpace, Tables
from cacheir.runtime.pages import FREED, PageTable, held


class PrefixIndex:
    """A tree over whole pages. Blocks are compared token by token, so no hash decides what is equal.

    A prompt of another salt is another tree: tenants with different salts never share a page, nor can they learn from
    the time of an answer what others asked. The index holds each of its pages once (``PagePool.share``). Only leaves
    that no sequence uses are evicted, the longest unused first. In a group with a window a page may go by itself once
    no sequence holds it (``PagePool.keep``), though sequences that have moved on still use its block.
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
        self._evicted = Evictions()
        # The block of each page that a group with a window has here.
        self._block_of: dict[int, dict[int, Node]] = {group: {} for group in kv.windowed}

    @property
    def blocks(self) -> int:
        """All blocks, each a page in every group without a window."""
        return self._size

    @property
    def evictable(self) -> int:
        """Blocks that no sequence uses: so many pages of each group without a window could be freed now."""
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

    def usable(self, path: Sequence[Node], most: int) -> int:
        """How many of the first ``most`` nodes of ``path`` a sequence can go on from.

        Behind the last of them, all that the layers with a window see must still be there.
        """
        most, size = min(most, len(path)), self._kv.page_tokens
        if not self._kv.windowed:
            return most
        best, runs, first = 0, dict.fromkeys(self._kv.windowed, 0), dict.fromkeys(self._kv.windowed, 0)
        for number, node in enumerate(path[:most]):
            reached = True
            for group in self._kv.windowed:
                there = self._has(node, group)
                runs[group] = runs[group] + 1 if there else 0
                first[group] += there and first[group] == number
                unseen = self._kv.reaches[group].unseen((number + 1) * size, size)
                behind = number + 1 - min(unseen.stop, number + 1) if unseen else number + 1
                reached &= runs[group] >= behind and first[group] >= min(unseen.start, number + 1)
            best = number + 1 if reached else best
        return best

    def seen_pages(self, resident: Sequence[Node], blocks: int, group: int) -> tuple[int, int]:
        """Of a group with a window the pages of ``resident`` that are seen behind so many blocks; how many are idle."""
        unseen, pool = self._unseen(group, blocks), self._kv.pools[group]
        pages = held([node.pages[group] for place, node in enumerate(resident) if place not in unseen])
        return len(pages), sum(map(pool.is_idle, pages))

    def acquire(self, nodes: Sequence[Node]) -> Tables:
        """One more user for ``nodes``, which become the newest, and are not evicted until they are released.

        Gives tables over those of their pages that are still seen behind them, one more holder for each. What lies on
        the host is missing in them (``restore``).
        """
        if not nodes:
            return self._kv.empty()
        self.retain(nodes)
        tables = []
        for group, pool in enumerate(self._kv.pools):
            unseen = self._unseen(group, len(nodes))
            table = tuple(
                FREED if place in unseen else node.pages[group]
                for place, node in enumerate(nodes)
                if node.spilled is None
            )
            pool.share(held(table))
            tables.append(table)
        return tuple(tables)

    def restore(self, paths: Sequence[tuple[Sequence[Node], Tables]]) -> list[Tables]:
        """The tables that ``acquire`` gave for each of ``paths``, with those nodes that lay on the host and come back.

        ``OutOfPages`` where there is no room.
        """
        # All at once: what one path has brought back must not be evicted for the next, nor lack what that one sees.
        due: dict[Node, set[int]] = {}
        for nodes, tables in paths:
            for place in range(len(tables[0]) if tables else len(nodes), len(nodes)):
                groups = due.setdefault(nodes[place], set())
                groups.update(group for group in range(len(tables)) if place not in self._unseen(group, len(nodes)))
        if due:
            self.make_room([sum(group in groups for groups in due.values()) for group in range(len(self._kv.pools))])
            for node, groups in due.items():
                self._restore(node, [group for group in sorted(groups) if self._has(node, group)])
        return [self._joined(nodes, tables) if due else tables for nodes, tables in paths]

    def retain(self, nodes: Sequence[Node]) -> None:
        """One user more for each of ``nodes``, which become the newest; the pages are the caller's to hold."""
        for node in nodes:
            self._in_use += not node.users
            node.users += 1
            self._clock += 1
            node.tick = self._clock

    def release(self, nodes: Sequence[Node]) -> None:
        """One user less; the pages themselves are the caller's to give back."""
        for node in nodes:
            node.users -= 1
            self._in_use -= not node.users
        if nodes:
            self._list(nodes[-1])

    def extend(self, path: list[Node], ids: Sequence[int], length: int, tables: Tables, salt: str) -> int:
        """Enters the whole pages of the first ``length`` of ``ids`` behind ``path``, and appends their nodes to it.

        ``path`` are the nodes of a sequence so far, ``tables`` its pages. Gives the number of blocks for which the tree
        already had pages: the caller swaps its own for those (``KVSpace.adopted``), so that a block that two sequences
        computed at once is kept once. Pages that a block has lost to the window are taken from ``tables``.
        """
        size, merged = self._kv.page_tokens, 0
        for number in range(len(path), length // size):
            parent = path[-1] if path else self._roots.setdefault(salt, Node(None, salt, (), ()))
            block = tuple(ids[number * size : (number + 1) * size])
            node = parent.children.get(block)
            if node is None:
                pages = tuple(table[number] for table in tables)
                node = parent.children[block] = Node(parent, salt, block, pages)
                self._hold(node)
                self.counts.inserted_blocks += 1
            elif node.spilled is not None:
                # What was just computed stands in for what lies on the host.
                self._forget_spilled(node)
                node.pages = tuple(table[number] for table in tables)
                self._hold(node)
            else:
                self._refill(node, tuple(table[number] for table in tables))
                merged += 1
                self.counts.merged_blocks += 1
            self.retain((node,))
            path.append(node)
        return merged

    def make_room(self, pages: Sequence[int]) -> None:
        """Frees pages that nobody needs until each group has as many free ones as ``pages`` says, as far as it can."""
        pools = self._kv.pools
        if all(pool.free >= count for pool, count in zip(pools, pages)):
            return
        plain = [pages[group] - pools[group].free for group in range(len(pools)) if group not in self._block_of]
        self.evict(max(plain, default=0))
        for group, block_of in self._block_of.items():
            pool = pools[group]
            while pool.free < pages[group] and pool.idle:
                page = pool.oldest_idle
                node = block_of[page]
                if node.users or node.resident:
                    self._drop_page(node, group)
                else:
                    self._let_go(node, keep=True)

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
        # The block of the last token is never taken over (``EngineState.found``).
        most = min(found, (len(ids) - 1) // size * size)
        missed["last_token"] += found - most
        if most > reused:
            missed["window"] += most - reused
        missed["partial_page"] += len(ids) % size
        for trail in trails(ids, salt, size)[found // size :]:
            missed["evicted" if trail in self._evicted else "new"] += size

    def clear(self) -> int:
        """Forgets all that nobody uses, on the host too; gives how many blocks had pages."""
        before, used = self._size, [*self._roots.values()]
        while used:
            node = used.pop()
            for child in [*node.children.values()]:
                if child.users:
                    used.append(child)
                else:
                    self._forget(node, child)
        self._leaves = sorted(leaf for leaf in self._leaves if leaf[2].pages)  # which is a heap
        return before - self._size

    def _forget(self, parent: Node, top: Node) -> None:
        """``top`` and all below it, which nobody uses, go at once: in less than half the time of one after another."""
        parent.resident -= bool(top.pages)
        self._detach(top)
        nodes = [top]
        for node in nodes:  # those that are added too
            nodes += node.children.values()
        resident = [node for node in nodes if node.pages]
        for group, pool in enumerate(self._kv.pools):
            if group in self._block_of:
                for node in resident:
                    self._release_page(node, group)
            else:
                pool.give_back([node.pages[group] for node in resident])
        self._evicted.add(resident)
        self._size -= len(resident)
        self.counts.evicted_blocks += len(resident)
        for node in nodes:
            if node.spilled is not None:
                self._forget_spilled(node)
            node.pages, node.parent = (), None

    def _list(self, node: Node) -> None:
        """Puts a leaf among those that may be evicted."""
        if not node.resident:
            heapq.heappush(self._leaves, (node.tick, id(node), node))

    def _has(self, node: Node, group: int) -> bool:
        """Whether ``node`` has its page of ``group``, here or on the host."""
        if node.spilled is not None:
            return self._store is not None and self._store.has(node.spilled, group)
        return node.pages[group] != FREED

    def _unseen(self, group: int, blocks: int) -> range:
        """The places of which nothing is seen behind so many blocks."""
        size = self._kv.page_tokens
        return self._kv.reaches[group].unseen(blocks * size, size)

    def _joined(self, nodes: Sequence[Node], tables: Tables) -> Tables:
        """``tables`` with the pages of those of ``nodes`` that they lack, one more holder for each."""
        whole = []
        for group, (pool, table) in enumerate(zip(self._kv.pools, tables)):
            unseen = self._unseen(group, len(nodes))
            places = range(len(table), len(nodes))
            added = tuple(FREED if place in unseen else nodes[place].pages[group] for place in places)
            pool.share(held(added))
            whole.append(table + added)
        return tuple(whole)

    def _hold(self, node: Node) -> None:
        """The index holds the pages of ``node`` from now on."""
        for group in range(len(self._kv.pools)):
            self._hold_page(node, group)
        self._size += 1
        if node.parent is not None:
            node.parent.resident += 1

    def _hold_page(self, node: Node, group: int) -> None:
        page, pool = node.pages[group], self._kv.pools[group]
        if group not in self._block_of:
            pool.share((page,))
        elif page != FREED:
            pool.keep(page)
            self._block_of[group][page] = node

    def _refill(self, node: Node, pages: PageTable) -> None:
        """Takes those of ``pages`` that ``node`` has lost."""
        for group in self._kv.windowed:
            if node.pages[group] == FREED != pages[group]:
                node.pages = (*node.pages[:group], pages[group], *node.pages[group + 1 :])
                self._hold_page(node, group)

    def _drop_page(self, node: Node, group: int) -> None:
        """Frees the page of ``node`` in a group with a window; its block stays for what the other groups have."""
        self._release_page(node, group)
        node.pages = (*node.pages[:group], FREED, *node.pages[group + 1 :])
        self.counts.evicted_window_pages += 1

    def _release_page(self, node: Node, group: int) -> None:
        page, pool = node.pages[group], self._kv.pools[group]
        if group not in self._block_of:
            pool.give_back((page,))
        elif page != FREED:
            del self._block_of[group][page]
            pool.drop(page)

    def _let_go(self, node: Node, keep: bool) -> None:
        """Gives the pages of ``node`` back; its block moves to the host where the store takes it."""
        parent = node.parent
        assert parent is not None
        key = self._store.put(node.pages) if keep and self._store is not None else None
        for group in range(len(self._kv.pools)):
            self._release_page(node, group)
        node.pages = ()
        self._size -= 1
        parent.resident -= 1
        self.counts.evicted_blocks += 1
        if key is None:
            self._evicted.add((node,))
            self._drop_below(node)
            self._detach(node)
        else:
            node.spilled = key
            self._spilled[key] = node
            self._make_room_on_host()
        if parent.parent is not None and not parent.users:
            self._list(parent)
            self._prune(parent)

    def _prune(self, node: Node) -> None:
        """Lets a leaf without any page go that nobody uses: it is found by nobody any more."""
        if node.pages and not node.children and not node.users and not held(node.pages):
            self._let_go(node, keep=False)

    def _restore(self, node: Node, groups: Sequence[int]) -> None:
        """``node`` comes back from the host with its pages of ``groups``."""
        assert self._store is not None and node.spilled is not None
        taken: dict[int, int] = {}
        try:
            for group in groups:
                (taken[group],) = self._kv.pools[group].take(1)
        except OutOfPages:
            for group, page in taken.items():
                self._kv.pools[group].give_back((page,))
            raise
        node.pages = tuple(taken.get(group, FREED) for group in range(len(self._kv.pools)))
        key, node.spilled = node.spilled, None
        del self._spilled[key]
        self._store.restore(key, node.pages)
        self._hold(node)
        # The index is their holder now, in place of whoever took them.
        for group, page in taken.items():
            self._kv.pools[group].give_back((page,))

    def _make_room_on_host(self) -> None:
        # A block that is about to be restored stays: room for it on the device may be what spilled the last one.
        in_use = lambda key: self._spilled[key].users > 0  # noqa: E731
        while self._store is not None and (key := self._store.overfull(in_use)) is not None:
            node = self._spilled[key]
            self._store.counts.dropped_blocks += 1
            self._evicted.add((node,))
            self._forget_spilled(node)
            self._drop_below(node)
            parent = node.parent
            self._detach(node)
            if parent is not None:
                self._prune(parent)

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

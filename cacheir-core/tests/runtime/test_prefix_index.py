"""The prefix index beside a table of all known beginnings: what is found, what goes first, and every count exactly."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from cacheir.runtime.engine.prefix_index import PrefixIndex
from cacheir.runtime.engine.prefix_node import Node
from cacheir.runtime.kv_space import KVSpace

SIZE, PAGES = 2, (40, 33)
Known = tuple[str, tuple[int, ...]]  # a salt and the tokens up to the end of a block


class Copier:
    """Nothing is copied: no two sequences write into one page here."""

    def copy_pages(self, group: int, pairs: object) -> None:
        raise AssertionError("a shared page was written to")


class Table:
    """What the index should be: the beginnings that have pages, when each was last used, and by how many."""

    def __init__(self) -> None:
        self.used: dict[Known, int] = {}
        self.users: Counter[Known] = Counter()
        self.gone: set[Known] = set()
        self.hits, self.missed, self.evicted, self.clock = 0, Counter[str](), 0, 0

    def beginnings(self, ids: tuple[int, ...], salt: str, blocks: int) -> list[Known]:
        return [(salt, ids[: SIZE * (number + 1)]) for number in range(blocks)]

    def found(self, ids: tuple[int, ...], salt: str) -> int:
        number = 0
        while number < len(ids) // SIZE and (salt, ids[: SIZE * (number + 1)]) in self.used:
            number += 1
        return number

    def admit(self, ids: tuple[int, ...], salt: str) -> list[Known]:
        """Counts the tokens of a prompt and gives the beginnings that are taken over."""
        found = self.found(ids, salt)
        reused = min(found, (len(ids) - 1) // SIZE)
        self.hits += SIZE * reused
        self.missed["last_token"] += SIZE * (found - reused)
        self.missed["partial_page"] += len(ids) % SIZE
        for known in self.beginnings(ids, salt, len(ids) // SIZE)[found:]:
            self.missed["evicted" if known in self.gone else "new"] += SIZE
        return self.use(self.beginnings(ids, salt, reused))

    def use(self, beginnings: list[Known]) -> list[Known]:
        for known in beginnings:
            self.clock += 1
            self.used[known] = self.clock
            self.users[known] += 1
        return beginnings

    def evict(self) -> bool:
        """The leaf that nobody uses and whose last use is longest ago goes."""
        parents = {(salt, ids[:-SIZE]) for salt, ids in self.used}
        leaves = [known for known in self.used if known not in parents and not self.users[known]]
        if leaves:
            oldest = min(leaves, key=self.used.__getitem__)
            del self.used[oldest]
            self.gone.add(oldest)
            self.evicted += 1
        return bool(leaves)

    def clear(self) -> int:
        """All that nobody uses goes."""
        return sum(iter(self.evict, False))


PROMPT = st.tuples(
    st.just("run"),
    st.lists(st.integers(0, 1), min_size=1, max_size=9).map(tuple),
    st.sampled_from(["", "", "other"]),
    st.integers(0, 4),
)
END, EVICT = st.tuples(st.just("end"), st.integers(0, 4)), st.tuples(st.just("evict"), st.integers(1, 4))
STEP = PROMPT | EVICT | END | st.just(("clear",))


@settings(max_examples=150, deadline=None)
@given(steps=st.lists(STEP, max_size=40))
def test_it_is_the_table_of_all_beginnings(steps: list[tuple[object, ...]]) -> None:
    kv = KVSpace(Copier(), PAGES, SIZE)
    index, table = PrefixIndex(kv), Table()
    running: dict[object, tuple[object, ...]] = {}

    def end(name: object) -> None:
        if name in running:
            path, tables, beginnings = running.pop(name)
            table.users.subtract(beginnings)
            index.release(path)
            kv.cut(tables, 0)

    for kind, *rest in steps:
        if kind == "evict":
            (blocks,) = rest
            assert index.evict(blocks) == sum(table.evict() for _ in range(blocks))
        elif kind == "clear":
            assert index.clear() == table.clear()
        elif kind == "end":
            end(rest[0])
        else:
            ids, salt, name = rest
            end(name)
            match = index.match(ids, salt)
            assert len(match) == table.found(ids, salt)
            path = match[: index.usable(match, (len(ids) - 1) // SIZE)]
            index.count(ids, salt, SIZE * len(match), SIZE * len(path))
            beginnings = table.admit(ids, salt)
            assert len(path) == len(beginnings)
            tables = index.acquire(path)
            tables = kv.reserve(tables, SIZE * len(path), len(ids))
            before = len(path)
            index.extend(path, ids, len(ids), tables, salt)
            tables = kv.adopted([node.pages for node in path], tables)
            beginnings = [*beginnings, *table.use(table.beginnings(ids, salt, len(ids) // SIZE)[before:])]
            running[name] = (path, tables, beginnings)
        counts = index.counts
        assert (counts.hit_tokens, counts.evicted_blocks) == (table.hits, table.evicted)
        assert +counts.missed_tokens == +table.missed
        assert index.blocks == len(table.used)
        assert index.evictable == sum(not table.users[known] for known in table.used)
    for name in list(running):
        end(name)
    assert all(pool.free + index.blocks == pool.size for pool in kv.pools)
    index.clear()
    assert all(pool.free == pool.size for pool in kv.pools) and not index._leaves


def test_what_is_used_while_all_else_is_forgotten_can_go_later() -> None:
    """Two blocks that one sequence uses have a third below them that nobody does."""
    kv = KVSpace(Copier(), PAGES, SIZE)
    index, paths = PrefixIndex(kv), []
    for ids in ((1, 1, 2, 2, 3, 3), (1, 1, 2, 2)):
        path: list[Node] = []
        tables = kv.reserve(kv.empty(), 0, len(ids))
        index.extend(path, ids, len(ids), tables, "")
        paths.append((path, kv.adopted([node.pages for node in path], tables)))
    longer, shorter = paths
    index.release(longer[0])
    kv.cut(longer[1], 0)
    assert (index.clear(), index.blocks, index.evictable) == (1, 2, 0)
    assert len(index.match((1, 1, 2, 2, 3, 3))) == 2
    index.release(shorter[0])
    kv.cut(shorter[1], 0)
    assert index.evict(9) == 2
    assert all(pool.free == pool.size for pool in kv.pools)

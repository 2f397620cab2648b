"""Pages: nothing leaks, nothing is freed twice, and never do two tables write one page."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cacheir.errors import OutOfPages
from cacheir.runtime import pages
from cacheir.runtime.kv_space import KVSpace
from cacheir.runtime.pages import FREED, PagePool, Reach, held


class Tables(RuleBasedStateMachine):
    """Tables that grow, fork, are cut and dropped; a model beside it knows what every position must read as."""

    PAGES, PAGE_TOKENS = 11, 3

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(self.PAGES)
        self.memory: dict[tuple[int, int], int] = {}
        self.tables: list[tuple[pages.PageTable, list[int]]] = [((), [])]
        self.stamp = 0

    @rule(which=st.integers(0, 99), back=st.integers(0, 5), tokens=st.integers(1, 8))
    def write(self, which: int, back: int, tokens: int) -> None:
        which %= len(self.tables)
        table, content = self.tables[which]
        start = max(0, len(content) - back)
        stop = start + tokens
        needed = pages.plan_growth(self.pool, table, start, stop, self.PAGE_TOKENS).pages
        free = self.pool.free
        try:
            table, copies = pages.grow(self.pool, table, start, stop, self.PAGE_TOKENS)
        except OutOfPages:
            assert needed > free == self.pool.free
            return
        assert self.pool.free == free - needed
        for source, target in copies:
            for offset in range(self.PAGE_TOKENS):
                self.memory[target, offset] = self.memory.get((source, offset), -1)
        for position in range(start, stop):
            page = table[position // self.PAGE_TOKENS]
            assert self.pool.holders(page) == 1
            self.stamp += 1
            self.memory[page, position % self.PAGE_TOKENS] = self.stamp
            content[position:] = [*content[position:position], self.stamp]
        self.tables[which] = (table, content)

    @rule(which=st.integers(0, 99), at=st.integers(0, 40))
    def fork(self, which: int, at: int) -> None:
        table, content = self.tables[which % len(self.tables)]
        at = min(at, len(content))
        self.tables.append((pages.fork(self.pool, table, at, self.PAGE_TOKENS), content[:at]))

    @rule(which=st.integers(0, 99), length=st.integers(0, 40))
    def cut(self, which: int, length: int) -> None:
        which %= len(self.tables)
        table, content = self.tables[which]
        length = min(length, len(content))
        self.tables[which] = (pages.cut(self.pool, table, length, self.PAGE_TOKENS), content[:length])

    @precondition(lambda self: len(self.tables) > 1)
    @rule(which=st.integers(0, 99))
    def drop(self, which: int) -> None:
        table, _ = self.tables.pop(which % len(self.tables))
        assert pages.cut(self.pool, table, 0, self.PAGE_TOKENS) == ()

    @rule(which=st.integers(0, 99), others=st.booleans())
    def give_back_and_take_back(self, which: int, others: bool) -> None:
        given = [table for table, _ in (self.tables if others else [self.tables[which % len(self.tables)]])]
        for table in given:
            pages.cut(self.pool, table, 0, self.PAGE_TOKENS)
        for table in given:
            self.pool.take_back(table)

    @invariant()
    def counts_are_the_tables(self) -> None:
        held = [page for table, _ in self.tables for page in table]
        assert [self.pool.holders(page) for page in range(self.PAGES)] == [
            held.count(page) for page in range(self.PAGES)
        ]
        assert self.pool.free == self.PAGES - len(set(held))

    @invariant()
    def every_table_reads_what_was_written_to_it(self) -> None:
        for table, content in self.tables:
            read = [self.memory[table[p // self.PAGE_TOKENS], p % self.PAGE_TOKENS] for p in range(len(content))]
            assert read == content


TestTables = Tables.TestCase
TestTables.settings = settings(max_examples=80, stateful_step_count=40)


def test_a_page_cannot_be_given_back_twice() -> None:
    pool = PagePool(2)
    taken = pool.take(1)
    pool.give_back(taken)
    with pytest.raises(AssertionError, match="given back twice"):
        pool.give_back(taken)
    with pytest.raises(AssertionError, match="nobody holds"):
        pool.share(taken)


def test_too_few_pages_take_none() -> None:
    pool = PagePool(3)
    with pytest.raises(OutOfPages, match="4 KV pages and 3 of 3"):
        pool.take(4)
    assert pool.free == 3


class Copier:
    """Notes copies; refuses those of one group."""

    def __init__(self) -> None:
        self.copies: list[tuple[int, tuple[int, int]]] = []
        self.broken_group = -1

    def copy_pages(self, group: int, pairs: list[tuple[int, int]]) -> None:
        if group == self.broken_group:
            raise MemoryError
        self.copies += [(group, pair) for pair in pairs]


@given(length=st.integers(1, 20), at=st.integers(0, 20), more=st.integers(1, 9))
def test_groups_grow_together_or_not_at_all(length: int, at: int, more: int) -> None:
    copier = Copier()
    space = KVSpace(copier, (30, 7), 4)
    tables = space.reserve(space.empty(), 0, length)
    child = space.fork(tables, min(at, length))
    before = [pool.free for pool in space.pools]
    fits = space.fits([(child, min(at, length), min(at, length) + more)])
    try:
        child = space.reserve(child, min(at, length), min(at, length) + more)
        assert fits
    except OutOfPages:
        assert not fits
        assert [pool.free for pool in space.pools] == before
        assert copier.copies == []
    for mine in (tables, child):
        assert space.cut(mine, 0) == ((), ())
    assert [pool.free for pool in space.pools] == [30, 7]


def test_tables_that_only_grow_get_pages_in_all_groups_or_in_none() -> None:
    space = KVSpace(Copier(), (9, 3), 4)
    tables = space.reserve(space.empty(), 0, 8)
    assert tables == ((0, 1), (0, 1))
    with pytest.raises(OutOfPages, match="needs 3 KV pages of group 1 and 1 of 3 are free"):
        space.reserve(tables, 8, 17)
    assert [pool.free for pool in space.pools] == [7, 1]
    assert space.reserve(tables, 8, 12) == ((0, 1, 2), (0, 1, 2))


@pytest.mark.parametrize("windowed", [False, True])
def test_what_was_given_back_is_taken_back(windowed: bool) -> None:
    """With pages that a cache keeps, which were idle meanwhile, and places that a window has freed."""
    space = KVSpace(Copier(), (9, 9), 4, (Reach(), Reach(window=4 if windowed else 0)))
    tables = space.trim(space.reserve(space.empty(), 0, 30), 30)
    for pool, table in zip(space.pools, tables):
        pool.keep(table[-1])
    assert space.cut(tables, 0) == ((), ())
    assert [pool.idle for pool in space.pools] == [1, 1]
    assert space.take_back(tables) == tables
    for pool, table in zip(space.pools, tables):
        assert (pool.idle, pool.free) == (0, 9 - len(held(table)))
        assert [pool.holders(page) for page in held(table)] == [1] * (len(held(table)) - 1) + [2]
        assert set(pool.take(pool.free)).isdisjoint(held(table))


@pytest.mark.parametrize("broken_group", [0, 1])
def test_a_copy_that_fails_leaves_the_tables_as_they_were(broken_group: int) -> None:
    copier = Copier()
    space = KVSpace(copier, (9, 9), 4)
    tables = space.reserve(space.empty(), 0, 6)
    child = space.fork(tables, 6)
    copier.broken_group = broken_group
    with pytest.raises(MemoryError):
        space.reserve(child, 6, 12)
    assert all(pool.holders(page) == 2 for pool, table in zip(space.pools, tables) for page in table)
    assert [pool.free for pool in space.pools] == [7, 7]
    copier.broken_group = -1
    copier.copies.clear()
    child = space.reserve(child, 6, 12)
    assert copier.copies == [(0, (tables[0][1], child[0][1])), (1, (tables[1][1], child[1][1]))]


def test_capacity_is_that_of_the_smallest_pool() -> None:
    assert KVSpace(Copier(), (3, 5), 16).capacity_tokens(16) == 48
    assert KVSpace(Copier(), (), 16).capacity_tokens(16) is None


def test_tables_are_consecutive_where_they_can_be() -> None:
    pool = PagePool(12)
    first, _ = pages.grow(pool, (), 0, 8, 4)
    first, _ = pages.grow(pool, first, 8, 20, 4)
    assert first == (0, 1, 2, 3, 4)
    second, _ = pages.grow(pool, (), 0, 12, 4)
    assert second == (5, 6, 7)
    pages.cut(pool, first, 0, 4)
    third, _ = pages.grow(pool, (), 0, 12, 4)
    second, _ = pages.grow(pool, second, 12, 24, 4)
    third, _ = pages.grow(pool, third, 12, 20, 4)
    assert third == (0, 1, 2, 3, 4) and second == (5, 6, 7, 8, 9, 10)


@given(actions=st.lists(st.tuples(st.booleans(), st.integers(0, 12), st.integers(-1, 12)), max_size=60))
def test_no_page_is_taken_twice(actions: list[tuple[bool, int, int]]) -> None:
    pool = PagePool(10)
    held: list[int] = []
    for take, count, after in actions:
        if take and count <= pool.free:
            held += pool.take(count, after=after)
        elif not take:
            back, held = held[:count], held[count:]
            pool.give_back(back)
        assert len(set(held)) == len(held) == pool.size - pool.free
    pool.give_back(held)
    assert sorted(pool.take(10)) == list(range(10))


@given(
    reach=st.builds(Reach, st.integers(1, 20), st.integers(0, 9)),
    position=st.integers(0, 80),
    tokens=st.integers(1, 9),
    page_tokens=st.integers(1, 6),
)
def test_a_window_frees_what_no_later_token_sees(reach: Reach, position: int, tokens: int, page_tokens: int) -> None:
    count = pages.pages_for(position + tokens, page_tokens)
    seen = [at < reach.sinks or at > position - reach.window for at in range(count * page_tokens)]
    unseen = reach.unseen(position, page_tokens)
    expected = [page for page in range(count) if not any(seen[page * page_tokens : (page + 1) * page_tokens])]
    assert [page for page in range(count) if page in unseen] == expected
    assert count - len(expected) <= reach.most_pages(tokens, page_tokens)
    space = KVSpace(Copier(), (200, 200), page_tokens, (Reach(), reach))
    whole = space.reserve(space.empty(), 0, position)
    trimmed = space.trim(whole, position)
    assert trimmed[0] == whole[0] and space.trim(trimmed, position) == trimmed
    grown = space.reserve(trimmed, position, position + tokens)
    assert [place for place, page in enumerate(grown[1]) if page == FREED] == expected
    assert space.resumable(grown, position) and len(held(grown[1])) == count - len(expected)
    fresh = space.take_seen(position + tokens, position)
    assert [[page == FREED for page in table] for table in fresh] == [[page == FREED for page in t] for t in grown]
    for tables in (grown, fresh):
        space.cut(tables, 0)
    assert [pool.free for pool in space.pools] == [200, 200]


def test_a_page_that_a_cache_alone_holds_is_idle() -> None:
    pool = PagePool(3)
    first, second = pool.take(2)
    pool.keep(first)
    pool.keep(second)
    assert pool.idle == 0
    pool.give_back((second, first))
    assert pool.idle == 2 and pool.oldest_idle == second and pool.free == 1
    pool.share((second,))
    assert not pool.is_idle(second) and pool.oldest_idle == first
    pool.drop(first)
    assert (pool.idle, pool.free) == (0, 2)
    with pytest.raises(AssertionError, match="kept twice"):
        pool.keep(second)


@given(st.integers(1, 40), st.lists(st.tuples(st.integers(0, 12), st.integers(-2, 41), st.integers(0, 7)), max_size=30))
def test_pages_follow_the_one_before_and_are_else_the_lowest(size: int, moves: list[tuple[int, int, int]]) -> None:
    pool, free, tables = PagePool(size), set(range(size)), list[tuple[int, ...]]()
    for count, after, back in moves:
        if count <= len(free):
            taken, last = [], after
            for _ in range(count):
                last = last + 1 if last + 1 > 0 and last + 1 in free else min(free)
                free.remove(last)
                taken.append(last)
            tables.append(pool.take(count, after))
            assert tables[-1] == tuple(taken)
        else:
            with pytest.raises(OutOfPages):
                pool.take(count, after)
        if back < len(tables):
            free.update(given := tables.pop(back))
            pool.give_back(given)
        assert pool.free == len(free)

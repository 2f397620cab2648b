"""The page pools of all KV groups of one executor, and the page tables that sequences hold in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from cacheir.errors import OutOfPages
from cacheir.runtime import pages
from cacheir.runtime.pages import FREED, PagePool, PageTable, Reach, pages_for

Tables = tuple[PageTable, ...]  # one for each KV group


class PageCopier(Protocol):
    """The part of an executor that copies pages within a group."""

    def copy_pages(self, group: int, pairs: Sequence[tuple[int, int]]) -> None: ...


class KVSpace:
    """Pages by KV group. Every change of a table goes through here, so that counts and tables cannot part.

    ``page_counts`` is the number of pages of each group's pool, as it was given to ``Executor.open_pools``; ``reaches``
    says what the group's layers see, () for all positions in every group.
    """

    def __init__(
        self, executor: PageCopier, page_counts: Sequence[int], page_tokens: int, reaches: Sequence[Reach] = ()
    ) -> None:
        self._executor = executor
        self.pools = tuple(PagePool(count) for count in page_counts)
        self.page_tokens = page_tokens
        self.reaches = tuple(reaches) or (Reach(),) * len(self.pools)
        self.windowed = tuple(group for group, reach in enumerate(self.reaches) if reach.window)

    def capacity_tokens(self, step_tokens: int) -> int | None:
        """How many positions one sequence could have that feeds up to ``step_tokens`` at once; None for any number."""
        short = [
            pool.size * self.page_tokens
            for pool, reach in zip(self.pools, self.reaches)
            if not reach.window or pool.size < reach.most_pages(step_tokens, self.page_tokens)
        ]
        return min(short, default=None)

    def empty(self) -> Tables:
        """The tables of a sequence without positions."""
        return ((),) * len(self.pools)

    def fits(self, spans: Sequence[tuple[Tables, int, int]]) -> bool:
        """Whether the positions (tables, start, stop) of several sequences could all be reserved now.

        Pages that the sequences share among themselves count once for each, which is at most one too many.
        """
        for number, pool in enumerate(self.pools):
            needed = sum(
                pages.plan_growth(pool, tables[number], start, stop, self.page_tokens).pages
                for tables, start, stop in spans
            )
            if needed > pool.free:
                return False
        return True

    def reserve(self, tables: Tables, start: int, stop: int) -> Tables:
        """Tables in which the positions ``start`` to ``stop`` - 1 belong to one sequence; shared pages are copied.

        ``OutOfPages``, and nothing changed, where a group has too few free pages.
        """
        if tables and len(tables[0]) * self.page_tokens <= start:
            return self._longer(tables, stop)
        growths = [
            pages.plan_growth(pool, table, start, stop, self.page_tokens) for pool, table in zip(self.pools, tables)
        ]
        self._check_free([growth.pages for growth in growths])
        grown: list[PageTable] = []
        try:
            for number, (pool, table, growth) in enumerate(zip(self.pools, tables, growths)):
                bigger, copies = pages.grow(pool, table, start, stop, self.page_tokens, growth)
                grown.append(bigger)
                if copies:
                    self._executor.copy_pages(number, copies)
        except BaseException:
            for pool, table, bigger in zip(self.pools, tables, grown):
                pages.shrink(pool, bigger, table)
            raise
        return tuple(grown)

    def _longer(self, tables: Tables, stop: int) -> Tables:
        """``reserve`` where all that will be written lies behind ``tables``: as for every prompt, where it is quick."""
        added = pages_for(stop, self.page_tokens) - len(tables[0])
        self._check_free([added] * len(tables))
        return tuple(
            table + pool.take(added, after=table[-1] if table else -1) for pool, table in zip(self.pools, tables)
        )

    def _check_free(self, needed: Sequence[int]) -> None:
        """``OutOfPages`` where a group has fewer free pages than are ``needed`` of it."""
        for number, (pool, count) in enumerate(zip(self.pools, needed)):
            if count > pool.free:
                raise OutOfPages(
                    f"the step needs {count} KV pages of group {number} and {pool.free} of {pool.size} are free",
                    hint="close sessions that are done, or open the model with more kv_tokens",
                )

    def trim(self, tables: Tables, position: int) -> Tables:
        """Tables without the pages of which no token at ``position`` or later sees anything; ``FREED`` stands there."""
        if not self.windowed:
            return tables
        return tuple(
            pages.trim(pool, table, reach.unseen(position, self.page_tokens))
            for pool, table, reach in zip(self.pools, tables, self.reaches)
        )

    def resumable(self, tables: Tables, position: int) -> bool:
        """Whether all that a token at ``position`` sees is in ``tables``, its own page too: it may be written again."""
        size = self.page_tokens
        for group in self.windowed:
            unseen, table = self.reaches[group].unseen(position, size), tables[group][: pages_for(position + 1, size)]
            if FREED in table[: unseen.start] or FREED in table[unseen.stop :]:
                return False
        return True

    def take_seen(self, stop: int, position: int) -> Tables:
        """Fresh tables over the positions below ``stop`` that a token at ``position`` or later sees.

        ``OutOfPages``, and nothing changed, where a group has too few free pages.
        """
        count, tables = pages_for(stop, self.page_tokens), list[PageTable]()
        try:
            for pool, reach in zip(self.pools, self.reaches):
                gone = reach.unseen(position, self.page_tokens)[:count]
                taken = pool.take(count - len(gone))
                tables.append((*taken[: gone.start], *(FREED,) * len(gone), *taken[gone.start :]))
        except OutOfPages:
            for pool, table in zip(self.pools, tables):
                pages.cut(pool, table, 0, self.page_tokens)
            raise
        return tuple(tables)

    def fork(self, tables: Tables, length: int) -> Tables:
        """Tables of a second sequence that shares the first ``length`` positions."""
        return tuple(pages.fork(pool, table, length, self.page_tokens) for pool, table in zip(self.pools, tables))

    def adopted(self, path: Sequence[PageTable], tables: Tables) -> Tables:
        """``tables`` with the pages of ``path``, one of each group for each place, in front; its own go back."""
        changed = []
        for group, (pool, table) in enumerate(zip(self.pools, tables)):
            front = tuple(FREED if own == FREED else there[group] for there, own in zip(path, table))
            pool.share(page for page, own in zip(front, table) if page != own)
            pool.give_back(own for page, own in zip(front, table) if page != own)
            changed.append(front + table[len(front) :])
        return tuple(changed)

    def cut(self, tables: Tables, length: int) -> Tables:
        """Tables without the pages that hold no position below ``length``."""
        return tuple(pages.cut(pool, table, length, self.page_tokens) for pool, table in zip(self.pools, tables))

    def take_back(self, tables: Tables) -> Tables:
        """Undoes ``cut`` to no positions, after which nobody took a page: gives ``tables``."""
        for pool, table in zip(self.pools, tables):
            pool.take_back(pages.held(table))
        return tables

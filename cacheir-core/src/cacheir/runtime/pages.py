"""Who owns which page of one KV group: reference counts and copy-on-write; the device sees only page numbers.

A page table is a tuple of page numbers; page ``i`` of it holds the positions from ``i * page_tokens`` on, and is
``FREED`` where no later token sees any of them. Deciding (``plan_growth``) is apart from doing (``grow``), so that a
scheduler can ask what a step would cost.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from cacheir.errors import OutOfPages
from cacheir.quick_dataclass import dataclass

PageTable = tuple[int, ...]
# In a table, in the place of a page that was given back: its positions lie behind the window.
FREED = -1


@dataclass(frozen=True)
class Reach:
    """Which positions the layers of a KV group still see: the first ``sinks`` and the latest ``window``; 0 for all."""

    window: int = 0
    sinks: int = 0

    def unseen(self, position: int, page_tokens: int) -> range:
        """The pages of which no token at ``position`` or later sees anything."""
        if not self.window:
            return range(0)
        first = pages_for(self.sinks, page_tokens)
        return range(first, max(first, (position - self.window + 1) // page_tokens))

    def most_pages(self, tokens: int, page_tokens: int) -> int:
        """The most pages that a sequence holds which feeds ``tokens`` at once; only for a group with a window."""
        return pages_for(self.sinks, page_tokens) + pages_for(self.window + tokens - 2, page_tokens) + 1


class PagePool:
    """The pages of one KV group. A page is free, or held by as many tables as its count says.

    A cache may hold a page too (``keep``). Where it is the last holder the page is idle: nobody needs it now.
    """

    def __init__(self, pages: int) -> None:
        self._counts = [0] * pages
        self._free = pages
        self._open = bytearray(b"\1") * pages  # 1 for each free page, which is searched much faster than counts
        self._lowest = 0  # no page below it is free
        self._kept: set[int] = set()
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def size(self) -> int:
        """All pages, free or not."""
        return len(self._counts)

    @property
    def free(self) -> int:
        """Pages that nobody holds."""
        return self._free

    @property
    def idle(self) -> int:
        """Pages that a cache alone holds."""
        return len(self._idle)

    @property
    def oldest_idle(self) -> int:
        """The page that has been idle for the longest; there must be one."""
        return next(iter(self._idle))

    def is_idle(self, page: int) -> bool:
        """Whether a cache alone holds ``page``."""
        return page in self._idle

    def holders(self, page: int) -> int:
        """How many tables hold ``page``."""
        return self._counts[page]

    def needed(self, page: int) -> int:
        """How many tables hold ``page``, a cache left out."""
        return self._counts[page] - (page in self._kept)

    def take(self, count: int, after: int = -1) -> PageTable:
        """``count`` pages for one holder, all or none; ``OutOfPages`` where too few are free.

        The page that follows ``after``, and then the lowest: a table of consecutive pages is one slice of the pool,
        which some executors read without gathering.
        """
        if count > self._free:
            raise OutOfPages(
                f"the step needs {count} KV pages and {self._free} of {self.size} are free",
                hint="close sessions that are done, or open the model with more kv_tokens",
            )
        taken: list[int] = []
        open_, size = self._open, self.size
        while len(taken) < count:
            after += 1
            if not (0 < after < size and open_[after]):
                after = self._lowest = open_.find(1, self._lowest)
            # All that lie behind it and are free at once: a prompt takes dozens.
            most = min(after + count - len(taken), size)
            stop = open_.find(0, after, most)
            stop = most if stop < 0 else stop
            open_[after:stop] = bytes(stop - after)
            self._counts[after:stop] = [1] * (stop - after)
            taken += range(after, stop)
            after = stop - 1
        self._free -= count
        return tuple(taken)

    def share(self, pages: Iterable[int]) -> None:
        """One more holder for each page."""
        for page in pages:
            if self._counts[page] == 0:
                raise AssertionError(f"page {page} is shared although nobody holds it")
            self._counts[page] += 1
            if self._idle:
                self._idle.pop(page, None)

    def keep(self, page: int) -> None:
        """A cache holds ``page`` besides."""
        if page in self._kept:
            raise AssertionError(f"page {page} is kept twice")
        self.share((page,))
        self._kept.add(page)

    def drop(self, page: int) -> None:
        """The cache lets go of ``page``."""
        self._kept.remove(page)
        self._idle.pop(page, None)
        self.give_back((page,))

    def give_back(self, pages: Iterable[int]) -> None:
        """One holder less for each page; a page without holders is free again."""
        counts = self._counts
        for page in pages:
            left = counts[page] - 1
            if left < 0:
                raise AssertionError(f"page {page} is given back twice")
            counts[page] = left
            if left == 0:
                self._free += 1
                self._open[page] = 1
                if page < self._lowest:
                    self._lowest = page
            elif left == 1 and page in self._kept:
                self._idle[page] = None

    def take_back(self, pages: Iterable[int]) -> None:
        """Undoes ``give_back``, after which nobody took a page."""
        for page in pages:
            if self._counts[page]:
                self.share((page,))
            else:
                self._counts[page] = 1
                self._open[page] = 0
                self._free -= 1


@dataclass(frozen=True)
class Growth:
    """What a table needs before some positions may be written.

    ``replaced`` are the indices of shared pages that get a page of their own, ``copied`` those among them whose
    earlier positions must move along; ``added`` counts pages at the end.
    """

    replaced: tuple[int, ...]
    copied: tuple[int, ...]
    added: int

    @property
    def pages(self) -> int:
        """How many free pages it takes."""
        return len(self.replaced) + self.added


def plan_growth(pool: PagePool, table: PageTable, start: int, stop: int, page_tokens: int) -> Growth:
    """What ``table`` needs so that the positions ``start`` to ``stop`` - 1 may be written; changes nothing."""
    first, end = start // page_tokens, pages_for(stop, page_tokens)
    if first >= len(table):
        return Growth((), (), max(0, end - len(table)))
    if FREED in table[first:end]:
        raise AssertionError(f"position {start} is to be written, and its page was freed")
    shared = tuple(index for index in range(first, min(end, len(table))) if pool.holders(table[index]) > 1)
    # Only the first page can hold positions before ``start``; in the others everything is written anew.
    copied = tuple(index for index in shared if index == first and start % page_tokens)
    return Growth(shared, copied, max(0, end - len(table)))


def grow(
    pool: PagePool, table: PageTable, start: int, stop: int, page_tokens: int, growth: Growth | None = None
) -> tuple[PageTable, tuple[tuple[int, int], ...]]:
    """The grown table and the (source, target) pairs to copy before anything is written; ``OutOfPages``, or all of it.

    ``growth`` is what ``plan_growth`` says of the pool as it is now, if that is known: one made before another table
    grew may replace a page that is no longer shared. The shared pages are given back at once, since their other
    holders keep them until the copy is done.
    """
    growth = growth or plan_growth(pool, table, start, stop, page_tokens)
    if not growth.pages:
        return table, ()
    fresh = pool.take(growth.pages, after=table[-1] if table else -1)
    if not growth.replaced:
        return table + fresh, ()
    added, replacing = fresh[: growth.added], fresh[growth.added :]
    grown = list(table)
    for index, page in zip(growth.replaced, replacing, strict=True):
        grown[index] = page
    pool.give_back(table[index] for index in growth.replaced)
    return (*grown, *added), tuple((table[index], grown[index]) for index in growth.copied)


def shrink(pool: PagePool, grown: PageTable, table: PageTable) -> None:
    """Take back ``grow``, which made ``grown`` out of ``table``, where the copy it asked for failed."""
    pool.share(set(table) - set(grown))
    pool.give_back(set(grown) - set(table))


def fork(pool: PagePool, table: PageTable, length: int, page_tokens: int) -> PageTable:
    """A second table over the pages of the first ``length`` positions; both must grow before they write."""
    shared = table[: pages_for(length, page_tokens)]
    pool.share(held(shared))
    return shared


def cut(pool: PagePool, table: PageTable, length: int, page_tokens: int) -> PageTable:
    """``table`` without the pages that hold no position below ``length``.

    The last go first, so that a cache which keeps them finds those idle for the longest that nothing builds on.
    """
    keep = pages_for(length, page_tokens)
    pool.give_back(reversed(held(table[keep:])))
    return table[:keep]


def trim(pool: PagePool, table: PageTable, unseen: range) -> PageTable:
    """``table`` with ``FREED`` at the places ``unseen``, whose pages go back."""
    stop = min(unseen.stop, len(table))
    # What lies before the last freed place was freed with it.
    if stop <= unseen.start or table[stop - 1] == FREED:
        return table
    pool.give_back(held(table[unseen.start : stop]))
    return (*table[: unseen.start], *(FREED,) * (stop - unseen.start), *table[stop:])


def held(table: Sequence[int]) -> PageTable:
    """The pages of ``table`` that are not freed."""
    return tuple(page for page in table if page != FREED) if FREED in table else tuple(table)


def pages_for(tokens: int, page_tokens: int) -> int:
    """How many pages hold ``tokens`` positions."""
    return -(-tokens // page_tokens)

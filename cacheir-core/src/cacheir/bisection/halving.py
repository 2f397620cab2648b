"""Halving: between a number that is right and one that is wrong lies a first wrong one."""

from __future__ import annotations

from collections.abc import Callable


def first_wrong(right: int, wrong: int, is_wrong: Callable[[int], bool]) -> int:
    """A number n in (``right``, ``wrong``] that is wrong while n - 1 is right; asks ceil(log2(wrong - right)) times.

    Both ends are known and not asked. Where wrong and right alternate it is one of the places where they change.
    """
    while wrong - right > 1:
        middle = (right + wrong) // 2
        if is_wrong(middle):
            wrong = middle
        else:
            right = middle
    return wrong

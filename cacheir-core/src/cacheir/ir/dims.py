"""Sizes: a constant plus named sizes with factors, and nothing more general.

The letters: T tokens, B rows, H hidden, N query heads, K key/value heads, D head size, F feed-forward,
V vocabulary, R rows with a head, M pages of a row, P pages of a pool, S keys seen by a row.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_TERM = re.compile(r"\s*(?:(?:(-?\d+)\s*\*\s*)?([A-Za-z_]\w*)|(-?\d+))\s*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Dim:
    """``constant`` + sum of factor * name, names sorted and factors not zero, so that equal sizes are equal objects."""

    constant: int = 0
    terms: tuple[tuple[str, int], ...] = ()

    def __add__(self, other: DimLike) -> Dim:
        other = dim(other)
        merged = dict(self.terms)
        for name, factor in other.terms:
            merged[name] = merged.get(name, 0) + factor
        return _sum(self.constant + other.constant, merged)

    def __sub__(self, other: DimLike) -> Dim:
        return self + dim(other) * -1

    def __mul__(self, factor: int) -> Dim:
        terms = tuple((name, value * factor) for name, value in self.terms) if factor else ()
        return Dim(self.constant * factor, terms)

    @property
    def is_constant(self) -> bool:
        """Whether no name is in it."""
        return not self.terms

    @property
    def names(self) -> tuple[str, ...]:
        """The names in it, sorted."""
        return tuple(name for name, _ in self.terms)

    def evaluate(self, sizes: Mapping[str, int]) -> int:
        """The size where each name has the value in ``sizes``; KeyError for a missing name."""
        return self.constant + sum(factor * sizes[name] for name, factor in self.terms)

    def substitute(self, sizes: Mapping[str, Dim]) -> Dim:
        """The size with each name replaced by its size in ``sizes``; names not in it stay."""
        if not self.terms:
            return self
        constant = self.constant
        merged: dict[str, int] = {}
        for name, factor in self.terms:
            given = sizes.get(name, Dim(0, ((name, 1),)))
            constant += given.constant * factor
            for inner, inner_factor in given.terms:
                merged[inner] = merged.get(inner, 0) + inner_factor * factor
        return _sum(constant, merged)

    def limits(self, bounds: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
        """The least and the greatest size where each name lies in ``bounds``; KeyError for a missing name."""
        low = high = self.constant
        for name, factor in self.terms:
            ends = (factor * bounds[name][0], factor * bounds[name][1])
            low, high = low + min(ends), high + max(ends)
        return low, high

    def __str__(self) -> str:
        parts = [name if factor == 1 else f"{factor}*{name}" for name, factor in self.terms]
        if self.constant or not parts:
            parts.append(str(self.constant))
        return " + ".join(parts)


def _sum(constant: int, factors: Mapping[str, int]) -> Dim:
    """``constant`` + sum of factor * name, as ``Dim`` wants its terms."""
    return Dim(constant, tuple(sorted((name, factor) for name, factor in factors.items() if factor)))


DimLike = int | str | Dim


def dim(value: DimLike) -> Dim:
    """A size from an integer, a text such as ``"T"`` or ``"2*T + 1"``, or a size; ValueError for other text."""
    if isinstance(value, Dim):
        return value
    if isinstance(value, int):
        return Dim(value)
    total = Dim()
    for part in value.split("+"):
        match = _TERM.fullmatch(part)
        if match is None:
            raise ValueError(f"cannot read size {value!r}")
        total = total + (Dim(int(match[3])) if match[3] else Dim(0, ((match[2], 1),)) * int(match[1] or 1))
    return total

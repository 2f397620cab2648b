"""Named sizes get their values from the shapes of arrays."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping

from cacheir.errors import IRError
from cacheir.ir.dims import Dim

# What a size is in ``out_types`` before the op that makes it has run.
UNKNOWN = -1


def bind_shapes(pairs: Iterable[tuple[str, tuple[Dim, ...], tuple[int, ...]]], sizes: MutableMapping[str, int]) -> None:
    """Fill in ``sizes`` so that each declared shape is the actual one; pairs are (whose, declared, actual).

    Raises IRError where that cannot be: an axis count, a constant, or two uses of one name differ.
    """
    open_axes: list[tuple[str, Dim, int]] = []
    for whose, declared, actual in pairs:
        if len(declared) != len(actual):
            raise IRError(f"{whose} has {len(declared)} axes, but got an array of shape {list(actual)}")
        open_axes += [(whose, size, number) for size, number in zip(declared, actual)]
    while open_axes:
        # An axis with two unknown names waits for others to bind one of them.
        waiting = [axis for axis in open_axes if not _bound(*axis, sizes)]
        if len(waiting) == len(open_axes):
            whose, size, number = waiting[0]
            raise IRError(f"{whose}: the names in {size} do not follow from its being {number}")
        open_axes = waiting


def known_shape(shape: Iterable[Dim], sizes: MutableMapping[str, int]) -> tuple[int, ...]:
    """A shape in integers, ``UNKNOWN`` where a name has no value yet."""
    return tuple(size.evaluate(sizes) if all(name in sizes for name in size.names) else UNKNOWN for size in shape)


def _bound(whose: str, size: Dim, actual: int, sizes: MutableMapping[str, int]) -> bool:
    unknown = [(name, factor) for name, factor in size.terms if name not in sizes]
    if len(unknown) > 1:
        return False
    rest = actual - size.constant - sum(factor * sizes[name] for name, factor in size.terms if name in sizes)
    if not unknown:
        if rest:
            raise IRError(f"{whose}: an axis of size {size} = {actual - rest} got {actual} elements")
        return True
    ((name, factor),) = unknown
    if rest % factor or rest // factor < 0:
        raise IRError(f"{whose}: {size} cannot be {actual} for any size {name}")
    sizes[name] = rest // factor
    return True

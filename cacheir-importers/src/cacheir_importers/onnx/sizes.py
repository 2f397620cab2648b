"""Arithmetic of shapes with named sizes: stretching two to one, and what is left of a number of elements."""

from __future__ import annotations

from collections.abc import Sequence

from cacheir.ir.dims import Dim


def stretched(first: Sequence[Dim], second: Sequence[Dim]) -> tuple[Dim, ...] | None:
    """The shape that both stretch to, axes paired from the last on; None where they do not."""
    length = max(len(first), len(second))
    padded = [(Dim(1),) * (length - len(shape)) + tuple(shape) for shape in (first, second)]
    result = []
    for left, right in zip(*padded):
        if left != right and Dim(1) not in (left, right):
            return None
        result.append(right if left == Dim(1) else left)
    return tuple(result)


def left_over(whole: Sequence[Dim], others: Sequence[Dim]) -> Dim | None:
    """The size that makes ``others`` hold as many elements as ``whole``; None where none does for all values."""
    total, known = _product(whole), _product(others)
    if len(known) != 1:
        return None
    ((names, factor),) = known.items()
    result = Dim()
    for term, count in total.items():
        left = list(term)
        for name in names:
            if name not in left:
                return None
            left.remove(name)
        if not factor or count % factor or len(left) > 1:
            return None
        result = result + (Dim(0, ((left[0], count // factor),)) if left else Dim(count // factor))
    return result


def _product(sizes: Sequence[Dim]) -> dict[tuple[str, ...], int]:
    """A product of sizes as a polynomial: sorted names -> factor."""
    total: dict[tuple[str, ...], int] = {(): 1}
    for size in sizes:
        product: dict[tuple[str, ...], int] = {}
        for names, factor in total.items():
            for more, other in (((), size.constant), *(((name,), number) for name, number in size.terms)):
                key = tuple(sorted((*names, *more)))
                product[key] = product.get(key, 0) + factor * other
        total = {names: factor for names, factor in product.items() if factor}
    return total

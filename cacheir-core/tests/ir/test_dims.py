"""Sizes: an algebra whose equal members are equal objects, tested against plain integers."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cacheir.ir import Dim, dim
from cacheir.testing.strategies import DIMS, sizes

VALUES = st.fixed_dictionaries({name: st.integers(low, high) for name, low, high in DIMS})


@given(sizes(), sizes(), st.integers(-3, 3), VALUES)
def test_arithmetic_agrees_with_integers(a: Dim, b: Dim, factor: int, values: dict[str, int]) -> None:
    left, right = a.evaluate(values), b.evaluate(values)
    assert (a + b).evaluate(values) == left + right
    assert (a - b).evaluate(values) == left - right
    assert (a * factor).evaluate(values) == left * factor


@given(sizes(), sizes(), sizes())
def test_equal_sizes_are_equal_objects(a: Dim, b: Dim, c: Dim) -> None:
    assert a + b == b + a
    assert (a + b) + c == a + (b + c)
    assert (a + b) - b == a
    assert a - a == Dim()
    assert a * 2 == a + a


@given(sizes())
def test_text_is_read_back(size: Dim) -> None:
    assert dim(str(size)) == size


@given(sizes(), st.fixed_dictionaries({}, optional={name: sizes() for name, _, _ in DIMS}), VALUES)
def test_substitution_agrees_with_evaluation(size: Dim, inner: dict[str, Dim], values: dict[str, int]) -> None:
    after = {name: inner[name].evaluate(values) if name in inner else value for name, value in values.items()}
    assert size.substitute(inner).evaluate(values) == size.evaluate(after)


@given(
    st.builds(lambda c, fs: Dim(c) + sum((Dim(0, ((n, 1),)) * f for n, f in fs.items()), Dim()), st.integers(-5, 5),
              st.dictionaries(st.sampled_from("ABC"), st.integers(-3, 3))),
    st.fixed_dictionaries({name: st.tuples(st.integers(0, 2), st.integers(2, 4)) for name in "ABC"}),
)  # fmt: skip
def test_limits_are_the_least_and_the_greatest(size: Dim, bounds: dict[str, tuple[int, int]]) -> None:
    ranges = [range(low, high + 1) for low, high in bounds.values()]
    every = [size.evaluate(dict(zip(bounds, point))) for point in itertools.product(*ranges)]
    assert size.limits(bounds) == (min(every), max(every))


@pytest.mark.parametrize("text", ["", "T - 1", "T*2", "2T", "T +", "T.x", "1.5", "١", "T²"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="cannot read size"):
        dim(text)

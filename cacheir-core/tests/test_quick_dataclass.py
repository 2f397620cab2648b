"""The quick dataclass beside the library's: the same classes, made by both, behave alike."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from dataclasses import field
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cacheir.quick_dataclass import dataclass

Decorator = Callable[[type], Any]


def library(**options: bool) -> Decorator:
    return dataclasses.dataclass(**options)


def quick(**options: bool) -> Decorator:
    return dataclass(**options)


def make(decorator: Callable[..., Decorator], *, kw_only: bool) -> Any:
    @decorator(frozen=True, kw_only=kw_only)
    class Record:
        """A record."""

        kind: ClassVar[str] = "record"
        first: int
        second: Any = "two"
        third: list[int] = field(default_factory=list, hash=False)
        fourth: int = field(default=4, compare=False)
        fifth: int = field(default=5, repr=False, hash=True, compare=False)
        sixth: list[int] = field(default_factory=lambda: [6], init=False, compare=False)
        seventh: int = field(default=7, init=False)

        def __post_init__(self) -> None:
            if self.first < 0:
                raise ValueError("first is below 0")

    return Record


def outcome(run: Callable[[], Any]) -> Any:
    """What ``run`` gives, or the kind and the words of what it raises."""
    try:
        return run()
    except Exception as fault:
        return type(fault), str(fault)


@pytest.mark.parametrize("kw_only", [True, False])
@given(
    values=st.fixed_dictionaries(
        {"first": st.integers(-2, 2)},
        optional={
            "second": st.one_of(st.integers(0, 1), st.just([])),
            "third": st.lists(st.integers(0, 1), max_size=2),
            "fourth": st.integers(0, 1),
            "fifth": st.integers(0, 1),
            "sixth": st.just([]),
            "eighth": st.integers(),
        },
    ),
    others=st.fixed_dictionaries({"first": st.integers(-1, 1)}, optional={"fourth": st.integers(0, 1)}),
)
def test_made_shown_compared_and_hashed_alike(kw_only: bool, values: dict[str, Any], others: dict[str, Any]) -> None:
    one, two = make(library, kw_only=kw_only), make(quick, kw_only=kw_only)
    assert outcome(lambda: repr(one(**values))) == outcome(lambda: repr(two(**values)))
    assert outcome(lambda: hash(one(**values))) == outcome(lambda: hash(two(**values)))
    assert outcome(lambda: one(**values) == one(**others)) == outcome(lambda: two(**values) == two(**others))
    assert outcome(lambda: dataclasses.asdict(one(**values))) == outcome(lambda: dataclasses.asdict(two(**values)))


@pytest.mark.parametrize("kw_only", [True, False])
def test_signature_fields_and_arguments_by_place(kw_only: bool) -> None:
    one, two = make(library, kw_only=kw_only), make(quick, kw_only=kw_only)
    assert list(inspect.signature(one).parameters) == list(inspect.signature(two).parameters)
    kinds = [[p.kind for p in inspect.signature(cls).parameters.values()] for cls in (one, two)]
    assert kinds[0] == kinds[1]
    assert [f.name for f in dataclasses.fields(one)] == [f.name for f in dataclasses.fields(two)]
    assert one.__match_args__ == two.__match_args__
    assert outcome(lambda: repr(one(1, "b"))) == outcome(lambda: repr(two(1, "b")))
    assert two.__init__.__qualname__.endswith("Record.__init__")
    assert two.__doc__ == "A record."


def test_frozen() -> None:
    record = make(quick, kw_only=True)(first=1)
    for name in ("first", "sixth", "new"):
        with pytest.raises(dataclasses.FrozenInstanceError, match=f"cannot assign to field '{name}'"):
            setattr(record, name, 2)
        with pytest.raises(dataclasses.FrozenInstanceError, match=f"cannot delete field '{name}'"):
            delattr(record, name)
    assert dataclasses.replace(record, first=3).first == 3
    assert record != make(quick, kw_only=True)(first=1)  # another class of that name


def test_a_default_is_made_anew_each_time() -> None:
    record = make(quick, kw_only=True)
    one, two = record(first=1), record(first=1)
    assert one.third is not two.third
    assert one.sixth is not two.sixth


@dataclass(frozen=True)
class Point:
    """At the top, so that pickle finds it."""

    x: int
    y: int = 0


def test_copies() -> None:
    assert (
        copy.copy(Point(1, 2)) == copy.deepcopy(Point(1, 2)) == pickle.loads(pickle.dumps(Point(1, 2))) == Point(1, 2)
    )


def test_what_a_class_says_itself_stays() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Named:  # noqa: PLW1641  the decorator makes __hash__
        name: str
        note: str = ""

        def __repr__(self) -> str:
            return self.name

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Named) and other.name == self.name

    assert repr(Named(name="a")) == "a"
    assert Named(name="a", note="1") == Named(name="a", note="2")
    assert hash(Named(name="a")) == hash(Named(name="a"))
    assert hash(Named(name="a", note="1")) != hash(Named(name="a", note="2"))  # of the fields, as the library's


def test_classes_that_inherit() -> None:
    @dataclass(frozen=True)
    class Deep(Point):
        z: int = 0

    @dataclasses.dataclass(frozen=True)
    class Other(Point):
        z: int = 0

    assert Deep(1, 2, 3) == Deep(1, 2, 3) != Point(1, 2)
    assert repr(Other(1, 2, 3)).endswith("Other(x=1, y=2, z=3)")
    with pytest.raises(dataclasses.FrozenInstanceError):
        Deep(1).z = 4  # type: ignore[misc]


def test_a_record_that_holds_itself_is_shown() -> None:
    @dataclass(frozen=True)
    class Loop:
        items: list[Any]

    loop = Loop([])
    loop.items.append(loop)
    assert "..." in repr(loop)


def test_what_says_that_it_has_no_hash_has_none() -> None:
    @dataclass(frozen=True)
    class Unhashed:
        x: int
        __hash__ = None  # type: ignore[assignment]

    with pytest.raises(TypeError, match="unhashable"):
        hash(Unhashed(1))


@pytest.mark.parametrize(
    ("name", "kind"), [("x", "dataclasses.InitVar[int]"), ("self", "int"), ("_into", "int"), ("_make_x", "int")]
)
def test_a_field_that_it_cannot_have_is_refused(name: str, kind: str) -> None:
    made = type("Made", (), {"__annotations__": {name: kind}, "__module__": __name__})
    with pytest.raises(TypeError, match=f"Made.{name}: use the library's"):
        quick(frozen=True)(made)

"""``dataclass`` as the library has it, for frozen classes, made in a fifth of the time: a command makes 150 of them.

The library writes and compiles six functions for each class, which was a sixth of the time to a first token. Here
``__init__`` alone is compiled; the others are the same few lines for every class, over its fields. What the library
says of a class holds: ``fields``, ``replace``, ``is_dataclass``, equality, hash, ``repr`` and FrozenInstanceError.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, FrozenInstanceError, fields, is_dataclass
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    from dataclasses import dataclass as library_dataclass

    def dataclass(*, frozen: bool, kw_only: bool = False) -> Callable[[type], type]:
        """A decorator; ``frozen`` is always True, and stands there since readers know it from the library."""
        assert frozen

        def make(cls: type) -> type:
            if any(is_dataclass(base) for base in cls.__mro__[1:]):
                return library_dataclass(frozen=True, kw_only=kw_only)(cls)
            given = dict(vars(cls))
            cls = library_dataclass(init=False, repr=False, eq=False, kw_only=kw_only)(cls)
            _check_fields(cls)
            cls.__dataclass_params__.frozen = True  # so that the library lets frozen classes alone inherit
            for name, method in _methods(cls, fields(cls)).items():
                # Python itself sets __hash__ to None where a class says __eq__ alone.
                if name not in given or (name == "__hash__" and given[name] is None and "__eq__" in given):
                    method.__qualname__ = f"{cls.__qualname__}.{name}"
                    setattr(cls, name, method)
            return cls

        return make


# Names that ``__init__`` uses besides the fields'.
_TAKEN = ("self", "_set", "_unset", "_into", "_make_", "_default_")


def _check_fields(cls: Any) -> None:
    """TypeError for a field that the library would take and this does not."""
    for name, field in cls.__dataclass_fields__.items():
        if "InitVar" in str(field.type) or name in _TAKEN or name.startswith(_TAKEN[-2:]):
            raise TypeError(f"a quick dataclass takes no such field as {cls.__qualname__}.{name}: use the library's")


def _methods(cls: Any, of: Sequence[Field[Any]]) -> dict[str, Callable[..., Any]]:
    """The methods of a frozen dataclass with the fields ``of``."""
    names = frozenset(field.name for field in of)
    compared = _values([field.name for field in of if field.compare])
    hashed = _values([field.name for field in of if (field.compare if field.hash is None else field.hash)])
    shown = [field.name for field in of if field.repr]

    @recursive_repr()
    def __repr__(self: Any) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    def __eq__(self: Any, other: object) -> Any:
        return compared(self) == compared(other) if other.__class__ is self.__class__ else NotImplemented

    def __hash__(self: Any) -> int:
        return hash(hashed(self))

    def __setattr__(self: Any, name: str, value: object) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def __delattr__(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    made = (_init(cls, of), __repr__, __eq__, __hash__, __setattr__, __delattr__)
    return {method.__name__: method for method in made}


def _values(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    """A function from an object to the tuple of its attributes ``names``."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda self: tuple(getattr(self, name) for name in names)


def _init(cls: Any, of: Sequence[Field[Any]]) -> Callable[..., None]:
    """``__init__``, compiled, so that a wrong argument is Python's own TypeError."""
    known: dict[str, Any] = {"_set": object.__setattr__, "_unset": MISSING}
    arguments, body = {False: ["self"], True: []}, list[str]()
    # Straight into the object's dict, where it keeps all there: two thirds of the time of object.__setattr__.
    in_dict = not any("__slots__" in vars(base) for base in cls.__mro__)
    if in_dict and of:
        body.append(" _into = self.__dict__")
    for field in of:
        value = field.name
        if field.default_factory is not MISSING:
            known[f"_make_{field.name}"] = field.default_factory
            value = f"_make_{field.name}()"
            if field.init:
                value += f" if {field.name} is _unset else {field.name}"
        if field.init:
            default = ""
            if field.default_factory is not MISSING:
                default = "=_unset"
            elif field.default is not MISSING:
                known[f"_default_{field.name}"] = field.default
                default = f"=_default_{field.name}"
            arguments[bool(field.kw_only)].append(field.name + default)
        elif field.default_factory is MISSING:
            continue  # the class has the default, or __post_init__ sets the value
        body.append(f" _into[{field.name!r}] = {value}" if in_dict else f" _set(self, {field.name!r}, {value})")
    if hasattr(cls, "__post_init__"):
        body.append(" self.__post_init__()")
    by_name = ["*", *arguments[True]] if arguments[True] else []
    head = f"def __init__({', '.join(arguments[False] + by_name)}):"
    exec("\n".join([head, *(body or [" pass"])]), known)  # noqa: S102  names of fields alone, as the library does
    init: Callable[..., None] = known["__init__"]
    init.__annotations__ = {field.name: field.type for field in of if field.init} | {"return": None}
    return init

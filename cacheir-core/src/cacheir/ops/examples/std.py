"""Examples of the std ops, a function for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cacheir.ir.dims import DimLike
from cacheir.ir.graph import Attr
from cacheir.ir.types import TensorType, Type

Examples = Sequence[tuple[Sequence[Type], Mapping[str, Attr]]]

_NARROW = ("f16", "bf16")


def _tensor(dtype: str, *shape: DimLike) -> TensorType:
    return TensorType.of(dtype, *shape)


def _pairs(dtypes: Sequence[str]) -> list[tuple[Type, ...]]:
    """Two operands: alike, stretched on either side, empty; each shape in f32, one in the other types."""
    shapes: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
        ((3, 5), (3, 5)),
        ((1, 7), (7,)),
        ((4, 1), (1, 3)),
        ((), (2, 3)),
        ((0, 5), (0, 5)),
    )
    pairs: list[tuple[Type, ...]] = [(_tensor("f32", *a), _tensor("f32", *b)) for a, b in shapes]
    return pairs + [(_tensor(dtype, 3, 5), _tensor(dtype, 5)) for dtype in dtypes]


def _singles(dtypes: Sequence[str]) -> list[tuple[Type, ...]]:
    shapes: tuple[tuple[int, ...], ...] = ((3, 5), (1, 7), (), (0, 5))
    singles: list[tuple[Type, ...]] = [(_tensor("f32", *shape),) for shape in shapes]
    return singles + [(_tensor(dtype, 3, 5),) for dtype in dtypes]


def _plain(operands: Sequence[Sequence[Type]], **attrs: Attr) -> Examples:
    return [(types, attrs) for types in operands]


def add() -> Examples:
    """All arithmetic on pairs has these."""
    return _plain(_pairs((*_NARROW, "f64", "i32", "u8")))


subtract = multiply = maximum = minimum = add


def divide() -> Examples:
    """Floating point alone."""
    return _plain(_pairs((*_NARROW, "f64")))


power = divide


def negate() -> Examples:
    """One operand of numbers."""
    return _plain(_singles((*_NARROW, "f64", "i32")))


abs = negate


def exp() -> Examples:
    """One operand of floating point numbers."""
    return _plain(_singles((*_NARROW, "f64")))


log = sqrt = rsqrt = tanh = sigmoid = cos = sin = erf = floor = round = exp


def compare() -> Examples:
    """Every direction, and numbers that are equal now and then."""
    directions = ("eq", "ne", "lt", "le", "gt", "ge")
    types = (*_pairs(("bf16",))[:3], (_tensor("i32", 4, 9), _tensor("i32", 9)))
    return [(pair, {"direction": direction}) for direction in directions for pair in types]


def select() -> Examples:
    """The three operands stretch against each other."""
    return _plain(
        [
            (_tensor("bool", 3, 5), _tensor("f32", 3, 5), _tensor("f32")),
            (_tensor("bool", 3, 1), _tensor("bf16", 3, 5), _tensor("bf16", 5)),
            (_tensor("bool", 5), _tensor("i32", 1, 5), _tensor("i32", 5)),
        ]
    )


def logical_and() -> Examples:
    """Two operands."""
    return _plain([(_tensor("bool", 3, 5), _tensor("bool", 5)), (_tensor("bool", 0), _tensor("bool", 1))])


logical_or = logical_and


def logical_not() -> Examples:
    """One operand."""
    return _plain([(_tensor("bool", 3, 5),), (_tensor("bool"),)])


def cast() -> Examples:
    """Between floating point types, to and from integers, to bool."""
    pairs = (
        ("f32", "f16"),
        ("f32", "bf16"),
        ("bf16", "f32"),
        ("f16", "f64"),
        ("f32", "i32"),
        ("f32", "u8"),
        ("i32", "f32"),
        ("i32", "i8"),
        ("bool", "i32"),
        ("f32", "bool"),
    )
    return [((_tensor(source, 3, 5),), {"dtype": target}) for source, target in pairs]


def constant() -> Examples:
    """One value and one for each element."""
    return [
        ((), {"dtype": "f32", "shape": (), "values": (0.5,)}),
        ((), {"dtype": "bf16", "shape": ("3", "5"), "values": (-1.25,)}),
        ((), {"dtype": "i32", "shape": ("2", "2"), "values": (1.0, 2.0, 3.0, 4.0)}),
        ((), {"dtype": "bool", "shape": ("1",), "values": (1.0,)}),
    ]


def constant_bits() -> Examples:
    """Infinities, NaN, bf16, one for each element."""
    return [
        ((), {"dtype": "f32", "shape": (), "values": (0xFF800000,)}),
        ((), {"dtype": "bf16", "shape": ("3", "5"), "values": (0x7F80,)}),
        ((), {"dtype": "f16", "shape": ("2", "2"), "values": (0x7C00, 0xFC00, 0x3C00, 0x0001)}),
        ((), {"dtype": "i64", "shape": ("2",), "values": (1 << 63, 1)}),
        ((), {"dtype": "bool", "shape": ("2",), "values": (1, 0)}),
    ]


def divide_whole() -> Examples:
    """Integers of every kind; random ones hold zeros."""
    return _plain([(_tensor(dtype, 4, 9), _tensor(dtype, 4, 9)) for dtype in ("i32", "u8", "i64", "i8")])


def iota() -> Examples:
    """Along each axis."""
    return [
        ((), {"shape": ("5",), "axis": 0, "dtype": "i32"}),
        ((), {"shape": ("3", "4"), "axis": 1, "dtype": "f32"}),
        ((), {"shape": ("3", "4"), "axis": 0, "dtype": "bf16"}),
        ((), {"shape": ("0", "4"), "axis": 0, "dtype": "i32"}),
    ]


def reshape() -> Examples:
    """Axes split, joined, added, empty."""
    return [
        ((_tensor("f32", 3, 10),), {"shape": ("3", "2", "5")}),
        ((_tensor("bf16", 3, 2, 5),), {"shape": ("30",)}),
        ((_tensor("i32", 1),), {"shape": ()}),
        ((_tensor("f32", 0, 10),), {"shape": ("0", "5", "2")}),
    ]


def transpose() -> Examples:
    """Two and three axes."""
    return [
        ((_tensor("f32", 3, 5),), {"axes": (1, 0)}),
        ((_tensor("bf16", 2, 3, 5),), {"axes": (1, 2, 0)}),
        ((_tensor("i32", 0, 5),), {"axes": (1, 0)}),
    ]


def broadcast() -> Examples:
    """A new axis, a stretched one."""
    return [
        ((_tensor("f32", 5),), {"shape": ("3", "5")}),
        ((_tensor("f16", 3, 1),), {"shape": ("2", "3", "7")}),
        ((_tensor("i32"),), {"shape": ("4",)}),
    ]


def slice() -> Examples:
    """A middle part, all of it, nothing."""
    return [
        ((_tensor("f32", 3, 9),), {"axis": 1, "start": 2, "stop": "7"}),
        ((_tensor("bf16", 3, 9),), {"axis": 0, "start": 0, "stop": "3"}),
        ((_tensor("i32", 3, 9),), {"axis": -1, "start": 4, "stop": "4"}),
    ]


def concat() -> Examples:
    """One part, several, an empty one."""
    return [
        ((_tensor("f32", 3, 5),), {"axis": 0}),
        ((_tensor("f32", 3, 5), _tensor("f32", 3, 1), _tensor("f32", 3, 0)), {"axis": 1}),
        ((_tensor("bf16", 1, 5), _tensor("bf16", 2, 5)), {"axis": 0}),
    ]


def gather() -> Examples:
    """Each axis, indices of several axes."""
    return [
        ((_tensor("f32", 7, 5), _tensor("i32", 4)), {"axis": 0}),
        ((_tensor("bf16", 7, 5), _tensor("i32", 2, 3)), {"axis": 1}),
        ((_tensor("f32", 7, 5), _tensor("i32", 0)), {"axis": 0}),
    ]


def reduce() -> Examples:
    """Every kind, over one axis and several."""
    numbers: list[tuple[Sequence[Type], Mapping[str, Attr]]] = [
        ((_tensor(dtype, 3, 4, 5),), {"kind": kind, "axes": axes, "keepdims": keepdims})
        for kind in ("sum", "max", "min", "mean")
        for dtype, axes, keepdims in (("f32", (1,), False), ("f16", (0, 2), True), ("bf16", (-1,), False))
    ]
    for kind in ("any", "all"):
        numbers.append(((_tensor("bool", 3, 4),), {"kind": kind, "axes": (1,), "keepdims": False}))
    for kind in ("sum", "max", "min"):
        numbers.append(((_tensor("i32", 3, 4),), {"kind": kind, "axes": (0,), "keepdims": False}))
        numbers.append(((_tensor("f32", 3, 0),), {"kind": kind, "axes": (1,), "keepdims": True}))
    return numbers


def softmax() -> Examples:
    """With and without a mask, along each axis."""
    return [
        ((_tensor("f32", 3, 9),), {"axis": -1}),
        ((_tensor("f32", 3, 9),), {"axis": 0}),
        ((_tensor("bf16", 1, 9), _tensor("bool", 9)), {"axis": 1}),
        ((_tensor("f32", 2, 3, 9), _tensor("bool", 3, 9)), {"axis": -1}),
        ((_tensor("f32", 3, 0),), {"axis": 1}),
    ]


def sort() -> Examples:
    """Both orders; integers have ties."""
    return [
        ((_tensor(dtype, 3, 17),), {"axis": axis, "descending": descending})
        for dtype in ("f32", "bf16", "i32", "u8")
        for axis in (0, 1)
        for descending in (False, True)
    ]


def cumsum() -> Examples:
    """Along each axis."""
    return [
        ((_tensor("f32", 3, 9),), {"axis": -1}),
        ((_tensor("f16", 3, 9),), {"axis": 0}),
        ((_tensor("i32", 0, 9),), {"axis": 0}),
    ]


def argmax() -> Examples:
    """Integers have ties."""
    return [
        ((_tensor("f32", 3, 300),), {"axis": 1}),
        ((_tensor("i32", 4, 300),), {"axis": -1}),
        ((_tensor("bf16", 5, 1),), {"axis": 0}),
    ]


def matmul() -> Examples:
    """Plain, one row, batched with stretched outer axes, empty."""
    return _plain(
        [
            (_tensor("f32", 3, 5), _tensor("f32", 5, 7)),
            (_tensor("f32", 1, 5), _tensor("f32", 5, 7)),
            (_tensor("bf16", 2, 3, 5), _tensor("bf16", 5, 7)),
            (_tensor("f16", 2, 1, 3, 5), _tensor("f16", 4, 5, 7)),
            (_tensor("f32", 0, 5), _tensor("f32", 5, 7)),
            (_tensor("f32", 3, 0), _tensor("f32", 0, 7)),
        ]
    )


def random_bits() -> Examples:
    """A count that is no multiple of a block."""
    types = [(_tensor("u64", rows), _tensor("i32", rows), _tensor("i32", rows)) for rows in (1, 3)]
    return [(operands, {"count": count}) for operands in types for count in (0, 4, 7)]

"""Hypothesis strategies for types, attributes, graphs and modules, for property tests of passes, printers and plans.

What they draw keeps every rule of the verifier but ``unknown-op``: ops have made-up names, so that no inference rule
has a say. It reaches calls, several KV groups, sums of sizes, nested tuples, quantised types, derived weights and
strings that are hard to write. Needs the extra ``testing``; Hypothesis is imported on first use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from cacheir.ir.dims import Dim
from cacheir.ir.dtypes import DTYPES
from cacheir.ir.graph import LAYER, Attr, Graph, Module, Op, Value, Weight
from cacheir.ir.recipe_types import recipe_type
from cacheir.ir.types import KVType, QuantType, TensorType, Type
from cacheir.ir.weights import Derived, Recipe, Stored

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

_T = TypeVar("_T")
Draw = Callable[["SearchStrategy[Any]"], Any]

# Sizes that all graphs of a module declare, with their bounds.
DIMS: tuple[tuple[str, int, int], ...] = (("T", 1, 512), ("B", 0, 8), ("M", 1, 128), ("R", 1, 8), ("_s9", 2, 3))
FORMATS = ("q4_1", "q8_0", "q6_k", "int4-g32", "fp8-e4m3", "input", "yield")
GROUPS = (KVType(2, 3, 64, "f32"), KVType(28, 3, 64, "f32", 512), KVType(1, 1, 8, "bf16"), KVType(5, 2, 32, "fp8-e4m3"))


@cache  # building a strategy costs more than drawing from it
def sizes() -> SearchStrategy[Dim]:
    """Sizes over the names of ``DIMS``: constants, names, sums, differences that stay at or above 0."""
    from hypothesis import strategies as st

    terms = st.lists(st.tuples(st.sampled_from(DIMS), st.integers(1, 3)), max_size=3)
    return st.builds(_size, st.integers(0, 4096), terms, st.booleans())


@cache
def tensor_types() -> SearchStrategy[TensorType]:
    """Dense types of 0 to 4 axes."""
    from hypothesis import strategies as st

    return st.builds(TensorType, st.sampled_from(DTYPES), st.lists(sizes(), max_size=4).map(tuple))


@cache
def weight_types() -> SearchStrategy[TensorType | QuantType]:
    """Dense and quantised types whose sizes are numbers."""
    from hypothesis import strategies as st

    shape = st.lists(st.integers(1, 4096).map(Dim), min_size=1, max_size=3).map(tuple)
    dtype = st.sampled_from(("f32", "f16", "bf16"))
    return st.one_of(st.builds(TensorType, dtype, shape), st.builds(QuantType, st.sampled_from(FORMATS), dtype, shape))


@cache
def texts() -> SearchStrategy[str]:
    """Strings, with quotes, backslashes, control characters, line separators and graph text among them."""
    from hypothesis import strategies as st

    hard = [
        '"',
        "\\",
        '\\"',
        "\n",
        "\r\n",
        "\x00\x1b[2J",
        "\u2028\u0085",
        "$layer",
        "// no",
        "}\n  yield",
        "\U0001f600",
    ]
    return st.one_of(st.text(max_size=12), st.lists(st.sampled_from(hard), max_size=4).map("".join))


@cache
def attr_values() -> SearchStrategy[Attr]:
    """Attribute values, tuples inside tuples among them; ``$layer``, which only ``layer`` may be, is not."""
    from hypothesis import strategies as st

    leaves: SearchStrategy[Attr] = st.one_of(
        st.booleans(),
        st.integers(),
        st.integers(-(10**60), 10**60),
        st.floats(allow_nan=False, allow_infinity=False),
        st.sampled_from((0.0, -0.0, 1e16, 1e-5, 5e-324)),
        texts(),
    )
    return st.recursive(leaves, lambda inner: st.lists(inner, max_size=4).map(tuple), max_leaves=8)


@cache
def names() -> SearchStrategy[str]:
    """Names of values: words and numbers joined by '.' and '-'."""
    from hypothesis import strategies as st

    words = ("h", "kv.1", "attn.q", "yield", "x-y", "in", "Z_9", "graph", "a.b-c.d", "_", "dim", "h.1")
    return st.sampled_from((*words, "0", "1e5", "00.0", "9-a", "1", "-".join("abcdefgh" * 8)))


@cache
def graphs() -> SearchStrategy[Graph]:
    """One graph that calls no other."""
    return _composite(lambda draw: _graph(draw, "layer", (), is_called=True))


@cache
def modules() -> SearchStrategy[Module]:
    """A main graph, up to two layer graphs that it may call, and up to one head."""
    return _composite(_module)


def _composite(draw_from: Callable[[Draw], _T]) -> SearchStrategy[_T]:
    from hypothesis import strategies as st

    return st.composite(draw_from)()


def _size(constant: int, terms: Sequence[tuple[tuple[str, int, int], int]], less: bool) -> Dim:
    total = Dim(-sum(low * factor for (_, low, _), factor in terms) if less else constant)
    for (name, _, _), factor in terms:
        total = total + Dim(0, ((name, factor),))
    return total


def _module(draw: Draw) -> Module:
    from hypothesis import strategies as st

    layers: list[Graph] = []
    for name in draw(st.sampled_from(((), ("decoder_layer",), ("decoder_layer", "local-layer.2")))):
        # The second layer graph may call the first: calls nest, as long as they do not come back.
        layers.append(_graph(draw, name, tuple(layers), is_called=True))
    main = _graph(draw, "main", tuple(layers), is_called=False)
    heads = [_graph(draw, "head.greedy", (), is_called=False)] if draw(st.booleans()) else []
    mode = draw(st.one_of(st.sampled_from(("logical", "prefill", "decode")), texts()))
    return Module(mode, (main, *layers, *heads))


@dataclass
class _Draft:
    """A graph in the making: ``latest`` are the last versions of its states."""

    draw: Draw
    is_called: bool
    params: list[Value] = field(default_factory=list)
    weights: list[Weight] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    tensors: list[Value] = field(default_factory=list)
    latest: list[Value] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)

    def name(self) -> str:
        hint: str = self.draw(names())
        name, number = hint, 0
        while name in self.taken:
            number += 1
            name = f"{hint}.{number}"
        self.taken.add(name)
        return name

    def param(self, type_: Type, origin: str, name: str = "") -> Value:
        value = Value(name or self.name(), type_, origin)
        self.params.append(value)
        (self.latest if origin == "state" else self.tensors).append(value)
        return value

    def add(self, name: str, operands: Sequence[Value], types: Sequence[Type], attrs: dict[str, Attr]) -> list[Value]:
        from hypothesis import strategies as st

        results = [Value(self.name(), type_) for type_ in types]
        scope = self.draw(st.sampled_from(("", "attn", "layers.3.attn", "yield", "a b", '"\\', "\n")))
        self.ops.append(Op(name, tuple(operands), tuple(results), tuple(sorted(attrs.items())), scope))
        self.tensors += [value for value in results if not isinstance(value.type, KVType)]
        return results


def _graph(draw: Draw, name: str, callees: tuple[Graph, ...], *, is_called: bool) -> Graph:
    from hypothesis import strategies as st

    draft = _Draft(draw, is_called)
    for size, _, _ in DIMS:  # so that every size follows from the operands of a call
        draft.param(TensorType.of("i32", size), "input", name=f"of.{size}")
    groups = GROUPS if callees else draw(st.lists(st.sampled_from(GROUPS), max_size=2, unique=True))
    for group in groups:
        draft.param(group, "state")
    for type_ in draw(st.lists(tensor_types(), max_size=2)):
        draft.param(type_, "input")
    for _ in range(draw(st.integers(0, 4))):
        _add_weight(draft)
    kinds = ["plain", *(["append"] if draft.latest else []), *(["call", "call"] if callees else [])]
    for kind in draw(st.lists(st.sampled_from(kinds), max_size=5)):
        if kind == "plain":
            _add_plain(draft)
        elif kind == "append":
            _add_append(draft)
        else:
            _add_call(draft, callees)
    outputs = draw(st.lists(st.sampled_from(draft.tensors), min_size=1, max_size=3))
    originals = [value for value in draft.params if value.origin == "state"]
    # States that nothing changed may be left out, but only all of them at once.
    if draft.latest != originals or draw(st.booleans()):
        outputs += draft.latest
    return Graph(name, DIMS, tuple(draft.params), tuple(draft.weights), tuple(draft.ops), tuple(outputs))


def _add_weight(draft: _Draft) -> None:
    from hypothesis import strategies as st

    declared: Type = draft.draw(weight_types())
    made: Recipe = Stored(draft.draw(st.sampled_from(_keys(draft.is_called))))
    if draft.weights and draft.draw(st.booleans()):
        source = draft.draw(st.sampled_from(draft.weights))
        made, declared = _derived(draft.draw, source, declared)
    value = Value(draft.name(), declared, "weight")
    draft.weights.append(Weight(value, made))
    draft.tensors.append(value)


def _keys(is_called: bool) -> tuple[str, ...]:
    return ("norm", "layers.3.attn.q", 'a"b\\c\n.\u20ac', *(("layers.$layer.attn.q", "$layer") if is_called else ()))


def _derived(draw: Draw, source: Weight, declared: Type) -> tuple[Recipe, Type]:
    """A recipe over ``source``, and the type that it makes."""
    from hypothesis import strategies as st

    source_type, dense = source.value.type, isinstance(source.value.type, TensorType)
    rank = 0 if isinstance(source_type, KVType) else len(source_type.shape)
    choices: list[tuple[str, str, Any, int]] = [("pack", "layout", "rows16", 1), ("pack", "layout", "k-major.8", 3)]
    if dense or rank > 1:
        choices.append(("concat", "axis", 0, 2))
    if dense:
        axes = tuple(draw(st.permutations(range(rank))))
        choices += [("transpose", "axes", axes, 1), ("cast", "dtype", "f16", 1), ("quantize", "format", "q8_0", 1)]
        choices += [("offset", "by", 1.0, 1)] if source_type.dtype in ("f32", "f16", "bf16") else []
    op, attr, value, count = draw(st.sampled_from(choices))
    recipe = Derived(op, (source.name,) * count, ((attr, value),))
    return recipe, recipe_type(recipe, [source_type] * count, declared)


def _add_plain(draft: _Draft) -> None:
    from hypothesis import strategies as st

    operands = draft.draw(st.lists(st.sampled_from([*draft.tensors, *draft.latest]), max_size=4))
    types = draft.draw(st.lists(tensor_types(), min_size=1, max_size=3))
    attr_names = st.sampled_from(("eps", "axis", "shape", "_x", "in", "true"))
    attrs = draft.draw(st.dictionaries(attr_names, attr_values(), max_size=3))
    if draft.is_called and draft.draw(st.booleans()):
        attrs["layer"] = LAYER
    draft.add(draft.draw(st.sampled_from(("made_up", "weight", "x.y-z"))), operands, types, attrs)


def _add_append(draft: _Draft) -> None:
    from hypothesis import strategies as st

    index = draft.draw(st.integers(0, len(draft.latest) - 1))
    operands = [draft.latest[index], *draft.draw(st.lists(st.sampled_from(draft.tensors), max_size=2))]
    draft.latest[index] = draft.add("made_up_append", operands, [draft.latest[index].type], {"layer": 3})[0]


def _add_call(draft: _Draft, callees: tuple[Graph, ...]) -> None:
    from hypothesis import strategies as st

    callee = draft.draw(st.sampled_from(callees))
    operands = [_operand(draft, param) for param in callee.params]
    layer: Attr = LAYER if draft.is_called and draft.draw(st.booleans()) else draft.draw(st.integers(0, 99))
    types = [value.type for value in callee.outputs]
    results = draft.add("call", operands, types, {"callee": callee.name, "layer": layer})
    for value in results:
        if isinstance(value.type, KVType):
            # No graph has two states of one type, so the type tells which state this is the next version of.
            index = next(i for i, old in enumerate(draft.latest) if old.type == value.type)
            draft.latest[index] = value


def _operand(draft: _Draft, param: Value) -> Value:
    """A value of the parameter's type; where the caller has none, it gets one more input."""
    known = [value for value in [*draft.latest, *draft.tensors] if value.type == param.type]
    return known[-1] if known else draft.param(param.type, "input")

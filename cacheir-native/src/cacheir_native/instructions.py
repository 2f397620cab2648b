"""An op of the graph as an instruction of the runner; a kernel's ``entry`` names its function here.

Operand names and what they mean: cpp/include/cacheir_native/program.h.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import gcd, prod

from cacheir.ir.types import TensorType
from cacheir.schedule.flatten import Launch, Place

_MOST_SINKS = 1 << 30  # more than any sequence has positions, and the runner's int has room for a page's keys besides


@dataclass(frozen=True)
class WeightUse:
    """Weights that the runner takes as one: a ``stack`` or ``pair`` of matrices, a ``vector`` of several in a row,
    or the ``frequencies`` that ``values`` are.
    """

    kind: str
    recipes: tuple[str, ...] = ()
    values: tuple[float, ...] = ()


@dataclass(frozen=True)
class Form:
    """One instruction, its places still the op's: operand name -> number of the op's operand or result.

    Where ``alias`` is set there is no instruction: the result is the operand under another shape.
    """

    opcode: str
    reads: Mapping[str, int] = field(default_factory=dict)
    writes: Mapping[str, int] = field(default_factory=dict)
    weights: Mapping[str, WeightUse] = field(default_factory=dict)
    numbers: Mapping[str, int | float] = field(default_factory=dict)
    alias: bool = False


def embedding(launch: Launch) -> Form:
    """A row of the table for each token of the step."""
    return Form("embedding", writes={"out": 0}, weights={"table": _weights(launch, "stack", 1)})


def rope_table(launch: Launch) -> Form:
    """Frequencies are worked out here, each step rounded to f32 as the op defines."""
    from cacheir.reference.rotary import rope_frequencies

    attrs = launch.attrs
    dims, magnitude = _whole(attrs["dims"]), _real(attrs.get("magnitude", 1.0))
    factors = attrs.get("factors", ())
    assert isinstance(factors, tuple)
    theta = _real(attrs.get("theta", 10000.0))
    frequencies = rope_frequencies(theta, dims, [_real(factor) for factor in factors])
    return Form(
        "rope_table",
        writes={"cos": 0, "sin": 1},
        weights={"inverse_frequencies": WeightUse("frequencies", values=tuple(map(float, frequencies)))},
        numbers={"dims": dims, "magnitude": magnitude},
    )


def rms_norm(launch: Launch) -> Form:
    """The norm of each row, or of each head of a row."""
    *outer, width = _shape(launch.reads[0])[1:]
    numbers = {"width": width, "heads": prod(outer)} | _eps(launch)
    return Form("rms_norm", {"x": 0}, {"out": 0}, {"norm": _weights(launch, "vector", 1)}, numbers)


def add_rms_norm(launch: Launch) -> Form:
    """The sum, and its norm."""
    weights = {"norm": _weights(launch, "vector", 2)}
    return Form("add_rms_norm", {"x": 0, "residual": 1}, {"sum": 0, "out": 1}, weights, _norm(launch, 0))


def linear(launch: Launch) -> Form:
    """A product with a weight, and its bias."""
    weights = {"weight": _weights(launch, "stack", 1)} | _bias(launch, 2)
    return Form("linear", {"x": 0}, {"out": 0}, weights)


def head_argmax(launch: Launch) -> Form:
    """The token with the largest logit, which the runner keeps."""
    weights = {"weight": _weights(launch, "stack", 1)} | _bias(launch, 2)
    return Form("head_argmax", {"x": 0}, {}, weights)


def sample(launch: Launch) -> Form:
    """A token by the parameters of its row, which the runner has."""
    return Form("sample", {"x": 0}, {}, {}, {"width": _width(launch.reads[0])})


def fused_qkv(launch: Launch) -> Form:
    """Three products; heads are as wide as they can be, since nothing turns them."""
    widths = [_width(place) for place in launch.writes]
    head_dim = gcd(*widths)
    return Form(
        "qkv",
        {"x": 0},
        {"q": 0, "k": 1, "v": 2},
        {"weight": _weights(launch, "stack", 1, 2, 3)} | _bias(launch, 4),
        {"heads": widths[0] // head_dim, "kv_heads": widths[1] // head_dim, "head_dim": head_dim},
    )


def fused_rmsnorm_qkv_rope(launch: Launch) -> Form:
    """A norm, three products, q and k turned."""
    heads, head_dim = _shape(launch.writes[0])[1:]
    kv_heads = _shape(launch.writes[1])[1]
    return Form(
        "qkv",
        {"x": 0, "cos": 5, "sin": 6},
        {"q": 0, "k": 1, "v": 2},
        {"norm": _weights(launch, "vector", 1), "weight": _weights(launch, "stack", 2, 3, 4)} | _bias(launch, 7),
        {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim} | _rotation(launch, 5) | _eps(launch),
    )


def rope(launch: Launch) -> Form:
    """Heads turned by their positions."""
    heads, head_dim = _shape(launch.reads[0])[1:]
    numbers = {"heads": heads, "head_dim": head_dim} | _rotation(launch, 1)
    return Form("rope", {"x": 0, "cos": 1, "sin": 2}, {"out": 0}, {}, numbers)


def rms_norm_pair(launch: Launch) -> tuple[Form, ...]:
    """A norm each; the runner's instructions cost next to nothing, so that there is none for two."""
    return tuple(_pair_norm(launch, number) for number in (0, 1))


def rope_pair(launch: Launch) -> tuple[Form, ...]:
    """A rotation each."""
    forms = []
    for number in (0, 1):
        heads, head_dim = _shape(launch.reads[number])[1:]
        numbers = {"heads": heads, "head_dim": head_dim} | _rotation(launch, 2)
        forms.append(Form("rope", {"x": number, "cos": 2, "sin": 3}, {"out": number}, {}, numbers))
    return tuple(forms)


def kv_append(launch: Launch) -> Form:
    """Keys and values into the pool; ``layer`` is the model's number here."""
    heads, head_dim = _shape(launch.reads[1])[1:]
    numbers: dict[str, int | float] = {"kv_heads": heads, "head_dim": head_dim}
    return Form("kv_append", {"k": 1, "v": 2}, {}, {}, numbers | _pool(launch, 0))


def paged_attention_prefill(launch: Launch) -> Form:
    """Attention over the pages of each row; the runner takes the decode route for rows of one token."""
    numbers: dict[str, int | float] = {
        "heads": _shape(launch.reads[0])[1],
        "scale": _real(launch.attrs["scale"]),
        "window": _whole(launch.attrs.get("window", 0)),
        "sinks": min(_whole(launch.attrs.get("sinks", 0)), _MOST_SINKS),
        "softcap": _real(launch.attrs.get("softcap") or 0.0),
    }
    return Form("attention", {"q": 0}, {"out": 0}, {}, numbers | _pool(launch, 1))


paged_attention_decode = paged_attention_prefill


def fused_swiglu(launch: Launch) -> Form:
    """Gate and up, read together."""
    weights = {"weight": _weights(launch, "pair", 1, 2)} | _bias(launch, 3)
    return Form("swiglu", {"x": 0}, {"out": 0}, weights)


def fused_rmsnorm_swiglu(launch: Launch) -> Form:
    """A norm, then gate and up."""
    weights = {"norm": _weights(launch, "vector", 1), "weight": _weights(launch, "pair", 2, 3)} | _bias(launch, 4)
    return Form("swiglu", {"x": 0}, {"out": 0}, weights, _eps(launch))


def swiglu(launch: Launch) -> Form:
    """silu(gate) * up."""
    return Form("silu_multiply", {"x": 0, "residual": 1}, {"out": 0}, {}, {"width": _width(launch.reads[0])})


def silu(launch: Launch) -> Form:
    """x * sigmoid(x)."""
    return Form("silu", {"x": 0}, {"out": 0}, {}, {"width": _width(launch.reads[0])})


def add(launch: Launch) -> Form:
    """The sum."""
    return Form("add", {"x": 0, "residual": 1}, {"out": 0}, {}, {"width": _width(launch.reads[0])})


def multiply(launch: Launch) -> Form:
    """The product."""
    return Form("multiply", {"x": 0, "residual": 1}, {"out": 0}, {}, {"width": _width(launch.reads[0])})


def gather_rows(launch: Launch) -> Form:
    """The rows that need a head."""
    return Form("gather_rows", {"x": 0}, {"out": 0}, {}, {"width": _width(launch.reads[0])})


def reshape(launch: Launch) -> Form:
    """Nothing to do."""
    return Form("", {"x": 0}, {"out": 0}, alias=True)


def _weights(launch: Launch, kind: str, *operands: int) -> WeightUse:
    return WeightUse(kind, tuple(launch.reads[index].name for index in operands))


def _bias(launch: Launch, first: int) -> dict[str, WeightUse]:
    operands = range(first, len(launch.reads))
    return {"bias": _weights(launch, "vector", *operands)} if operands else {}


def _pool(launch: Launch, state: int) -> dict[str, int | float]:
    return {"group": int(launch.reads[state].name), "layer": _whole(launch.attrs["layer"])}


def _rotation(launch: Launch, cos: int) -> dict[str, int | float]:
    interleaved = launch.attrs.get("layout", "half") == "interleaved"
    return {"dims": 2 * _width(launch.reads[cos]), "interleaved": int(interleaved)}


def _pair_norm(launch: Launch, number: int) -> Form:
    *outer, width = _shape(launch.reads[number])[1:]
    numbers = {"width": width, "heads": prod(outer)} | _eps(launch)
    return Form("rms_norm", {"x": number}, {"out": number}, {"norm": _weights(launch, "vector", 2 + number)}, numbers)


def _norm(launch: Launch, x: int) -> dict[str, int | float]:
    return {"width": _width(launch.reads[x])} | _eps(launch)


def _eps(launch: Launch) -> dict[str, int | float]:
    return {"eps": _real(launch.attrs.get("eps", 1e-5))}


def _shape(place: Place) -> tuple[int, ...]:
    """The sizes of a value, 0 for its rows."""
    assert isinstance(place.type, TensorType)
    return (0, *(size.evaluate({}) for size in place.type.shape[1:]))


def _width(place: Place) -> int:
    """Elements of a row."""
    width = 1
    for size in _shape(place)[1:]:
        width *= size
    return width


def _whole(value: object) -> int:
    assert isinstance(value, int)
    return value


def _real(value: object) -> float:
    assert isinstance(value, (int, float))
    return float(value)

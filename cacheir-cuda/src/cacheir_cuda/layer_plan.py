"""Finds decoder layers of the usual form in main's launches: what the kernels of whole blocks need to know of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cacheir.schedule.flatten import Launch, Place

_SPLIT = (
    "rms_norm", "fused_qkv", "reshape", "reshape", "reshape", "rms_norm", "rms_norm", "rope", "rope", "kv_append",
    "attention", "reshape", "linear", "add_rms_norm", "fused_swiglu", "linear", "add",
)  # fmt: skip
_JOINED = (
    "fused_rmsnorm_qkv_rope", "kv_append", "attention", "reshape", "linear", "add_rms_norm", "fused_swiglu", "linear",
    "add",
)  # fmt: skip


@dataclass(frozen=True)
class LayerPlan:
    """One layer: recipes of its weights, and what its launches say besides. ``launches`` are those it stands for."""

    launches: Sequence[Launch]
    number: int
    norm: str
    eps: float
    qkv: tuple[str, ...]
    qkv_bias: tuple[str, ...]
    head_norms: tuple[str, ...]  # of q and k, or ()
    head_eps: float
    layout: str
    attention: Launch
    append: Launch
    scale: float
    window: int
    sinks: int
    softcap: float
    out: str
    out_bias: str
    ffn_norm: str
    ffn_eps: float
    gate_up: tuple[str, ...]
    gate_up_bias: tuple[str, ...]
    down: str
    down_bias: str


@dataclass(frozen=True)
class Turn:
    """What the rotation tables are made of, as ``rope_table`` says."""

    theta: float
    dims: int
    factors: tuple[float, ...]
    magnitude: float


@dataclass(frozen=True)
class MainPlan:
    """Main as ``before`` (embedding and rotation tables), layers, and the norm of the head's rows at the end."""

    before: Sequence[Launch]
    layers: Sequence[LayerPlan]
    hidden: Place
    cos: Place
    sin: Place
    turn: Turn
    after: Sequence[Launch]
    norm: str
    eps: float


class NotOfTheForm(ValueError):
    """Why main is not of the usual form, in words."""


def plan_main(launches: Sequence[Launch]) -> MainPlan:
    """The plan of main's ``launches``. Raises NotOfTheForm."""
    numbers = sorted({launch.layer for launch in launches if launch.layer is not None})
    first = next((index for index, launch in enumerate(launches) if launch.layer is not None), 0)
    last = max((index for index, launch in enumerate(launches) if launch.layer is not None), default=-1)
    before, after = launches[:first], launches[last + 1 :]
    _need([launch.op.name for launch in before] == ["embedding", "rope_table"], "main does not begin as usual")
    _need([launch.op.name for launch in after] == ["gather_rows", "rms_norm"], "main does not end as usual")
    hidden = before[0].writes[0]
    cos, sin = before[1].writes
    layers = []
    for number in numbers:
        body = [launch for launch in launches[first : last + 1] if launch.layer == number]
        layer, hidden = _layer(body, hidden, cos, sin)
        layers.append(layer)
    _need(_same(after[0].reads[0], hidden), "the head's rows are not those of the last layer")
    _need(_same(after[1].reads[0], after[0].writes[0]), "the last norm is not of the head's rows")
    eps = _number(after[1], "eps")
    attrs: Any = before[1].attrs
    turn = Turn(float(attrs["theta"]), int(attrs["dims"]), tuple(attrs["factors"]), float(attrs["magnitude"]))
    return MainPlan(before, layers, before[0].writes[0], cos, sin, turn, after, after[1].reads[1].name, eps)


def _layer(body: Sequence[Launch], hidden: Place, cos: Place, sin: Place) -> tuple[LayerPlan, Place]:
    names = tuple("attention" if op.startswith("paged_attention") else op for op in (one.op.name for one in body))
    _need(names in (_SPLIT, _JOINED), f"layer {body[0].layer} has other ops: {', '.join(names)}")
    head_norms: tuple[str, ...] = ()
    head_eps = 0.0
    if names == _SPLIT:
        norm, joined, *_ = body
        q, k, v = (body[2 + index] for index in range(3))
        q_norm, k_norm, q_turn, k_turn = body[5:9]
        _chain((norm.reads[0], hidden), (joined.reads[0], norm.writes[0]))
        _chain(*((one.reads[0], made) for one, made in zip((q, k, v), joined.writes)))
        _chain((q_norm.reads[0], q.writes[0]), (k_norm.reads[0], k.writes[0]))
        _chain((q_turn.reads[0], q_norm.writes[0]), (k_turn.reads[0], k_norm.writes[0]))
        _chain(*((one.reads[place], table) for one in (q_turn, k_turn) for place, table in ((1, cos), (2, sin))))
        _need(q_turn.attrs == k_turn.attrs and q_norm.attrs == k_norm.attrs, "q and k are not turned alike")
        turned = (q_turn.writes[0], k_turn.writes[0], v.writes[0])
        weight, eps, layout = norm.reads[1].name, _number(norm, "eps"), str(q_turn.attrs["layout"])
        matrices, biases = joined.reads[1:4], joined.reads[4:]
        head_norms, head_eps = (q_norm.reads[1].name, k_norm.reads[1].name), _number(q_norm, "eps")
        rest = body[9:]
    else:
        joined = body[0]
        _chain((joined.reads[0], hidden), (joined.reads[5], cos), (joined.reads[6], sin))
        turned = (joined.writes[0], joined.writes[1], joined.writes[2])
        weight, eps, layout = joined.reads[1].name, _number(joined, "eps"), str(joined.attrs["layout"])
        matrices, biases = joined.reads[2:5], joined.reads[7:]
        rest = body[1:]
    append, attention, flat, out, middle, product, down, end = rest
    _chain((append.reads[1], turned[1]), (append.reads[2], turned[2]), (attention.reads[0], turned[0]))
    _chain((flat.reads[0], attention.writes[0]), (out.reads[0], flat.writes[0]))
    _need(
        {_key(middle.reads[0]), _key(middle.reads[1])} == {_key(hidden), _key(out.writes[0])},
        f"layer {body[0].layer} does not add attention to what it was given",
    )
    _chain((product.reads[0], middle.writes[1]), (down.reads[0], product.writes[0]))
    _need(
        {_key(end.reads[0]), _key(end.reads[1])} == {_key(middle.writes[0]), _key(down.writes[0])},
        f"layer {body[0].layer} does not end in the sum of both halves",
    )
    number = body[0].layer
    assert number is not None
    plan = LayerPlan(
        launches=body,
        number=number,
        norm=weight,
        eps=eps,
        qkv=_recipes(matrices),
        qkv_bias=_recipes(biases),
        head_norms=head_norms,
        head_eps=head_eps,
        layout=layout,
        attention=attention,
        append=append,
        scale=_number(attention, "scale"),
        window=int(_number(attention, "window")),
        sinks=int(_number(attention, "sinks")) if "sinks" in attention.attrs else 0,
        softcap=_number(attention, "softcap") if "softcap" in attention.attrs else 0.0,
        out=out.reads[1].name,
        out_bias=_recipe(out),
        ffn_norm=middle.reads[2].name,
        ffn_eps=_number(middle, "eps"),
        gate_up=_recipes(product.reads[1:3]),
        gate_up_bias=_recipes(product.reads[3:]),
        down=down.reads[1].name,
        down_bias=_recipe(down),
    )
    return plan, end.writes[0]


def _chain(*pairs: tuple[Place, Place]) -> None:
    for read, written in pairs:
        _need(_same(read, written), f"{read.name or read.kind} is not what was made just before")


def _recipes(places: Sequence[Place]) -> tuple[str, ...]:
    _need(all(place.kind == "weight" for place in places), "a matrix is no weight")
    return tuple(place.name for place in places)


def _recipe(linear: Launch) -> str:
    _need(linear.reads[1].kind == "weight", "a matrix is no weight")
    return linear.reads[2].name if len(linear.reads) > 2 else ""


def _number(launch: Launch, name: str) -> float:
    return float(launch.attrs[name])  # type: ignore[arg-type]


def _same(read: Place, written: Place) -> bool:
    return _key(read) == _key(written)


def _key(place: Place) -> tuple[Any, ...]:
    return (place.kind, place.offset) if place.kind == "arena" else (place.kind, place.name)


def _need(condition: bool, why: str) -> None:
    if not condition:
        raise NotOfTheForm(why)

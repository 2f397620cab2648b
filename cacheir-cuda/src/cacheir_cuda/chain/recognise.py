"""Whether a decode step is the chain that the CUDA C++ kernels compute, and which weights are its."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cacheir.errors import CacheIRError
from cacheir.ir.types import KVType, TensorType
from cacheir.schedule.flatten import Launch
from cacheir.schedule.program import Program
from cacheir_cuda.chain import tiles
from cacheir_cuda.chain.dataflow import Node, results
from cacheir_cuda.chain.tiles import Tile

LEAST_LAYERS = 4  # a step of fewer kernels could meet its own last step's: pages are read before the wait


class NoChain(CacheIRError):
    """The step is another; the message says where it differs."""


@dataclass(frozen=True, kw_only=True)
class ChainLayer:
    """The recipes of one layer's weights; biases and norms by head are () and "" where it has none."""

    number: int
    norm: str
    qkv: tuple[str, str, str]
    biases: tuple[str, ...]
    q_norm: str
    k_norm: str
    output: str
    feed_forward_norm: str
    gate_up: tuple[str, str]
    down: str


@dataclass(frozen=True, kw_only=True)
class Chain:
    """A decoder in the chain's terms. ``turn`` are the attributes of its rope table."""

    hidden: int
    feed_forward: int
    heads: int
    kv_heads: int
    vocabulary: int
    eps: float
    scale: float
    turn: tuple[tuple[str, object], ...]
    embedding: str
    final_norm: str
    head: str
    layers: tuple[ChainLayer, ...]

    @property
    def normed(self) -> bool:
        """Whether q and k are normed by head."""
        return bool(self.layers[0].q_norm)

    @property
    def attention(self) -> tiles.Heads:
        """What the attention kernel must be made for."""
        return tiles.Heads(self.hidden, self.heads, self.kv_heads, self.normed)

    @property
    def matrices(self) -> dict[str, tuple[str, int, int]]:
        """(kind, rows, columns) of each matrix of a layer, in the words of ``tiles.CHOICES``."""
        hidden, inner, wide = self.hidden, self.feed_forward, self.heads * tiles.HEAD_DIM
        return {
            "qkv": ("qkv", (self.heads + 2 * self.kv_heads) * tiles.HEAD_DIM, hidden),
            "output": ("residual", hidden, wide),
            "gate_up": ("swiglu", 2 * inner, hidden),
            "down": ("residual", hidden, inner),
        }

    @property
    def products(self) -> dict[str, Tile]:
        """The choice for each matrix of a layer. NoChain where a shape has none."""
        return {name: _tile(*shape) for name, shape in self.matrices.items()}

    @property
    def kernels(self) -> tuple[str, ...]:
        """The kernels of one layer, then the head's and the step to the next token."""
        tile, wide = self.products, self.heads * tiles.HEAD_DIM
        return (
            tile["qkv"].kernel(self.hidden),
            tiles.attention_kernel(self.attention),
            tile["output"].kernel(wide),
            tile["gate_up"].kernel(self.hidden),
            tile["down"].kernel(self.feed_forward),
            tiles.HEADS[self.hidden].kernel(self.hidden),
            tiles.ADVANCE,
        )


def recognise(program: Program, main: Sequence[Launch], head: Sequence[Launch]) -> Chain:
    """The chain that ``main`` and the greedy ``head`` of decode are. Raises NoChain where they are none."""
    _require(len(program.groups) == 1, f"it has {len(program.groups)} groups of KV pages, and the kernels know one")
    rows = results(main).get("0")
    _require(rows is not None, "main yields no rows")
    token = results(head, {"rows": rows}).get("0") if rows else None
    pick = _is(token, "head_argmax", 2)
    final = _is(pick.inputs[0], "rms_norm", 2)
    layers: list[ChainLayer] = []
    shapes = _Shapes(final.attrs["eps"])
    row = final.inputs[0]
    while row.op == "add":
        layer, row = _layer(row, shapes)
        layers.append(layer)
    embedding = _is(row, "embedding", 2)
    _require(len(layers) >= LEAST_LAYERS, f"it has {len(layers)} layers, and the kernels want {LEAST_LAYERS} or more")
    numbers = tuple(layer.number for layer in reversed(layers))
    _require(numbers == tuple(range(len(layers))), f"its layers come as {numbers}")
    vocabulary, hidden = _sizes(pick.inputs[1])
    chain = Chain(
        hidden=hidden,
        feed_forward=shapes.feed_forward,
        heads=shapes.heads,
        kv_heads=shapes.kv_heads,
        vocabulary=vocabulary,
        eps=shapes.eps,
        scale=shapes.scale,
        turn=shapes.turn,
        embedding=_weight(embedding.inputs[1]),
        final_norm=_weight(final.inputs[1]),
        head=_weight(pick.inputs[1]),
        layers=tuple(reversed(layers)),
    )
    _check_shapes(chain)
    return chain


@dataclass
class _Shapes:
    """What all layers must have in common; the first one that is looked at says it."""

    eps: float
    feed_forward: int = 0
    heads: int = 0
    kv_heads: int = 0
    scale: float = 0.0
    normed: bool = False
    turn: tuple[tuple[str, object], ...] = ()


def _layer(row: Node, shapes: _Shapes) -> tuple[ChainLayer, Node]:
    """The layer that ends in ``row``, and the row that it begins with."""
    middle, down = _sum(row, "linear")
    _require(len(down.inputs) == 2, "the down projection has a bias")
    gated = _is(down.inputs[0], "swiglu", 2)
    gate, up = (_is(part, "linear", 2) for part in gated.inputs)
    _require(gate.inputs[0] is up.inputs[0], "gate and up read unlike rows")
    ffn_norm = _is(gate.inputs[0], "rms_norm", 2)
    _require(ffn_norm.inputs[0] is middle, "the feed-forward does not read the normed row")
    before, output = _sum(middle, "linear")
    _require(len(output.inputs) == 2, "the output projection has a bias")
    attention = _is(output.inputs[0], "paged_attention_decode")
    q, state = attention.inputs[:2]
    appended = _is(state, "kv_append")
    k, v = appended.inputs[1:3]
    number = attention.attrs["layer"]
    _require(appended.attrs["layer"] == number, "attention reads another layer than was appended")
    _require(not attention.attrs.get("window", 0), "attention has a window")
    _require(not attention.attrs.get("softcap", 0.0), "scores are capped")
    parts = [_projection(part, shapes, turned) for part, turned in ((q, True), (k, True), (v, False))]
    norms = {weights for weights, _ in parts[:2]}
    _require(("" in norms) is (norms == {""}), "only one of q and k is normed by head")
    source = parts[0][1].inputs[0]
    _require(all(product.inputs[0] is source for _, product in parts), "q, k and v read unlike rows")
    norm = _is(source, "rms_norm", 2)
    _require(norm.inputs[0] is before, "attention does not read the normed row")
    biases = tuple(_weight(product.inputs[2]) for _, product in parts if len(product.inputs) > 2)
    _require(len(biases) in (0, 3), "only some of q, k and v have a bias")
    state_type = _kv_type(appended)
    _require(state_type.head_dim == tiles.HEAD_DIM, f"heads are of {state_type.head_dim}, not {tiles.HEAD_DIM}")
    _agree(shapes, "heads", _sizes(parts[0][1].inputs[1])[0] // tiles.HEAD_DIM)
    _agree(shapes, "kv_heads", state_type.heads)
    _agree(shapes, "feed_forward", _sizes(gate.inputs[1])[0])
    _agree(shapes, "scale", float(attention.attrs["scale"]))
    for one in (norm, ffn_norm):
        _require(one.attrs["eps"] == shapes.eps, "norms have unlike eps")
    layer = ChainLayer(
        number=number,
        norm=_weight(norm.inputs[1]),
        qkv=(_weight(parts[0][1].inputs[1]), _weight(parts[1][1].inputs[1]), _weight(parts[2][1].inputs[1])),
        biases=biases,
        q_norm=parts[0][0],
        k_norm=parts[1][0],
        output=_weight(output.inputs[1]),
        feed_forward_norm=_weight(ffn_norm.inputs[1]),
        gate_up=(_weight(gate.inputs[1]), _weight(up.inputs[1])),
        down=_weight(down.inputs[1]),
    )
    return layer, before


def _projection(part: Node, shapes: _Shapes, turned: bool) -> tuple[str, Node]:
    """The weights of the norm by head ("" for none) and the product behind q, k or v."""
    norm = ""
    if turned:
        turn = _is(part, "rope", 3)
        _require(turn.attrs["layout"] == "half", f"q and k are turned in the layout {turn.attrs['layout']!r}")
        table = _is(turn.inputs[1], "rope_table")
        attrs = tuple(sorted(table.attrs.items()))
        dims = table.attrs["dims"]
        _require(dims == tiles.HEAD_DIM, f"{dims} dimensions of a head are turned, not {tiles.HEAD_DIM}")
        _agree(shapes, "turn", attrs)
        part = turn.inputs[0]
        if part.op == "rms_norm":
            _require(part.attrs["eps"] == shapes.eps, "norms have unlike eps")
            norm, part = _weight(part.inputs[1]), part.inputs[0]
    return norm, _is(part, "linear")


def _agree(shapes: _Shapes, name: str, value: object) -> None:
    known = getattr(shapes, name)
    if not known:
        setattr(shapes, name, value)
    _require(not known or known == value, f"layers have unlike {name.replace('_', ' ')}: {known} and {value}")


def _sum(node: Node, op: str) -> tuple[Node, Node]:
    """The row and the product that an ``add`` joins, in whichever order."""
    _is(node, "add", 2)
    first, second = node.inputs
    return (first, _is(second, op)) if second.op == op else (second, _is(first, op))


def _is(node: Node | None, op: str, inputs: int = 0) -> Node:
    found = node.op if node is not None else "nothing"
    if node is None or found != op or (inputs and len(node.inputs) != inputs):
        raise NoChain(f"there is {found} where the chain has {op}")
    return node


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise NoChain(otherwise)


def _weight(node: Node) -> str:
    place = _is(node, "weight").place
    assert place is not None
    _require(isinstance(place.type, TensorType), f"{place.name} is quantised")
    return place.name


def _sizes(node: Node) -> tuple[int, int]:
    place = _is(node, "weight").place
    assert place is not None and isinstance(place.type, TensorType)
    rows, columns = (size.evaluate({}) for size in place.type.shape)
    return rows, columns


def _kv_type(appended: Node) -> KVType:
    state = appended.inputs[0]
    while state.op == "kv_append":
        state = state.inputs[0]
    place = _is(state, "state").place
    assert place is not None and isinstance(place.type, KVType)
    return place.type


def _tile(kind: str, rows: int, columns: int) -> Tile:
    tile = tiles.tile_for(kind, rows, columns)
    if tile is None:
        raise NoChain(f"no {kind} kernel is compiled for a matrix of {rows} x {columns}")
    return tile


def _check_shapes(chain: Chain) -> None:
    """NoChain for a shape without kernels."""
    _ = chain.products  # raises for a matrix without a kernel
    known, hidden = chain.attention in tiles.ATTENTIONS, chain.hidden
    heads = f"{chain.heads} and {chain.kv_heads} heads, {'' if chain.normed else 'not '}normed, of rows of {hidden}"
    _require(known, f"no attention kernel is compiled for {heads}")
    _require(hidden in tiles.HEADS, f"no head kernel is compiled for rows of {hidden}")
    whole = chain.vocabulary % tiles.HEADS[hidden].rows == 0
    _require(whole, f"{chain.vocabulary} tokens are no whole number of tiles")

"""Main as kernels of whole blocks: eight or nine launches a layer, partial sums between them, not one for each op.

A layer is: norm of a sum; QKV; head norms, rotation and the append to the pages; attention; O; norm of a sum; gate and
up with their product; down. Products of few rows are those of ``triton_tiles``; those of many are cuBLAS's, and O's and
down's are added to the residual stream by the product itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from cacheir.ir.types import TensorType
from cacheir.schedule.flatten import Launch, Place
from cacheir_cuda.binding import BoundLaunch, Surroundings, view
from cacheir_cuda.kernels import triton_block, triton_gated, triton_paged, triton_step, triton_turned
from cacheir_cuda.kernels.rotary import frequencies
from cacheir_cuda.kernels.triton_tiles import MOST_ROWS, parts_of, product_gated, product_parts
from cacheir_cuda.large_products import LargeProducts
from cacheir_cuda.layer_plan import LayerPlan, MainPlan
from cacheir_cuda.workspace import Workspace

# From here on what lies between products has 16 bits, as their operands do: it would not fit L2 in float32.
WIDE_ROWS = 512
# From here on gate and up by one kernel are faster than cuBLAS and a kernel for their product.
_GATED_ROWS = 1024


@dataclass(frozen=True, kw_only=True)
class BlockKernels:
    """How the kernels are called: ``pdl`` lets one begin while the one before it ends (Hopper and later)."""

    dtype: torch.dtype
    pdl: bool
    triton_matmul: bool = False  # products of many rows too, instead of cuBLAS's


def block_launches(
    plan: MainPlan, around: Surroundings, kernels: BlockKernels, space: Workspace, products: LargeProducts
) -> list[BoundLaunch]:
    """The launches of main for ``around``, in order; the buffers between them lie in ``space``."""
    return list(_Blocks(plan, around, kernels, space, products).launches())


def block_weights(plan: MainPlan) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(layout, recipes) of the resident weights that the blocks read."""
    for layer in plan.layers:
        yield "rows", layer.qkv
        yield "dense", (layer.out,)
        yield "rows", layer.gate_up
        yield "dense", (layer.down,)
        for recipes in (layer.qkv_bias, layer.gate_up_bias):
            if recipes:
                yield "f32", recipes
        for recipe in (layer.norm, layer.ffn_norm, *layer.head_norms, layer.out_bias, layer.down_bias):
            if recipe:
                yield "f32", (recipe,)
    yield "f32", (plan.norm,)
    yield "dense", (plan.before[0].reads[1].name,)


class _Blocks:
    def __init__(
        self, plan: MainPlan, around: Surroundings, kernels: BlockKernels, space: Workspace, products: LargeProducts
    ) -> None:
        self.plan, self.around, self.kernels, self.space, self.products = plan, around, kernels, space, products
        self.rows = around.rows
        self.pdl = kernels.pdl
        self.many = around.rows > MOST_ROWS
        self.adds = self.many and not kernels.triton_matmul
        self.gates = self.adds and self.rows >= _GATED_ROWS
        self.hidden = self._place(plan.hidden, plan.before[0])
        self.cos, self.sin = (self._place(place, plan.before[1]) for place in (plan.cos, plan.sin))

    def launches(self) -> Iterator[BoundLaunch]:
        yield self._begin()
        self._carve(self.plan.layers[0])
        pending: tuple[torch.Tensor | None, torch.Tensor | None] = (None, None)
        for layer in self.plan.layers:
            yield from self._layer(layer, pending)
            pending = (None if self.adds else self.down, self._vector(layer.down_bias))
        gather, norm = self.plan.after
        call = partial(
            triton_block.sum_norm, self.hidden, *pending, self._vector(self.plan.norm), eps=self.plan.eps,
            out=self.around.outputs[norm.writes[0].name], rows=self.around.inputs[gather.reads[1].name],
            pdl=self.pdl,
        )  # fmt: skip
        yield _named((gather, norm), call)

    def _begin(self) -> BoundLaunch:
        embed, turn = self.plan.before
        given, attrs = self.around.inputs, self.plan.turn
        call = partial(
            triton_step.begin, given[embed.reads[0].name], given[turn.reads[0].name],
            self._matrix("dense", (embed.reads[1].name,)),
            frequencies(attrs.theta, attrs.dims, attrs.factors, self.hidden.device), attrs.magnitude,
            hidden=self.hidden, cos=self.cos, sin=self.sin, pdl=self.pdl,
        )  # fmt: skip
        return _named(self.plan.before, call)

    def _layer(self, layer: LayerPlan, pending: tuple[Any, Any]) -> Iterator[BoundLaunch]:
        at = [one.op.name for one in layer.launches].index("kv_append")
        yield _named(layer.launches[: at + 1], partial(_in_turn, *self._qkv(layer, pending)))
        yield _named((layer.attention,), self._attention(layer))
        rest = layer.launches[at + 2 :]
        yield _named(rest[:3], self._out(layer))
        yield _named(rest[3:], self._feed_forward(layer))

    def _qkv(self, layer: LayerPlan, pending: tuple[Any, Any]) -> tuple[Any, ...]:
        norm = partial(
            triton_block.sum_norm, self.hidden, *pending, self._vector(layer.norm), eps=layer.eps, out=self.normed,
            pdl=self.pdl,
        )  # fmt: skip
        product = self._product(self.normed, self._matrix("rows", layer.qkv), self.qkv)
        q_norm, k_norm = (self._vector(name) for name in layer.head_norms) if layer.head_norms else (None, None)
        pool = self.around.pools[int(layer.append.reads[0].name)]
        many = self.many and triton_turned.takes(self.cos, self.q.shape[2], layer.layout, pool)
        kernel = triton_turned.after_qkv_many if many else partial(triton_block.after_qkv, layout=layer.layout)
        after = partial(
            kernel, self.qkv[0] if many else self.qkv, self._joined(layer.qkv_bias),
            None if q_norm is None or k_norm is None else (q_norm, k_norm), self.cos, self.sin,
            self.around.inputs[layer.append.reads[3].name], pool,
            layer=layer.number, eps=layer.head_eps, q=self.q, own=self._own(layer), pdl=self.pdl,
        )  # fmt: skip
        return norm, product, after

    def _attention(self, layer: LayerPlan) -> Any:
        launch, given = layer.attention, self.around.inputs
        pool = self.around.pools[int(launch.reads[1].name)]
        named: dict[str, Any] = {
            "layer": layer.number,
            "scale": layer.scale,
            "window": layer.window,
            "sinks": layer.sinks,
            "softcap": layer.softcap,
        }
        names = [place.name for place in launch.reads[2:]]
        if launch.op.name == "paged_attention_decode":
            table, positions = given[names[0]], given[names[1]]
            return partial(triton_paged.decode, self.q, pool, table, positions, **named, out=self.mixed, pdl=self.pdl)
        table, starts, positions = given[names[0]], given[names[1]], given[names[2]]
        return partial(
            triton_paged.prefill, self.q, pool, table, starts, positions, **named, own=self._own(layer), out=self.mixed,
            pdl=self.pdl,
        )  # fmt: skip

    def _own(self, layer: LayerPlan) -> torch.Tensor | None:
        """Where the step's keys and values lie besides, in order; None where attention reads pages alone."""
        pool = self.around.pools[int(layer.attention.reads[1].name)]
        if layer.attention.op.name == "paged_attention_decode" or layer.window or pool.storage.dtype != self.q.dtype:
            return None
        return self.own.view(2, pool.kind.heads, self.rows, pool.kind.head_dim)

    def _out(self, layer: LayerPlan) -> Any:
        product = self._summed(self.mixed.flatten(1), self._matrix("dense", (layer.out,)), self.out)
        norm = partial(
            triton_block.sum_norm, self.hidden, None if self.adds else self.out, self._vector(layer.out_bias),
            self._vector(layer.ffn_norm), eps=layer.ffn_eps, out=self.normed, pdl=self.pdl,
        )  # fmt: skip
        return partial(_in_turn, product, norm)

    def _feed_forward(self, layer: LayerPlan) -> Any:
        gate_up, bias = self._matrix("rows", layer.gate_up), self._joined(layer.gate_up_bias)
        down = self._summed(self.active, self._matrix("dense", (layer.down,)), self.down)
        if self.rows <= MOST_ROWS:
            both = partial(product_gated, self.normed, gate_up, bias, self.active, pdl=self.pdl)
            return partial(_in_turn, both, down)
        if self._gates(layer):
            joined = partial(triton_gated.gated_product, self.normed, gate_up, self.active, pdl=self.pdl)
            return partial(_in_turn, joined, down)
        both = self._product(self.normed, gate_up, self.both)
        gate = partial(triton_block.gated, self.both, bias, out=self.active, pdl=self.pdl)
        return partial(_in_turn, both, gate, down)

    def _gates(self, layer: LayerPlan) -> bool:
        """Whether one kernel multiplies by gate and up and joins both, without a bias."""
        matrix = self._matrix("rows", layer.gate_up)
        return self.gates and not layer.gate_up_bias and triton_gated.takes(matrix)

    def _product(self, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> Any:
        if self.rows <= MOST_ROWS or self.kernels.triton_matmul:
            return partial(product_parts, x, weight, out, pdl=self.pdl)
        return self.products.bind(x, weight, out[0])

    def _summed(self, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> Any:
        """A product that ends in the residual stream: added to it here, or left in ``out`` for the norm to add."""
        return self.products.bind(x, weight, self.hidden, adds=True) if self.adds else self._product(x, weight, out)

    def _carve(self, layer: LayerPlan) -> None:
        """The buffers between launches. All layers share them, and so do all steps."""
        rows, width = self.hidden.shape
        shape = self._shape(layer.attention.reads[0], layer.attention)
        heads, dim = shape[1], shape[2]
        qkv, down = self._matrix("rows", layer.qkv), self._matrix("dense", (layer.down,))
        inner = down.shape[1]
        narrow = self.kernels.dtype
        between = narrow if rows >= WIDE_ROWS else torch.float32
        few = rows <= MOST_ROWS
        out = self._matrix("dense", (layer.out,))

        def parts(matrix_rows: int, matrix_columns: int) -> int:
            return parts_of(matrix_rows, matrix_columns) if few else 1

        made = self.space.carve(
            ((rows, width), narrow),
            ((parts(*qkv.shape), rows, qkv.shape[0]), between),
            ((rows, heads, dim), narrow),
            ((rows, heads, dim), narrow),
            ((0 if self.adds else parts(*out.shape), rows, width), torch.float32),
            ((1, 0 if few or all(map(self._gates, self.plan.layers)) else rows, 2 * inner), between),
            ((rows, inner), narrow),
            ((0 if self.adds else parts(width, inner), rows, width), torch.float32),
            ((rows, qkv.shape[0] - heads * dim), narrow),
        )
        self.normed, self.qkv, self.q, self.mixed, self.out, self.both, self.active, self.down, self.own = made

    def _matrix(self, layout: str, recipes: Sequence[str]) -> torch.Tensor:
        made: torch.Tensor = self.around.residents.get(layout, recipes)
        return made

    def _joined(self, recipes: Sequence[str]) -> torch.Tensor | None:
        return self._matrix("f32", recipes) if recipes else None

    def _vector(self, recipe: str) -> Any:
        return self._matrix("f32", (recipe,)) if recipe else None

    def _place(self, place: Place, launch: Launch) -> torch.Tensor:
        made: torch.Tensor = view(place, self._sizes(launch), self.around)
        return made

    def _shape(self, place: Place, launch: Launch) -> tuple[int, ...]:
        assert isinstance(place.type, TensorType)
        sizes = self._sizes(launch)
        return tuple(size.evaluate(sizes) for size in place.type.shape)

    def _sizes(self, launch: Launch) -> Mapping[str, int]:
        return {name: size.evaluate(self.around.sizes) for name, size in launch.sizes.items()}


def _in_turn(*calls: Any) -> None:
    for call in calls:
        call()


def _named(launches: Sequence[Launch], call: Any) -> BoundLaunch:
    """A launch that stands for several: their nodes joined, the kernel of the first."""
    node = "+".join(launch.node for launch in launches)
    return BoundLaunch(replace(launches[0], node=node), "cuda.triton.block", call)

"""Main of a step of few rows as launches of the CUDA C++ kernels, for graphs that hold heads of other kernels."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from cacheir.schedule.flatten import Launch
from cacheir_cuda.binding import BoundLaunch, Surroundings
from cacheir_cuda.chain.recognise import Chain
from cacheir_cuda.chain.rows_launches import RowsInputs
from cacheir_cuda.chain.rows_run import RowsChain
from cacheir_cuda.layer_plan import LayerPlan, MainPlan

KERNEL = "cuda.rows_chain"


def rows_launches(plan: MainPlan, around: Surroundings, rows: RowsChain, pdl: bool) -> list[BoundLaunch]:
    """Embedding, layers and the norm of the head's rows for ``around``; ``why_other`` must be ""."""
    from cacheir_cuda.kernels import triton_block

    given, attention = around.inputs, plan.layers[0].attention
    named = [place.name for place in attention.reads[2:]]
    embed, turn = plan.before
    inputs = RowsInputs(
        tokens=given[embed.reads[0].name],
        positions=given[turn.reads[0].name],
        slots=given[plan.layers[0].append.reads[3].name],
        page_table=given[named[0]],
        row_starts=None if attention.op.name == "paged_attention_decode" else given[named[1]],
    )
    (begin, *layers), buffers = rows.layers(inputs)
    gather, norm = plan.after
    end = partial(
        triton_block.sum_norm, buffers.hidden[: inputs.count], None, None,
        around.residents.get("f32", (plan.norm,)), eps=plan.eps, out=around.outputs[norm.writes[0].name],
        rows=given[gather.reads[1].name], pdl=pdl,
    )  # fmt: skip
    return [
        _named(plan.before, begin),
        *(_named(layer.launches, call) for layer, call in zip(plan.layers, layers)),
        _named(plan.after, end),
    ]


def why_other(plan: MainPlan, chain: Chain) -> str:
    """Where ``plan`` is not the decoder that ``chain`` is, in words; "" where it is."""
    if len(plan.layers) != len(chain.layers):
        return f"main has {len(plan.layers)} layers, and the chain {len(chain.layers)}"
    turn = dict(chain.turn)
    own = (plan.turn.theta, plan.turn.dims, plan.turn.factors, plan.turn.magnitude)
    if own != (turn["theta"], turn["dims"], tuple(turn["factors"]), turn["magnitude"]):  # type: ignore[arg-type]
        return "main turns q and k by other angles than the chain"
    if (plan.norm, plan.eps, plan.before[0].reads[1].name) != (chain.final_norm, chain.eps, chain.embedding):
        return "main begins or ends with other weights than the chain"
    for layer, of_chain in zip(plan.layers, chain.layers):
        norms = (of_chain.q_norm, of_chain.k_norm) if of_chain.q_norm else ()
        expected = (
            of_chain.number, of_chain.norm, of_chain.qkv, of_chain.biases, norms, of_chain.output,
            of_chain.feed_forward_norm, of_chain.gate_up, of_chain.down,
        )  # fmt: skip
        if _weights(layer) != expected or layer.out_bias or layer.down_bias or layer.gate_up_bias:
            return f"layer {layer.number} of main has other weights than the chain's"
        eps = {layer.eps, layer.ffn_eps, *((layer.head_eps,) if norms else ())}
        if eps != {chain.eps} or layer.scale != chain.scale or layer.layout != "half":
            return f"layer {layer.number} of main has another eps, scale or rotation than the chain's"
        if layer.window or layer.sinks or layer.softcap:
            return f"attention of layer {layer.number} has a window, sinks or a cap"
    return ""


def _weights(layer: LayerPlan) -> tuple[Any, ...]:
    return (
        layer.number, layer.norm, tuple(layer.qkv), tuple(layer.qkv_bias), tuple(layer.head_norms), layer.out,
        layer.ffn_norm, tuple(layer.gate_up), layer.down,
    )  # fmt: skip


def _named(launches: Any, call: Any) -> BoundLaunch:
    """A launch that stands for several: their nodes joined."""
    first: Launch = launches[0]
    return BoundLaunch(replace(first, node="+".join(one.node for one in launches)), KERNEL, call)

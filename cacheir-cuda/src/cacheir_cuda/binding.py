"""Launches bound to tensors: for given sizes every operand is a fixed view, and a step is a loop over calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import torch

from cacheir.ir.dtypes import dtype_bytes
from cacheir.ir.types import KVType, QuantType, TensorType
from cacheir.plugins import KernelSpec
from cacheir.schedule.flatten import Launch, Place
from cacheir.schedule.joined_operands import joined_operands
from cacheir_cuda.main_inputs import MainInputs
from cacheir_cuda.pool import Pool
from cacheir_cuda.residents import Residents
from cacheir_cuda.tensors import torch_dtype

Call = Callable[[], Any]


@dataclass(frozen=True)
class BoundLaunch:
    """A call without arguments, and what it stands for. ``why_uncapturable`` is "" where a graph may hold it."""

    launch: Launch
    kernel: str
    run: Call
    why_uncapturable: str = ""


@dataclass(frozen=True)
class BoundMain:
    """Main bound for given sizes: where its inputs go, where its rows come from, what to call."""

    inputs: MainInputs
    rows: torch.Tensor
    launches: Sequence[BoundLaunch]


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What launches are bound to. ``entries`` are the kernels' functions,
    ``by_meaning`` runs an op that has none."""

    arena: torch.Tensor
    inputs: Mapping[str, torch.Tensor]
    outputs: Mapping[str, torch.Tensor]
    pools: Sequence[Pool]
    residents: Residents
    kernels: Mapping[str, KernelSpec]
    entries: Mapping[str, Callable[..., Any]]
    by_meaning: Callable[..., None]
    rows: int
    sizes: Mapping[str, int]


def bind(launches: Sequence[Launch], around: Surroundings) -> list[BoundLaunch]:
    """Bind every launch for a step of ``around.rows`` rows and ``around.sizes``."""
    return [_bind_one(launch, around) for launch in launches]


def _bind_one(launch: Launch, around: Surroundings) -> BoundLaunch:
    kernel = launch.choice(around.rows).kernel
    sizes = {name: size.evaluate(around.sizes) for name, size in launch.sizes.items()}
    spec = around.kernels.get(kernel)
    operands = [
        view(part, sizes, around) if isinstance(part, Place) else around.residents.get(*part)
        for part in joined_operands(launch, spec)
    ]
    outs = tuple(view(place, sizes, around) for place in launch.writes)
    if spec is None:
        call = partial(around.by_meaning, launch, operands, outs, sizes)
        return BoundLaunch(launch, kernel, call, f"{launch.op.name} runs by its meaning on the host")
    call = partial(around.entries[kernel], *operands, **launch.attrs)
    if spec.writes_out:
        call = partial(call, out=outs[0] if len(outs) == 1 else outs)
    elif not all(isinstance(place.type, KVType) for place in launch.writes):
        call = partial(_run_fresh, call, outs)
    return BoundLaunch(launch, kernel, call, "" if spec.graph_safe else f"{kernel} says that no graph may hold it")


def _run_fresh(call: Call, outs: Sequence[Any]) -> None:
    made = call()
    for out, result in zip(outs, made if isinstance(made, tuple) else (made,)):
        if isinstance(out, torch.Tensor):
            out.copy_(result)


def view(place: Place, sizes: Mapping[str, int], around: Surroundings) -> Any:
    """The tensor (or pool) where ``place`` lies in a step of ``sizes``."""
    if place.kind == "state":
        return around.pools[int(place.name)]
    if place.kind == "input":
        return around.inputs[place.name]
    if place.kind == "output":
        return around.outputs[place.name]
    assert isinstance(place.type, (TensorType, QuantType))
    shape = tuple(size.evaluate(sizes) for size in place.type.shape)
    nbytes = prod(shape) * dtype_bytes(place.type.dtype)
    part = around.arena[place.offset : place.offset + nbytes]
    return part.view(torch_dtype(place.type.dtype)).reshape(shape)

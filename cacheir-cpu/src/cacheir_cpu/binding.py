"""Launches bound to arrays: for given sizes every operand is a fixed view, and a step is a loop over calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacheir.ir.dtypes import dtype_bytes, numpy_dtype
from cacheir.ir.types import KVType, QuantType, TensorType
from cacheir.plugins import KernelSpec
from cacheir.schedule.flatten import Launch, Place
from cacheir.schedule.joined_operands import joined_operands
from cacheir_cpu.pool import Pool
from cacheir_cpu.residents import Residents

Array = NDArray[np.generic]
Call = Callable[[], Any]


@dataclass(frozen=True)
class BoundLaunch:
    """A call without arguments, and what it stands for."""

    launch: Launch
    kernel: str
    run: Call


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What launches are bound to. ``entries`` are the kernels' functions,
    ``by_meaning`` runs an op that has none."""

    arena: NDArray[np.uint8]
    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]
    pools: Sequence[Pool]
    residents: Residents
    kernels: Mapping[str, KernelSpec]
    entries: Mapping[str, Callable[..., Any]]
    by_meaning: Callable[..., Sequence[Any]]
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
        _view(part, sizes, around) if isinstance(part, Place) else around.residents.get(*part)
        for part in joined_operands(launch, spec)
    ]
    outs = tuple(_view(place, sizes, around) for place in launch.writes)
    if spec is None:
        return BoundLaunch(launch, kernel, partial(_run_meaning, around.by_meaning, launch, operands, outs, sizes))
    function = around.entries[kernel]
    attrs = dict(launch.attrs)
    if not spec.writes_out:
        fresh = partial(function, *operands, **attrs)
        tensors = [place for place in launch.writes if not isinstance(place.type, KVType)]
        return BoundLaunch(launch, kernel, partial(_run_fresh, fresh, outs) if tensors else fresh)
    return BoundLaunch(launch, kernel, partial(function, *operands, out=outs[0] if len(outs) == 1 else outs, **attrs))


def _view(place: Place, sizes: Mapping[str, int], around: Surroundings) -> Any:
    if place.kind == "state":
        return around.pools[int(place.name)]
    if place.kind == "input":
        return around.inputs[place.name]
    if place.kind == "output":
        return around.outputs[place.name]
    assert isinstance(place.type, (TensorType, QuantType))
    shape = tuple(size.evaluate(sizes) for size in place.type.shape)
    nbytes = prod(shape) * dtype_bytes(place.type.dtype)
    return around.arena[place.offset : place.offset + nbytes].view(numpy_dtype(place.type.dtype)).reshape(shape)


def _run_fresh(fresh: Call, outs: Sequence[Any]) -> None:
    results = fresh()
    for out, result in zip(outs, results if isinstance(results, tuple) else (results,)):
        if isinstance(out, np.ndarray):
            out[...] = result


def _run_meaning(
    by_meaning: Callable[..., Sequence[Any]],
    launch: Launch,
    operands: list[Any],
    outs: Sequence[Any],
    sizes: Mapping[str, int],
) -> None:
    for out, result in zip(outs, by_meaning(launch, operands, sizes)):
        if isinstance(out, np.ndarray):
            out[...] = result

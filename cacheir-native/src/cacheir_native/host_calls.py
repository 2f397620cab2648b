"""Ops that the runner has no instruction for: they run by their meaning, on views of its arena."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacheir.ir.dtypes import numpy_dtype
from cacheir.ir.types import KVType, TensorType, Type
from cacheir.reference.interpreter import Interpreter
from cacheir.schedule.flatten import Launch, Place
from cacheir.weights.store import WeightStore
from cacheir_native.code import Buffer, HostCall
from cacheir_native.runner_pool import RunnerPool

Array = NDArray[Any]


class HostCalls:
    """Runs host calls and whole heads. ``calls`` counts the ops, since they cost a step most of its speed."""

    def __init__(self, runner: Any, interpreter: Interpreter, store: WeightStore, pools: Sequence[RunnerPool]) -> None:
        self._runner = runner
        self._interpreter = interpreter
        self._store = store
        self._pools = pools
        self.calls = 0

    def run(self, call: HostCall, places: Mapping[Buffer, int], inputs: Mapping[str, Array], sizes: Any) -> None:
        """``inputs`` and ``sizes`` are the step's."""
        arena = self._runner.arena()
        own_sizes = {name: size.evaluate(sizes) for name, size in call.launch.sizes.items()}
        # A reshaped value lies in the buffer of the one it is made of: its own shape is the place's.
        operands = [
            _view(arena, places[operand], place.type, own_sizes)
            if isinstance(operand, Buffer)
            else self._given(operand, inputs)
            for operand, place in zip(call.operands, call.launch.reads)
        ]
        results = self._apply(call.launch, operands, own_sizes)
        for buffer, place, result in zip(call.results, call.launch.writes, results):
            if buffer is not None:
                _view(arena, places[buffer], place.type, own_sizes)[...] = result

    def run_head(self, launches: Sequence[Launch], given: Mapping[str, Array]) -> Array:
        """What a head yields for ``given``, its inputs by name."""
        sizes = {"R": len(given["rows"])}
        values: dict[tuple[str, str, int], Any] = {}
        result: Any = None
        for launch in launches:
            operands = [
                values[_key(place)] if _key(place) in values else self._given(place, given) for place in launch.reads
            ]
            own_sizes = {name: size.evaluate(sizes) for name, size in launch.sizes.items()}
            for place, made in zip(launch.writes, self._apply(launch, operands, own_sizes)):
                values[_key(place)] = made
                if place.kind == "output":
                    result = made
        array: Array = np.asarray(result)
        return array

    def _apply(self, launch: Launch, operands: Sequence[Any], sizes: Mapping[str, int]) -> tuple[Any, ...]:
        self.calls += 1
        return self._interpreter.apply(launch.op, operands, sizes, launch.layer)

    def _given(self, place: Place, inputs: Mapping[str, Array]) -> Any:
        if place.kind == "weight":
            return self._store.get(place.name)
        if place.kind == "state":
            return self._pools[int(place.name)]
        return inputs[place.name]


def _view(arena: NDArray[np.uint8], start: int, type_: Type, sizes: Mapping[str, int]) -> Array:
    assert isinstance(type_, TensorType)
    shape = type_.sizes(sizes)
    dtype = np.dtype(numpy_dtype(type_.dtype))
    flat: Array = arena[start : start + int(np.prod(shape)) * dtype.itemsize].view(dtype)
    return flat.reshape(shape)


def _key(place: Place) -> tuple[str, str, int]:
    assert not (place.kind == "arena" and isinstance(place.type, KVType))
    return (place.kind, "" if place.kind == "arena" else place.name, place.offset)

"""Runs main of a plain graph: inputs as they are given, outputs in fresh arrays, everything between in the arena."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacheir.ir.dtypes import numpy_dtype
from cacheir.ir.graph import Value
from cacheir.ir.types import TensorType
from cacheir.models.imported import PLAIN_MODE
from cacheir.reference.sizes import bind_shapes
from cacheir.schedule.flatten import Launch
from cacheir.schedule.program import Program
from cacheir_cpu.binding import Surroundings, bind

Array = NDArray[Any]


def run_plain_graph(
    program: Program,
    launches: Sequence[Launch],
    inputs: Mapping[str, Array],
    surroundings: Callable[..., Surroundings],
) -> tuple[Array, ...]:
    """The outputs of main in order; bf16 is uint16."""
    main = program.modules[PLAIN_MODE].main
    sizes: dict[str, int] = {}
    bind_shapes([(f"%{name}", _type(value).shape, inputs[name].shape) for name, value in _named(main.inputs)], sizes)
    made = {
        str(index): np.empty(_type(value).sizes(sizes), numpy_dtype(_type(value).dtype))
        for index, value in enumerate(main.outputs)
        if value.origin == "op"
    }
    around = surroundings(inputs, made, 1, sizes)
    for launch in bind(launches, around):
        launch.run()
    results = []
    for value in main.outputs:
        first = main.outputs.index(value)  # one value that is yielded twice lies where it was first
        if value.origin == "op":
            results.append(made[str(first)])
        elif value.origin == "input":
            results.append(np.array(inputs[value.name]))
        else:
            recipe = program.weight_of(PLAIN_MODE, main.name, value.name, None).recipe
            results.append(np.array(around.residents.get("", (recipe,))))
    return tuple(results)


def _named(values: Sequence[Value]) -> list[tuple[str, Value]]:
    return [(value.name, value) for value in values]


def _type(value: Value) -> TensorType:
    assert isinstance(value.type, TensorType)  # a plain graph has no states, and no input is quantised
    return value.type

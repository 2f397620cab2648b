"""One layer of a tiny decoder as a quantiser with calibration sees it, and how far other weights move its outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacheir.formats.quant_array import QuantArray
from cacheir.ir.opdef import OpDef
from cacheir.quantisers.calibration import CalibratedLayer, MatrixInput
from cacheir.testing.random_runs import RandomWeights, random_run, run_graph
from cacheir.testing.tiny_decoders import TinyDecoder

F32 = NDArray[np.float32]
_ROWS = 24


class CalibrationTrial:
    """Layer 0 of ``decoder`` with random weights, fed with channels of very unlike sizes.

    ``keys`` are the canonical keys of its weights by part, ``layer`` is what ``QuantSpec.calibrate`` is given.
    """

    def __init__(self, decoder: TinyDecoder, ops: Mapping[str, OpDef]) -> None:
        self._ops, self._module = ops, decoder.logical(ops)
        self._stored = RandomWeights(self._module)
        self.keys = {key.removeprefix("layers.0."): key for key in decoder.weights if key.startswith("layers.0.")}
        weights = {part: _dense(self._stored(key)) for part, key in self.keys.items()}
        rng = np.random.default_rng(0)
        inputs = {}
        for part, values in weights.items():
            if values.ndim == 2:
                sizes = np.exp(rng.normal(0.0, 1.5, values.shape[1]))
                rows = (rng.standard_normal((_ROWS, values.shape[1])) * sizes).astype(np.float32)
                inputs[part] = MatrixInput(mean_size=np.abs(rows).mean(axis=0), rows=rows)
        self.layer = CalibratedLayer(
            number=0,
            spec=decoder.spec.layers[0],
            norm_offset=decoder.spec.norm_offset,
            weights=weights,
            inputs=inputs,
        )

    def change(self, made: Mapping[str, Any]) -> float:
        """The largest difference of the layer's outputs with the weights ``made``, beside the largest output."""
        call = next(op for op in self._module.main.ops if op.callee and op.attr("layer") == 0)
        run = random_run(self._module, call.callee, np.random.default_rng(1))
        before, after = (self._outputs(call.callee, run, values) for values in ({}, made))
        return float(np.abs(before - after).max() / np.abs(before).max())

    def _outputs(self, graph: str, run: Any, made: Mapping[str, Any]) -> NDArray[Any]:
        changed = {self.keys[part]: np.asarray(value, np.float32) for part, value in made.items()}
        module = self._module

        def stored(key: str) -> Any:
            return changed[key] if key in changed else self._stored(key)

        return run_graph(module, graph, self._ops, stored, run)[0]


def _dense(values: Any) -> F32:
    dense: F32 = values.dense() if isinstance(values, QuantArray) else np.asarray(values, np.float32)
    return dense

"""The kit's ImporterTests on the ONNX importer, against onnx's reference evaluator."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from cacheir.testing import ImporterTests


class TestOnnx(ImporterTests):
    plugins = ("cacheir_importers.plugin",)
    importer = "onnx"

    @classmethod
    def write_model(cls, folder: Path) -> Path:
        rng = np.random.default_rng(0)
        weights = {name: rng.standard_normal((128, 192)).astype(np.float32) for name in ("first", "second")}
        weights["bias"] = rng.standard_normal(128).astype(np.float32)
        nodes = [
            helper.make_node("Gemm", ["x", "first", "bias"], ["a"], transB=1),
            helper.make_node("Tanh", ["a"], ["b"]),
            helper.make_node("MatMul", ["b", "second"], ["y"]),
        ]
        graph = helper.make_graph(
            nodes,
            "net",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 192])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 192])],
            [numpy_helper.from_array(value, name) for name, value in weights.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
        onnx.save(model, folder / "net.onnx")
        return folder / "net.onnx"

    @classmethod
    def expected(cls, path: Path) -> Sequence[tuple[Any, Any]]:
        evaluate = ReferenceEvaluator(str(path))
        inputs = [np.random.default_rng(n).standard_normal((n, 192)).astype(np.float32) for n in (1, 5)]
        return [({"x": x}, evaluate.run(None, {"x": x})) for x in inputs]

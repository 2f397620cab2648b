"""The valid programs that the fuzzers start from: small ONNX models, and the importers' own StableHLO texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import mutations
import numpy as np

Change = Callable[[Random], tuple[str, bytes]]


def prepare_onnx(folder: Path) -> Change:
    """ONNX models, and what damages one of them at random."""
    files = [model.SerializeToString() for model in onnx_models()]
    (folder / "w.bin").write_bytes(bytes(256))

    def change(random: Random) -> tuple[str, bytes]:
        data = random.choice(files)
        for _ in range(random.choice((1, 1, 1, 2, 3))):
            data = mutations.changed_message(random, data)
        return "m.onnx", data if random.random() < 0.8 else mutations.changed_bytes(random, data)

    return change


def onnx_models() -> Sequence[Any]:
    """Small models with the operators that work out shapes, with weights in every kind of place."""
    import onnx
    from onnx import helper, numpy_helper

    def model(nodes: Sequence[Any], inputs: Mapping[str, Any], stored: Sequence[Any]) -> Any:
        ends = [helper.make_tensor_value_info(name, 1, shape) for name, shape in inputs.items()]
        result = [helper.make_tensor_value_info("y", 1, None)]
        graph = helper.make_graph(list(nodes), "g", ends, result, list(stored))
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])

    node, array = helper.make_node, numpy_helper.from_array
    outside = onnx.TensorProto(name="w", dims=[4, 8], data_type=1, data_location=1)
    for key, value in (("location", "w.bin"), ("offset", "0"), ("length", "128")):
        outside.external_data.add(key=key, value=value)
    typed = helper.make_tensor("w", 1, (4, 4), [float(number) for number in range(16)])
    shapes = [
        node("Shape", ["a"], ["s"]),
        node("Gather", ["s", "zero"], ["b"]),
        node("Unsqueeze", ["b", "axis"], ["b1"]),
        node("Concat", ["b1", "rest"], ["v"], axis=0),
        node("Reshape", ["a", "v"], ["r"]),
        node("Slice", ["r", "from", "to", "axis"], ["c"]),
        node("ConstantOfShape", ["v"], ["z"], value=helper.make_tensor("v", 1, [1], [0.5])),
        node("Range", ["zero", "two", "one"], ["i"]),
        node("Gather", ["c", "i"], ["y"], axis=0),
    ]
    numbers = {"zero": np.array(0), "one": np.array(1), "two": np.array(2)}
    numbers |= {"axis": np.array([0]), "rest": np.array([4]), "from": np.array([0]), "to": np.array([2])}
    return [
        model([node("MatMul", ["a", "w"], ["y"])], {"a": [3, 4]}, [array(np.ones((4, 8), np.float32), "w")]),
        model([node("Gemm", ["a", "w"], ["y"], alpha=0.5, transB=1)], {"a": [3, 4]}, [typed]),
        model([node("MatMul", ["a", "w"], ["m"]), node("Softmax", ["m"], ["y"], axis=-1)], {"a": ["n", 4]}, [outside]),
        model(shapes, {"a": ["batch", 4]}, [array(value, name) for name, value in numbers.items()]),
        model(
            [
                node("Transpose", ["a"], ["t"], perm=[1, 0]),
                node("ReduceSum", ["t", "axis"], ["q"], keepdims=0),
                node("Expand", ["q", "big"], ["e"]),
                node("Tile", ["e", "times"], ["f"]),
                node("Pad", ["f", "pads"], ["g"]),
                node("Cast", ["g"], ["h"], to=6),
                node("Cast", ["h"], ["y"], to=1),
            ],
            {"a": [3, 4]},
            [
                array(np.array([0]), "axis"),
                array(np.array([2, 3]), "big"),
                array(np.array([1, 2]), "times"),
                array(np.array([1, 0, 0, 1]), "pads"),
            ],
        ),
    ]


def prepare_stablehlo(folder: Path) -> Change:
    """StableHLO texts, and what damages one of them at random."""
    golden = Path(__file__).resolve().parents[2] / "cacheir-importers" / "tests" / "golden_stablehlo"
    texts = [path.read_bytes() for path in sorted(golden.glob("*.mlir"))]
    digits = "0x04000000" + "0000803F" * 600
    texts.append(
        f"func.func @main() -> tensor<600xf32> {{\n%0 = stablehlo.constant dense_resource<w> : tensor<600xf32>\n"
        f'return %0 : tensor<600xf32>\n}}\n{{-# dialect_resources: {{ builtin: {{ w: "{digits}" }} }} #-}}\n'.encode()
    )
    assert len(texts) > 5, "the programs lie beside the importers' tests"

    def change(random: Random) -> tuple[str, bytes]:
        text = random.choice(texts)
        changed = (
            mutations.changed_words(random, text) if random.random() < 0.8 else mutations.changed_bytes(random, text)
        )
        return "p.stablehlo", changed

    return change

"""ONNX models: each operator against the onnx package's reference evaluator, where weights lie, and what is refused."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cacheir
from cacheir.errors import CacheIRError, MalformedModelError, UnsupportedModelError, UsageError
from cacheir.models.imported import ImportedModel
from cacheir.plugins.installation import default
from cacheir.reference.interpreter import Interpreter
from cacheir_importers.onnx.importer import import_onnx

onnx = pytest.importorskip("onnx")
helper, TensorProto, numpy_helper = onnx.helper, onnx.TensorProto, onnx.numpy_helper
RNG = np.random.default_rng(31)
TYPES = {
    np.dtype(np.float32): 1,
    np.dtype(np.int64): 7,
    np.dtype(np.int32): 6,
    np.dtype(bool): 9,
    np.dtype(np.float16): 10,
}


def floats(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def save(path: Path, nodes: Sequence[Any], inputs: dict[str, Any], outputs: Sequence[str], **how: Any) -> Any:
    """Write a model whose inputs are like the arrays ``inputs``; ``shapes`` replaces their shapes, by name."""
    shapes = how.get("shapes", {})
    stored = how.get("stored", {})
    described = [
        helper.make_tensor_value_info(name, TYPES[array.dtype], shapes.get(name, array.shape))
        for name, array in inputs.items()
    ]
    results = [helper.make_tensor_value_info(name, 0, None) for name in outputs]
    for result in results:
        result.type.Clear()
    tensors = [numpy_helper.from_array(array, name) for name, array in stored.items()]
    graph = helper.make_graph(list(nodes), "g", described, results, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", how.get("opset", 17))], ir_version=8)
    onnx.save(model, str(path), **how.get("saving", {}))
    return model


def run(model: ImportedModel, inputs: dict[str, Any]) -> list[Any]:
    """The outputs by the reference kernels, weights read where the source table says."""
    assert model.module is not None

    def weight(key: str) -> Any:
        source = model.sources[key]
        raw = (model.root / source.file).read_bytes()[source.offset : source.offset + source.nbytes]
        dtype = {"f32": "f4", "f16": "f2", "i64": "i8", "i32": "i4", "bool": "?"}[source.format]
        return np.frombuffer(raw, dtype).reshape(source.shape)

    main = model.module.main
    return list(Interpreter(default().ops.by_name(), weight).run(model.module, main, list(inputs.values())))


def compare(
    path: Path, nodes: Sequence[Any], inputs: dict[str, Any], outputs: Sequence[str] = ("y",), **how: Any
) -> ImportedModel:
    from onnx.reference import ReferenceEvaluator

    proto = save(path / "m.onnx", nodes, inputs, outputs, **how)
    expected = ReferenceEvaluator(proto).run(None, inputs)
    model = import_onnx(path / "m.onnx", {})
    found = run(model, inputs)
    assert len(found) == len(expected)
    for got, want in zip(found, expected):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-6)
    return model


X, Y, P = floats(2, 3, 4), floats(3, 4), np.abs(floats(2, 3, 4)) + 0.1
I = np.array([[3, -2], [0, 1]])  # noqa: E741
node = helper.make_node

BINARY = ("Add", "Sub", "Mul", "Div", "Max", "Min")
COMPARE = ("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual")
UNARY = ("Sigmoid", "Tanh", "Exp", "Neg", "Cos", "Sin", "Identity", "Abs", "Erf")
MORE = ("Floor", "Ceil", "Round", "Relu", "Softmax", "Transpose")
GEMM = {"a": Y, "b": floats(5, 4), "c": floats(5)}
NORM = {"a": X, "s": floats(4), "b": floats(4)}
INFINITE = helper.make_tensor("v", 1, [1], [-np.inf])

SIMPLE: dict[str, tuple[Any, dict[str, Any]]] = {
    **{op: (node(op, ["a", "b"], ["y"]), {"a": X, "b": Y}) for op in BINARY},
    **{op: (node(op, ["a", "b"], ["y"]), {"a": X, "b": Y}) for op in COMPARE},
    **{op: (node(op, ["a"], ["y"]), {"a": X}) for op in UNARY},
    **{op: (node(op, ["a"], ["y"]), {"a": X}) for op in MORE},
    **{op: (node(op, ["a"], ["y"]), {"a": P}) for op in ("Sqrt", "Log", "Reciprocal")},
    "Pow": (node("Pow", ["a", "b"], ["y"]), {"a": P, "b": Y}),
    "Pow int": (node("Pow", ["a", "b"], ["y"]), {"a": P, "b": np.array(2)}),
    "Div int": (node("Div", ["a", "b"], ["y"]), {"a": np.array([[7, -7]]), "b": np.array([[2], [3]])}),
    "And": (node("And", ["a", "b"], ["y"]), {"a": X > 0, "b": Y > 0}),
    "Not": (node("Not", ["a"], ["y"]), {"a": X > 0}),
    "Where": (node("Where", ["c", "a", "b"], ["y"]), {"c": X > 0, "a": X, "b": Y}),
    "Cast int": (node("Cast", ["a"], ["y"], to=7), {"a": X * 3}),
    "Cast bool": (node("Cast", ["a"], ["y"], to=9), {"a": I}),
    "Cast f16": (node("Cast", ["a"], ["y"], to=10), {"a": X}),
    "Softmax axis": (node("Softmax", ["a"], ["y"], axis=1), {"a": X}),
    "MatMul": (node("MatMul", ["a", "b"], ["y"]), {"a": X, "b": floats(4, 5)}),
    "MatMul rows": (node("MatMul", ["a", "b"], ["y"]), {"a": floats(4), "b": floats(2, 4, 5)}),
    "MatMul columns": (node("MatMul", ["a", "b"], ["y"]), {"a": X, "b": floats(4)}),
    "MatMul vectors": (node("MatMul", ["a", "b"], ["y"]), {"a": floats(4), "b": floats(4)}),
    "Gemm": (node("Gemm", ["a", "b", "c"], ["y"], transB=1, alpha=0.5, beta=2.0), GEMM),
    "Gemm plain": (node("Gemm", ["a", "b"], ["y"], transA=1), {"a": Y, "b": floats(3, 2)}),
    "Transpose perm": (node("Transpose", ["a"], ["y"], perm=[1, 2, 0]), {"a": X}),
    "Concat": (node("Concat", ["a", "b"], ["y"], axis=-1), {"a": Y, "b": floats(3, 2)}),
    "Gather": (node("Gather", ["a", "i"], ["y"], axis=1), {"a": X, "i": np.array([[2, -1], [0, 1]])}),
    "Gather rows": (node("Gather", ["a", "i"], ["y"]), {"a": Y, "i": np.array([1, 0, -3], np.int32)}),
    "ReduceMean": (node("ReduceMean", ["a"], ["y"], axes=[-1]), {"a": X}),
    "ReduceMean all": (node("ReduceMean", ["a"], ["y"], keepdims=0), {"a": X}),
    "ReduceMax": (node("ReduceMax", ["a"], ["y"], axes=[0, 2], keepdims=0), {"a": X}),
    "Shape": (node("Shape", ["a"], ["y"]), {"a": X}),
    "Trilu": (node("Trilu", ["a"], ["y"]), {"a": X}),
    "Trilu lower": (node("Trilu", ["a"], ["y"], upper=0), {"a": X}),
    "Squeeze": (node("Squeeze", ["a"], ["y"]), {"a": floats(1, 3, 1)}),
    "LayerNormalization": (node("LayerNormalization", ["a", "s", "b"], ["y"], epsilon=1e-3), NORM),
}  # fmt: skip
WITH_CONSTANTS: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "Reshape": (node("Reshape", ["a", "s"], ["y"]), {"a": X}, {"s": np.array([0, -1])}),
    "Expand": (node("Expand", ["a", "s"], ["y"]), {"a": Y}, {"s": np.array([2, 1, 4])}),
    "Slice": (node("Slice", ["a", "b", "e"], ["y"]), {"a": X}, {"b": np.array([0, -2]), "e": np.array([1, 1 << 40])}),
    "Slice steps": (
        node("Slice", ["a", "b", "e", "x", "s"], ["y"]),
        {"a": X},
        {"b": np.array([0, -1]), "e": np.array([3, -100]), "x": np.array([1, 2]), "s": np.array([2, -2])},
    ),
    "Unsqueeze": (node("Unsqueeze", ["a", "x"], ["y"]), {"a": Y}, {"x": np.array([0, -1])}),
    "Squeeze axes": (node("Squeeze", ["a", "x"], ["y"]), {"a": floats(1, 3, 1)}, {"x": np.array([0])}),
    "ReduceSum": (node("ReduceSum", ["a", "x"], ["y"]), {"a": X}, {"x": np.array([1])}),
    "ConstantOfShape": (
        node("ConstantOfShape", ["s"], ["y"], value=INFINITE), {}, {"s": np.array([2, 3])},
    ),
    "Trilu k": (node("Trilu", ["a", "k"], ["y"], upper=0), {"a": X}, {"k": np.array(1)}),
    "Range": (node("Range", ["b", "e", "s"], ["y"]), {}, {"b": np.array(1), "e": np.array(9), "s": np.array(3)}),
    "Gather known": (node("Gather", ["a", "i"], ["y"], axis=2), {"a": X}, {"i": np.array(-1)}),
}  # fmt: skip


@pytest.mark.parametrize("case", SIMPLE)
def test_an_operator(tmp_path: Path, case: str) -> None:
    operator, inputs = SIMPLE[case]
    compare(tmp_path, [operator], inputs)


@pytest.mark.parametrize("case", WITH_CONSTANTS)
def test_an_operator_with_constants(tmp_path: Path, case: str) -> None:
    operator, inputs, stored = WITH_CONSTANTS[case]
    compare(tmp_path, [operator], inputs, stored=stored)


def test_split_and_constants(tmp_path: Path) -> None:
    nodes = [
        node("Split", ["a"], ["p", "q"], axis=2),
        node("Constant", [], ["c"], value_float=0.5),
        node("Constant", [], ["t"], value=numpy_helper.from_array(floats(3, 2))),
        node("Mul", ["p", "c"], ["u"]),
        node("Add", ["q", "t"], ["w"]),
    ]
    compare(tmp_path, nodes, {"a": X}, ["u", "w"])


def test_shapes_are_worked_out_with_named_sizes(tmp_path: Path) -> None:
    """What exporters write for x.view(x.shape[0], -1, 2, 2), with a causal mask of the sequence's length."""
    nodes = [
        node("Shape", ["a"], ["shape"]),
        node("Gather", ["shape", "zero"], ["batch"]),
        node("Gather", ["shape", "one"], ["length"]),
        *(node("Unsqueeze", [name, "axis"], [f"{name}.1"]) for name in ("batch", "length")),
        node("Concat", ["batch.1", "rest", "two", "two"], ["view"], axis=0),
        node("Reshape", ["a", "view"], ["heads"]),
        node("Transpose", ["heads"], ["turned"], perm=[0, 2, 1, 3]),
        node("Transpose", ["turned"], ["keys"], perm=[0, 1, 3, 2]),
        node("MatMul", ["turned", "keys"], ["scores"]),
        node("Concat", ["length.1", "length.1"], ["square"], axis=0),
        node("ConstantOfShape", ["square"], ["full"], value=helper.make_tensor("v", 1, [1], [-1e9])),
        node("Trilu", ["full", "k"], ["mask"]),
        node("Add", ["scores", "mask"], ["masked"]),
        node("Softmax", ["masked"], ["y"], axis=-1),
    ]
    stored = {
        "zero": np.array(0),
        "one": np.array(1),
        "axis": np.array([0]),
        "rest": np.array([-1]),
        "two": np.array([2]),
    }
    how = {"stored": {**stored, "k": np.array(1)}, "shapes": {"a": ["batch size", "seq", 4]}}
    for batch, length in ((1, 5), (3, 2)):
        model = compare(tmp_path, nodes, {"a": floats(batch, length, 4)}, **how)
    assert model.notes == ("sizes that the model leaves open may be 1 to 128: batch_size, seq",)


def test_compiled_and_executed_on_a_backend(tmp_path: Path) -> None:
    """A small attention block with sizes that the model leaves open, weights included, through the whole compiler."""
    weights = {name: floats(8, 8) / 4 for name in ("wq", "wk", "wv")}
    nodes = [
        *(node("MatMul", ["a", weight], [weight[1]]) for weight in weights),
        node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
        node("MatMul", ["q", "kt"], ["s"]),
        node("Softmax", ["s"], ["p"], axis=-1),
        node("MatMul", ["p", "v"], ["o"]),
        node("Add", ["o", "a"], ["y"]),
    ]
    how = {"stored": weights, "shapes": {"a": ["batch", "seq", 8]}}
    save(tmp_path / "m.onnx", nodes, {"a": floats(1, 1, 8)}, ["y"], **how)
    artifact = cacheir.compile_model(tmp_path / "m.onnx", output=tmp_path / "artifact")
    for shape in ((1, 5, 8), (3, 2, 8)):
        a = floats(*shape)
        q, k, v = (a @ weights[name] for name in ("wq", "wk", "wv"))
        powers = np.exp(q @ k.transpose(0, 2, 1))
        expected = powers / powers.sum(-1, keepdims=True) @ v + a
        np.testing.assert_allclose(cacheir.run_module(artifact, {"a": a})[0], expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(UsageError, match=r"size seq is 129, declared in \[1, 128\]"):
        cacheir.run_module(artifact, {"a": floats(1, 129, 8)})


@pytest.mark.parametrize("external", [False, True])
def test_weights_stay_where_they_lie(tmp_path: Path, external: bool) -> None:
    weight = floats(4, 30)
    saving = {"save_as_external_data": True, "location": "w.bin", "size_threshold": 0} if external else {}
    nodes = [node("MatMul", ["a", "w"], ["y"])]
    save(tmp_path / "m.onnx", nodes, {"a": Y}, ["y"], stored={"w": weight}, saving=saving)
    model = import_onnx(tmp_path / "m.onnx", {})
    (source,) = model.sources.values()
    assert (source.file, source.tensor, source.format) == ("w.bin" if external else "m.onnx", "w", "f32")
    assert model.files == (("m.onnx", "w.bin") if external else ("m.onnx",))
    np.testing.assert_allclose(run(model, {"a": Y})[0], Y @ weight, rtol=1e-6)


def test_elements_that_are_not_raw_bytes(tmp_path: Path) -> None:
    values = floats(4, 30)
    tensors = {
        "w": helper.make_tensor("w", 1, values.shape, values.ravel().tolist()),
        "h": helper.make_tensor("h", 10, (30,), np.arange(30).astype(np.float16).tolist()),
        "i": helper.make_tensor("i", 7, (3,), [2, 0, -1]),
    }
    nodes = [
        node("MatMul", ["a", "w"], ["p"]),
        node("Cast", ["h"], ["wide"], to=1),
        node("Add", ["p", "wide"], ["q"]),
        node("Gather", ["q", "i"], ["y"], axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("a", 1, Y.shape)],
        [helper.make_tensor_value_info("y", 1, (3, 3))],
        list(tensors.values()),
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), str(tmp_path / "m.onnx"))
    expected = (Y @ values + np.arange(30, dtype=np.float32))[:, [2, 0, -1]]
    np.testing.assert_allclose(run(import_onnx(tmp_path / "m.onnx", {}), {"a": Y})[0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("location", ["../w.bin", "/etc/passwd", "a/../../w.bin", "C:\\w", "", "a\\b"])
def test_external_data_outside_the_folder_is_refused(tmp_path: Path, location: str) -> None:
    tensor = onnx.TensorProto(name="w", dims=[4, 30], data_type=1, data_location=1)
    tensor.external_data.add(key="location", value=location)
    write_with(tmp_path, tensor)
    with pytest.raises(MalformedModelError, match="which is not inside the model's folder"):
        import_onnx(tmp_path / "m.onnx", {})


def write_with(tmp_path: Path, tensor: Any) -> None:
    inputs = [helper.make_tensor_value_info("a", 1, Y.shape)]
    results = [helper.make_tensor_value_info("y", 1, (3, 30))]
    graph = helper.make_graph([node("MatMul", ["a", "w"], ["y"])], "g", inputs, results, [tensor])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())


def test_external_data_that_is_not_all_there(tmp_path: Path) -> None:
    for entries, message in (
        ({"location": "w.bin"}, "which is missing"),
        ({"location": "short.bin"}, "which is shorter"),
        ({"location": "short.bin", "offset": "-4"}, "external offset"),
        ({"location": "short.bin", "length": "17"}, "takes 480 bytes, and 17 are given"),
    ):
        (tmp_path / "short.bin").write_bytes(b"\0" * 100)
        tensor = onnx.TensorProto(name="w", dims=[4, 30], data_type=1, data_location=1)
        for key, value in entries.items():
            tensor.external_data.add(key=key, value=value)
        write_with(tmp_path, tensor)
        with pytest.raises(MalformedModelError, match=message):
            import_onnx(tmp_path / "m.onnx", {})


def test_unsupported_operators_are_all_listed(tmp_path: Path) -> None:
    nodes = [node("Einsum", ["a"], ["b"], equation="ij->ji"), node("LSTM", ["b"], ["c"]), node("LSTM", ["c"], ["d"])]
    nodes.append(node("Gelu", ["d"], ["y"], domain="com.microsoft"))
    save(tmp_path / "m.onnx", nodes, {"a": Y}, ["y"])
    with pytest.raises(
        UnsupportedModelError, match=r"3 operators are not supported: Einsum \(1\), LSTM \(2\), com\.micro"
    ):
        import_onnx(tmp_path / "m.onnx", {})


def test_what_a_node_asks_for_is_named(tmp_path: Path) -> None:
    for nodes, inputs, message in (
        (
            [node("Reshape", ["a", "s"], ["y"])],
            {"a": Y, "s": np.array([12])},
            r"node 'y' \(Reshape\) needs a shape that is known",
        ),
        ([node("Softmax", ["a"], ["y"], odd=3)], {"a": Y}, r"node 'y' \(Softmax\) has the attribute 'odd'"),
        ([node("Cast", ["a"], ["y"], to=8)], {"a": Y}, r"element type STRING"),
    ):
        save(tmp_path / "m.onnx", nodes, inputs, ["y"])
        with pytest.raises(UnsupportedModelError, match=message):
            import_onnx(tmp_path / "m.onnx", {})


def test_a_known_value_that_doubles_with_every_node_is_refused(tmp_path: Path) -> None:
    nodes = [node("Concat", [f"c{n}", f"c{n}"], [f"c{n + 1}"], axis=0) for n in range(40)]
    save(tmp_path / "m.onnx", [*nodes, node("Identity", ["c40"], ["y"])], {}, ["y"], stored={"c0": np.arange(8)})
    with pytest.raises(UnsupportedModelError, match=r"node 'c10' \(Concat\) makes 8192 elements while importing"):
        import_onnx(tmp_path / "m.onnx", {})


def test_damaged_models(tmp_path: Path) -> None:
    tensor = onnx.TensorProto(name="w", dims=[4, 30], data_type=1, raw_data=b"\0" * 100)
    write_with(tmp_path, tensor)
    with pytest.raises(MalformedModelError, match=r"tensor 'w', f32\[4, 30\], takes 480 bytes, and has 100"):
        import_onnx(tmp_path / "m.onnx", {})
    save(tmp_path / "m.onnx", [node("Add", ["a", "b"], ["y"])], {"a": Y}, ["y"])
    with pytest.raises(MalformedModelError, match=r"node 'y' \(Add\): the value 'b' is not defined"):
        import_onnx(tmp_path / "m.onnx", {})
    whole = (tmp_path / "m.onnx").read_bytes()
    (tmp_path / "m.onnx").write_bytes(whole[:-5])
    with pytest.raises(MalformedModelError, match=r"m\.onnx: a number is cut off at byte \d+"):
        import_onnx(tmp_path / "m.onnx", {})
    (tmp_path / "m.onnx").write_bytes(whole[:-30])
    with pytest.raises(MalformedModelError, match=r"m\.onnx: the field at byte \d+ needs \d+ bytes of \d+"):
        import_onnx(tmp_path / "m.onnx", {})
    (tmp_path / "m.onnx").write_bytes(b"")
    with pytest.raises(MalformedModelError, match="an empty one"):
        import_onnx(tmp_path / "m.onnx", {})


@pytest.fixture(scope="module", autouse=True)
def little_memory() -> Iterator[None]:
    """Reading damaged files takes no memory to speak of."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10  # KiB


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[bytes]]:
    path, found = tmp_path_factory.mktemp("fuzz") / "m.onnx", []
    for operator, inputs, *stored in (*SIMPLE.values(), *WITH_CONSTANTS.values()):
        save(path, [operator], inputs, ["y"], stored=stored[0] if stored else {})
        found.append(path.read_bytes())
    return path, found


CHANGES = st.lists(st.tuples(st.integers(0, 600), st.integers(0, 3), st.binary(max_size=4)), max_size=4)


def read_changed(seeds: tuple[Path, list[bytes]], number: int, changes: list[tuple[int, int, bytes]]) -> None:
    path, data = seeds[0], seeds[1][number % len(seeds[1])]
    for place, length, piece in changes:
        place %= len(data) + 1
        data = data[:place] + piece + data[place + length :]
    path.write_bytes(data)
    began = time.process_time()
    with suppress(CacheIRError):
        import_onnx(path, {})
    assert time.process_time() - began < 2


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 100), CHANGES)
def test_a_changed_model_is_read_or_refused(seeds: Any, number: int, changes: list[tuple[int, int, bytes]]) -> None:
    read_changed(seeds, number, changes)


@pytest.mark.slow
@settings(max_examples=int(os.environ.get("SOAK_EXAMPLES", "4000")), deadline=None)
@given(st.integers(0, 100), CHANGES)
def test_many_changes_of_a_model(seeds: Any, number: int, changes: list[tuple[int, int, bytes]]) -> None:
    read_changed(seeds, number, changes)

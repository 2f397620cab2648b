"""StableHLO text: each group of operations against NumPy, constants as printers write them, and what is refused."""

from __future__ import annotations

import os
import resource
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cacheir.errors import CacheIRError, MalformedModelError, UnsupportedModelError
from cacheir.models.imported import ImportedModel
from cacheir.plugins.installation import default
from cacheir.reference.bf16 import from_bf16, to_bf16
from cacheir.reference.interpreter import Interpreter
from cacheir_importers.stablehlo.importer import import_stablehlo
from cacheir_importers.stablehlo.unpack_hex import unpack_hex

GOLDEN = Path(__file__).parent / "golden_stablehlo"
X, Y = (np.random.default_rng(seed).standard_normal((2, 3)).astype(np.float32) for seed in (3, 4))
I = np.array([[7, -7, 0], [5, -2147483648, 3]], np.int32)  # noqa: E741
J = np.array([[2, 2, 5], [-3, -1, 0]], np.int32)


def run(path: Path, *inputs: Any) -> list[Any]:
    """The outputs of the program in ``path``, by the reference kernels."""
    model = import_stablehlo(path, {})
    assert model.module is not None
    return outputs(model, *inputs)


def outputs(model: ImportedModel, *inputs: Any) -> list[Any]:
    """As ``run``; weights are read from the file as the source table says."""
    assert model.module is not None
    main = model.module.main

    def weight(key: str) -> Any:
        recipe = model.recipes[key]
        source = model.sources[f"{key}.text"]
        raw = (model.root / source.file).read_bytes()[source.offset : source.offset + source.nbytes]
        return unpack_hex(np.frombuffer(raw, np.uint8), dtype=recipe.dtype, shape=recipe.shape, **dict(recipe.attrs))

    return list(Interpreter(default().ops.by_name(), weight).run(model.module, main, list(inputs)))


def program(tmp_path: Path, body: str, signature: str = "", result: str = "tensor<2xf32>", trailer: str = "") -> Path:
    path = tmp_path / "program.mlir"
    path.write_text(f"func.func @main({signature}) -> {result} {{\n{body}\n}}\n{trailer}", encoding="utf-8")
    return path


def constant(tmp_path: Path, value: str, type_: str, trailer: str = "") -> Any:
    body = f"%0 = stablehlo.constant {value} : {type_}\nreturn %0 : {type_}"
    return run(program(tmp_path, body, result=type_, trailer=trailer))[0]


def c_division(a: Any, b: Any) -> Any:
    whole = np.array([0 if y == 0 else int(abs(int(x)) // abs(int(y))) for x, y in zip(a.flat, b.flat)])
    signs = np.where((a.ravel() < 0) != (b.ravel() < 0), -1, 1)
    return np.where(b.ravel() == 0, -1, whole * signs).astype(np.int64).astype(np.int32).reshape(a.shape)


def golden_expectations() -> dict[str, tuple[list[Any], list[Any]]]:
    table = np.random.default_rng(5).standard_normal((5, 3)).astype(np.float32)
    places = np.array([[0, 4, 2, 9], [1, 1, -3, 3]], np.int32)[..., None]
    columns, small = np.array([2, 0, 99, -1]), np.array([4, 200], np.uint8)
    a, b = (np.random.default_rng(6).standard_normal(s).astype(np.float32) for s in ((2, 4, 3), (2, 5, 3)))
    c = np.random.default_rng(7).standard_normal((3, 6)).astype(np.float32)
    above = X > Y
    sigmoid = 1 / (1 + np.exp(-X.astype(np.float64)))
    return {
        "arithmetic": ([X, Y], [X + Y, X + Y - Y, (X + Y) * Y, (X + Y) * Y / Y, np.maximum(X, Y), np.abs(X) ** Y]),
        "functions": (
            [X],
            [
                *(function(X) for function in (np.exp, np.tanh)),
                sigmoid,
                *(function(X) for function in (np.cos, np.sin, np.floor, np.ceil, np.rint, np.sign, np.negative)),
                *(function(np.abs(X)) for function in (np.abs, np.sqrt, np.log)),
            ],
        ),
        "compare_select": (
            [X, Y, np.array(False)],
            [above, np.where(above, X, Y), Y, above ^ (X <= Y), np.clip(X, -0.5, 0.5)],
        ),
        "shapes": (
            [X],
            [
                X.reshape(6),
                X.T,
                np.broadcast_to(X.T[:, None, :], (3, 4, 2)),
                np.concatenate([X, X]),
                X[1:2, 0:3:2],
                np.pad(X, ((1, 1), (0, 1)), constant_values=7),
                np.broadcast_to(np.arange(4, dtype=np.int32), (3, 4)),
                X[:, ::-1],
                np.concatenate([X, X])[1:],
            ],
        ),
        "gather": (
            [table, places, columns, small],
            [
                table[np.clip(places[..., 0], 0, 4)],
                table[:, np.clip(columns, 0, 2)],
                table[np.minimum(small, 4)].T,
                table[np.clip(columns, 0, 4)][None],
            ],
        ),
        "reduce": (
            [X, I, above],
            [X.sum(1), X.max(0), np.float32(X.sum() + 2.5), I.max(1), above.all(1), np.minimum(X.min(1), 2.5)],
        ),
        "convert": (
            [X, I, J],
            [
                X.astype(np.int32),
                X.astype(np.float16),
                to_bf16(X),
                I.astype(np.float32),
                I != 0,
                c_division(I, J),
                (I.astype(np.int64) - c_division(I, J).astype(np.int64) * J).astype(np.int32),
            ],
        ),
        "dot_general": (
            [a, b, c],
            [a @ b.transpose(0, 2, 1), a @ c, a[:, :, 0].T, np.einsum("abk,cdk->abcd", a, b)],
        ),
    }


@pytest.mark.parametrize("name", sorted(path.stem for path in GOLDEN.glob("*.mlir")))
def test_golden_file_equals_numpy(name: str) -> None:
    inputs, expected = golden_expectations()[name]
    found = run(GOLDEN / f"{name}.mlir", *inputs)
    assert len(found) == len(expected)
    for number, (got, want) in enumerate(zip(found, expected)):
        want = np.asarray(want)
        assert got.shape == want.shape, number
        if got.dtype.kind == "f":
            np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-6, err_msg=str(number))
        else:
            np.testing.assert_array_equal(got, want, err_msg=str(number))


# --- case A28 -----------------------------------------------------------------------------------


def test_a28_constants_as_printers_write_them(tmp_path: Path) -> None:
    np.testing.assert_array_equal(constant(tmp_path, 'dense<"0x0000803F00000040">', "tensor<2xf32>"), [1.0, 2.0])
    assert constant(tmp_path, "dense<0x7F800000>", "tensor<f32>") == np.inf
    assert np.isnan(constant(tmp_path, "dense<0x7FC00000>", "tensor<f32>"))
    np.testing.assert_array_equal(constant(tmp_path, "dense<1.5>", "tensor<2x2xf32>"), np.full((2, 2), 1.5))
    # A hexadecimal number is the bits of a float and the value of an integer.
    assert constant(tmp_path, "dense<0x7C00>", "tensor<f16>") == np.inf
    assert constant(tmp_path, "dense<0x7C00>", "tensor<i32>") == 31744
    assert np.isnan(from_bf16(constant(tmp_path, "dense<0x7FC0>", "tensor<bf16>")))
    np.testing.assert_array_equal(constant(tmp_path, "dense<[[1, -2], [3, 4]]>", "tensor<2x2xi64>"), [[1, -2], [3, 4]])
    np.testing.assert_array_equal(constant(tmp_path, "dense<[true, false]>", "tensor<2xi1>"), [True, False])
    np.testing.assert_array_equal(constant(tmp_path, "dense<[1.0, 0xFF800000]>", "tensor<2xf32>"), [1.0, -np.inf])
    assert constant(tmp_path, "dense<>", "tensor<0x3xf32>").shape == (0, 3)
    assert np.signbit(constant(tmp_path, "dense<-0.0>", "tensor<f32>"))
    assert constant(tmp_path, "dense<-9223372036854775808>", "tensor<i64>") == -(2**63)


def test_a28_resources_are_decoded_after_their_alignment(tmp_path: Path) -> None:
    trailer = '{-#\n  dialect_resources: {\n    builtin: {\n      w: "0x040000000000803F00000040"\n    }\n  }\n#-}\n'
    np.testing.assert_array_equal(constant(tmp_path, "dense_resource<w>", "tensor<2xf32>", trailer), [1.0, 2.0])
    with pytest.raises(MalformedModelError, match=r"program.mlir:2:\d+: the resource 'v' is not in"):
        constant(tmp_path, "dense_resource<v>", "tensor<2xf32>", trailer)
    with pytest.raises(MalformedModelError, match="takes 12 bytes, and the constant has 8"):
        constant(tmp_path, "dense_resource<w>", "tensor<3xf32>", trailer)


@pytest.mark.parametrize("resource", [False, True])
def test_large_constants_stay_in_the_file_as_weights(tmp_path: Path, resource: bool) -> None:
    values = np.random.default_rng(1).standard_normal((20, 30)).astype(np.float32)
    head = struct.pack("<I", 4) if resource else b""
    digits = "0x" + (head + values.tobytes()).hex().upper()
    trailer = f'{{-# dialect_resources: {{ builtin: {{ w: "{digits}" }} }} #-}}' if resource else ""
    value = "dense_resource<w>" if resource else f'dense<"{digits}">'
    body = f"// größer\n%0 = stablehlo.constant {value} : tensor<20x30xf32>\nreturn %0 : tensor<20x30xf32>"
    path = program(tmp_path, body, result="tensor<20x30xf32>", trailer=trailer)
    model = import_stablehlo(path, {})
    assert list(model.recipes) == ["constants.0"] and model.sources["constants.0.text"].format == "u8"
    np.testing.assert_array_equal(outputs(model)[0], values)
    path.write_text(path.read_text().replace("größer", "kleiner"))
    assert import_stablehlo(path, {}).header_hash != model.header_hash


def test_truth_values_in_bytes(tmp_path: Path) -> None:
    np.testing.assert_array_equal(constant(tmp_path, 'dense<"0x05">', "tensor<3xi1>"), [True, False, True])
    np.testing.assert_array_equal(constant(tmp_path, 'dense<"0xFF">', "tensor<3xi1>"), [True] * 3)
    np.testing.assert_array_equal(constant(tmp_path, 'dense<"0x010001">', "tensor<3xi1>"), [True, False, True])


REFUSED = {
    "dynamic": ("%arg0: tensor<?x4xf32>", "return %arg0 : tensor<?x4xf32>", r":1:\d+: the type tensor<\?x4xf32>"),
    "unknown op": (
        "%arg0: tensor<2xf32>",
        "%0 = stablehlo.fft %arg0, type = FFT : (tensor<2xf32>) -> tensor<2xf32>\nreturn %0 : tensor<2xf32>",
        r":2:6: the operation stablehlo.fft is not supported",
    ),
    "foreign op": (
        "%arg0: tensor<2xf32>",
        '%0 = "toy.thing"(%arg0) : (tensor<2xf32>) -> tensor<2xf32>\nreturn %0 : tensor<2xf32>',
        r":2:6: the operation toy.thing is not supported",
    ),
    "complex": ("%arg0: tensor<2xcomplex<f32>>", "return %arg0 : tensor<2xf32>", r":1:\d+: the type tensor<2xcomplex"),
    "f8": ("%arg0: tensor<2xf8E4M3FN>", "return %arg0 : tensor<2xf32>", r"element type 'f8E4M3FN' is not supported"),
    "attribute": (
        "%arg0: tensor<2xf32>",
        "%0 = stablehlo.iota dim = 0, step = 2 : tensor<2xf32>\nreturn %0 : tensor<2xf32>",
        r":2:6: the attribute 'step' of stablehlo.iota",
    ),
    "reduce body": (
        "%arg0: tensor<2x3xf32>, %arg1: tensor<f32>",
        "%0 = stablehlo.reduce(%arg0 init: %arg1) across dimensions = [1] : (tensor<2x3xf32>, tensor<f32>) -> "
        "tensor<2xf32>\nreducer(%a: tensor<f32>, %b: tensor<f32>) { %1 = stablehlo.add %a, %a : tensor<f32>\n"
        "stablehlo.return %1 : tensor<f32> }\nreturn %0 : tensor<2xf32>",
        r":2:6: a reduction is supported where",
    ),
}
DAMAGED = {
    "no value": ("", "return %0 : tensor<2xf32>", r":2:1: the value %0 is not defined"),
    "wrong type": (
        "%arg0: tensor<3xf32>",
        "return %arg0 : tensor<2xf32>",
        r"declared as tensor<2xf32>, and is f32\[3\]",
    ),
    "string": ("", '%0 = stablehlo.constant dense<"0x00', r":2:31: a string without end"),
    "odd digits": (
        "",
        '%0 = stablehlo.constant dense<"0x000000000000000"> : tensor<2xf32>\nreturn %0 : tensor<2xf32>',
        "pairs of digits",
    ),
    "no digits": (
        "",
        '%0 = stablehlo.constant dense<"0x00000000000000zz"> : tensor<2xf32>\nreturn %0 : tensor<2xf32>',
        "no hexadecimal digit",
    ),
    "lengths": (
        "",
        "%0 = stablehlo.constant dense<[1.0]> : tensor<2xf32>\nreturn %0 : tensor<2xf32>",
        "lists of other lengths",
    ),
    "end": ("%arg0: tensor<2xf32>", "%0 = stablehlo.add %arg0", r"not "),
    "no return": ("%arg0: tensor<2xf32>", "%0 = stablehlo.abs %arg0 : tensor<2xf32>", "@main does not return"),
    "twice": (
        "%arg0: tensor<2xf32>",
        "%0 = stablehlo.abs %arg0 : tensor<2xf32>\n%0 = stablehlo.abs %arg0 : tensor<2xf32>\nreturn %0 : tensor<2xf32>",
        r":3:6: the value %0 is defined twice",
    ),
    "nesting": ("", "%0 = stablehlo.constant dense<" + "[" * 5000, "nested deeper than 64"),
    "huge": ("%arg0: tensor<9999999999x9999999999xf32>", "return %arg0 : tensor<2xf32>", "more than .* elements"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_supported_is_refused_with_its_place(tmp_path: Path, case: str) -> None:
    signature, body, message = REFUSED[case]
    with pytest.raises(UnsupportedModelError, match=message):
        import_stablehlo(program(tmp_path, body, signature), {})


@pytest.mark.parametrize("case", DAMAGED)
def test_what_is_damaged_is_refused_with_its_place(tmp_path: Path, case: str) -> None:
    signature, body, message = DAMAGED[case]
    with pytest.raises(MalformedModelError, match=message):
        import_stablehlo(program(tmp_path, body, signature), {})


def test_calls_that_double_at_every_level_end_soon(tmp_path: Path) -> None:
    head = "func.func private @f{0}(%a: tensor<f32>) -> tensor<f32> {{\n"
    step = head + "%0 = call @f{1}(%a) : (tensor<f32>) -> tensor<f32>\n"
    step += "%1 = call @f{1}(%0) : (tensor<f32>) -> tensor<f32>\nreturn %1 : tensor<f32>\n}}\n"
    last = head.format(30) + "%0 = stablehlo.abs %a : tensor<f32>\nreturn %0 : tensor<f32>\n}\n"
    text = (
        "".join(step.format(number, number + 1) for number in range(30)).replace("private @f0", "public @main") + last
    )
    path = tmp_path / "program.mlir"
    path.write_text(text)
    with pytest.raises(UnsupportedModelError, match=r"more than .* operations"):
        import_stablehlo(path, {})


def test_a_function_that_calls_itself(tmp_path: Path) -> None:
    body = "%0 = call @main(%a) : (tensor<2xf32>) -> tensor<2xf32>\nreturn %0 : tensor<2xf32>"
    with pytest.raises(UnsupportedModelError, match="call each other"):
        import_stablehlo(program(tmp_path, body, "%a: tensor<2xf32>"), {})


# --- damaged text -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bytes], None]:
    path = tmp_path_factory.mktemp("fuzz") / "program.mlir"

    def read_bytes(data: bytes) -> None:
        path.write_bytes(data)
        began = time.process_time()
        with suppress(CacheIRError):
            import_stablehlo(path, {})
        assert time.process_time() - began < 2

    return read_bytes


TEXTS = [path.read_bytes() for path in sorted(GOLDEN.glob("*.mlir"))]
PIECES = st.sampled_from(
    b"""tensor<2x3xf32> %0 dense< "0x00" [ ] { } < > = : call @main stablehlo.reduce( 0x7F800000 -1 loc( {-# #-}
    9223372036854775807 #loc array<i64: \xff""".split()
)


@pytest.fixture(scope="module", autouse=True)
def little_memory() -> Iterator[None]:
    """Reading damaged files takes no memory to speak of."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10  # KiB


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(TEXTS), st.integers(0, 4000), st.integers(0, 40), PIECES | st.binary(max_size=8))
def test_a_changed_program_is_read_or_refused(
    read: Callable[[bytes], None], text: bytes, start: int, length: int, piece: bytes
) -> None:
    start %= len(text)
    read(text[:start] + piece + text[start + length :])


@pytest.mark.slow
@settings(max_examples=int(os.environ.get("SOAK_EXAMPLES", "4000")), deadline=None)
@given(st.sampled_from(TEXTS), st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 40), PIECES), max_size=5))
def test_many_changes_of_a_program(
    read: Callable[[bytes], None], text: bytes, changes: list[tuple[int, int, bytes]]
) -> None:
    for start, length, piece in changes:
        start %= len(text) + 1
        text = text[:start] + piece + text[start + length :]
    read(text)

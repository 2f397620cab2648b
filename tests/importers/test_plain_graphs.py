"""Plain graphs end to end: compile, execute on a backend and by the command, materialised, and as an artifact."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import cacheir
from cacheir.cli.execute import app
from cacheir.errors import UsageError

W = np.random.default_rng(0).standard_normal((40, 30)).astype(np.float32)
X = np.random.default_rng(1).standard_normal((5, 40)).astype(np.float32)
PROGRAM = f"""func.func @main(%x: tensor<5x40xf32>) -> (tensor<5x30xf32>, tensor<5x40xf32>) {{
  %w = stablehlo.constant dense<"0x{W.tobytes().hex()}"> : tensor<40x30xf32>
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
    : (tensor<5x40xf32>, tensor<40x30xf32>) -> tensor<5x30xf32>
  %1 = stablehlo.tanh %0 : tensor<5x30xf32>
  return %1, %x : tensor<5x30xf32>, tensor<5x40xf32>
}}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plain") / "model.stablehlo"
    path.write_text(PROGRAM)
    return path


def check(found: tuple[object, ...]) -> None:
    assert len(found) == 2
    np.testing.assert_allclose(found[0], np.tanh(X.astype(np.float64) @ W), rtol=1e-5, atol=1e-6)  # type: ignore[call-overload]
    np.testing.assert_array_equal(found[1], X)


@pytest.mark.parametrize("materialise", [False, True])
def test_compiled_and_executed(program: Path, tmp_path: Path, materialise: bool) -> None:
    artifact = cacheir.compile_model(program, output=tmp_path / "artifact", materialise=materialise)
    assert list(artifact.program.modules) == ["main"]
    check(cacheir.run_module(tmp_path / "artifact", {"x": X}))
    check(cacheir.run_module(artifact, [X]))


def test_from_the_cache(program: Path) -> None:
    check(cacheir.run_module(program, {"x": X}, backend="cpu"))
    check(cacheir.run_module(program, {"x": X}, backend="cpu"))


def test_a_backend_without_run_module_runs_it_by_meaning(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cacheir_cpu.executor import NumpyExecutor

    monkeypatch.delattr(NumpyExecutor, "run_module")
    said: list[str] = []
    check(cacheir.run_module(program, {"x": X}, backend="cpu", progress=said.append))
    assert any("runs by the meaning of its ops" in line for line in said)


def test_inputs_that_do_not_fit(program: Path) -> None:
    with pytest.raises(UsageError, match="takes the inputs x, not y"):
        cacheir.run_module(program, {"y": X}, backend="cpu")
    with pytest.raises(UsageError, match="input x must be an array of float32"):
        cacheir.run_module(program, {"x": X.astype(np.float64)}, backend="cpu")
    with pytest.raises(UsageError, match="input x: an axis of size 5"):
        cacheir.run_module(program, {"x": X[:4]}, backend="cpu")


def test_the_command(program: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    arguments = [str(program), "--input", f"x={tmp_path / 'x.npy'}", "--backend", "cpu"]
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.stdout)[0]["shape"] == [5, 30]
    assert CliRunner().invoke(app, [*arguments, "--output", str(tmp_path / "out.npz")]).exit_code == 0
    with np.load(tmp_path / "out.npz") as out:
        check((out["out0"], out["out1"]))


def test_the_command_never_unpickles(program: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([print], object), allow_pickle=True)
    result = CliRunner().invoke(app, [str(program), "--input", f"x={tmp_path / 'x.npy'}"])
    assert isinstance(result.exception, UsageError) and "no .npy file that can be read" in str(result.exception)


def test_a_decoder_is_no_plain_graph(tmp_path: Path) -> None:
    from cacheir_importers.tiny import write_tiny

    write_tiny(tmp_path / "tiny")
    with pytest.raises(UsageError, match="is a decoder, not a plain graph"):
        cacheir.run_module(tmp_path / "tiny", {}, backend="cpu")


def test_a_plain_graph_does_not_generate(program: Path) -> None:
    with pytest.raises(UsageError, match="has main but not prefill and decode"):
        cacheir.Runtime(program, backend="cpu")


def test_the_command_prints_what_is_no_number(program: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([[np.nan, np.inf, -np.inf]], np.float32))
    echo = tmp_path / "echo.stablehlo"
    echo.write_text("func.func @main(%x: tensor<1x3xf32>) -> tensor<1x3xf32> {\n  return %x : tensor<1x3xf32>\n}\n")
    done = CliRunner().invoke(app, [str(echo), "-i", f"x={tmp_path / 'x.npy'}", "--backend", "cpu"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)[0]["values"] == [["nan", "inf", "-inf"]]

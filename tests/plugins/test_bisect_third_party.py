"""``cacheir bisect`` names the pass, the rewrite and the kernel of a plugin that was installed as a distribution."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cacheir_importers.tiny import write_tiny

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Install = Callable[..., Path]

FAULTY_PASS = """
    from cacheir.ir import TensorType
    from cacheir.plugins import PassSpec, Stage, hookimpl


    def run(graph, context):
        "Scales what a gate lets through, once too often."

        def rule(op, rewriter):
            if op.name != "silu":
                return None
            (kept,) = rewriter.emit("silu", op.operands, [op.result.type], hint="kept")
            attrs = {"dtype": "f32", "shape": (), "values": (1.01,)}
            (scale,) = rewriter.emit("constant", (), [TensorType("f32", ())], attrs=attrs, hint="scale")
            return rewriter.emit("multiply", (kept, scale), [op.result.type], hint="louder")

        return context.rewrite(graph, rule)


    @hookimpl
    def cacheir_register_passes():
        yield PassSpec(
            name="louder", run=run, stage=Stage.LOGICAL, summary="Makes gates louder.", before=("fuse-swiglu",)
        )
"""
FAULTY_KERNEL = """
    from cacheir.plugins import KernelSpec, hookimpl


    def turned(a, b, out):
        out[...] = b - a


    @hookimpl
    def cacheir_register_kernels():
        yield KernelSpec(name="cpu.numpy.fast_add", op="add", target="cpu.numpy", entry=turned, rank=9)
"""
FAILING_PASS = """
    from cacheir.plugins import PassSpec, Stage, hookimpl


    def run(graph, context):
        if context.mode == "decode":
            raise KeyError("x")
        return graph


    @hookimpl
    def cacheir_register_passes():
        yield PassSpec(name="fails-late", run=run, stage=Stage.MODE, summary="Fails.")
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_tiny(tmp_path / "tiny")
    return tmp_path / "tiny"


def bisect(cacheir: Run, model: Path, *more: str) -> tuple[dict[str, Any], int]:
    done = cacheir("bisect", str(model), "--backend", "cpu", "--json", "--exit-code", *more)
    assert done.stdout, done.stderr
    return json.loads(done.stdout), done.returncode


def test_a_wrong_rewrite_of_a_third_party(install: Install, cacheir: Run, model: Path) -> None:
    install("cacheir-loud", "1.2", FAULTY_PASS)
    answer, code = bisect(cacheir, model)
    found = answer["finding"]
    assert (found["kind"], found["name"], found["plugin"]) == ("rewrite", "louder", "loud")
    assert (found["graph"], found["layer"], found["layers"]) == ("decoder_layer", 0, [0, 1])
    assert found["site"] >= 1
    assert "multiply" in found["diff"]
    assert code == 1
    right, code = bisect(cacheir, model, "--skip-pass", "louder")
    assert (right["is_right"], right["finding"], right["runs"], code) == (True, None, 1, 0)


def test_a_wrong_kernel_of_a_third_party(install: Install, cacheir: Run, model: Path) -> None:
    install("cacheir-fast", "0.1", FAULTY_KERNEL)
    answer, _ = bisect(cacheir, model, "--tokens", "5,6,7,8,9")
    found = answer["finding"]
    assert (found["kind"], found["name"], found["plugin"]) == ("kernel", "cpu.numpy.fast_add", "fast")
    assert (found["op"], found["graph"]) == ("add", "decoder_layer")
    assert answer["ids"] == [5, 6, 7, 8, 9]
    text = cacheir("bisect", str(model), "--backend", "cpu", "--prompt", "Hello")
    assert "kernel cpu.numpy.fast_add is wrong (plugin fast)" in text.stdout


def test_a_pass_of_a_third_party_that_raises(install: Install, cacheir: Run, model: Path) -> None:
    install("cacheir-late", "0.1", FAILING_PASS)
    answer, _ = bisect(cacheir, model)
    found = answer["finding"]
    assert (found["kind"], found["name"], found["plugin"]) == ("pass", "fails-late", "late")
    assert "raised KeyError" in found["error"]
    assert found["distance"] is None

"""Plain graphs that yield what they were given, a weight, or one value twice, in main and in a graph that it calls."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import cacheir
from cacheir.artifact.artifact import Artifact
from cacheir.artifact.card import CompileOptions
from cacheir.artifact.program_key import header_facts
from cacheir.compile_work import CompileWork
from cacheir.ir.parser import parse_module
from cacheir.models.imported import ImportedModel, WeightSource
from cacheir.plugins.installation import default

W = np.arange(12, dtype=np.float32).reshape(3, 4)
MAIN_ONLY = """
module logical

graph @main {
  dim T in [1, 8]
  input %x: f32[T, 4]
  weight @w: f32[3, 4] = stored "w"
  %y: f32[T, 4] = tanh(%x)
  %z: f32[T, 4] = tanh(%y)
  yield %x, @w, %y, %y, %z, %x
}
"""
CALLED = """
module logical

graph @main {
  dim T in [1, 8]
  input %x: f32[T, 4]
  %y: f32[T, 4] = tanh(%x)
  %a: f32[T, 4], %b: f32[3, 4], %c: f32[T, 4], %d: f32[T, 4] = call @inner(%y) {layer = 0}
  %e: f32[T, 4] = tanh(%a)
  %f: f32[3, 4] = tanh(%b)
  %g: f32[T, 4], %h: f32[3, 4], %i: f32[T, 4], %j: f32[T, 4] = call @inner(%d) {layer = 1}
  %k: f32[T, 4] = add(%c, %d)
  %l: f32[T, 4] = add(%k, %g)
  %m: f32[T, 4] = add(%i, %j)
  yield %e, %f, %l, %m, %h, %a
}

graph @inner {
  dim T in [1, 8]
  input %p: f32[T, 4]
  weight @w: f32[3, 4] = stored "w.$layer"
  %q: f32[T, 4] = negate(%p)
  yield %p, @w, %q, %q
}
"""


def compiled(text: str, backend: str, folder: Path) -> Artifact:
    file = folder / "weights.bin"
    file.write_bytes(b"".join((W * factor).tobytes() for factor in (1, 1, 2)))
    sources = {
        key: WeightSource(
            file=file.name, tensor=key, offset=number * W.nbytes, nbytes=W.nbytes, format="f32", shape=(3, 4)
        )
        for number, key in enumerate(("w", "w.0", "w.1"))
    }
    model = ImportedModel(
        root=folder,
        files=(file.name,),
        importer="none",
        header_hash="0" * 64,
        sources=sources,
        module=replace(parse_module(text), mode=""),
    )
    work = CompileWork.begin(CompileOptions(target=backend), default(), None)
    return work.in_memory(work.compile(model, header_facts(model)), folder)


@pytest.mark.parametrize("backend", ["cpu", "native"])
def test_main_yields_anything(backend: str, tmp_path: Path) -> None:
    x = np.random.default_rng(5).standard_normal((5, 4)).astype(np.float32)
    found = cacheir.run_module(compiled(MAIN_ONLY, backend, tmp_path), [x], backend=backend)
    y = np.tanh(x.astype(np.float64))
    for got, wanted in zip(found, (x, W, y, y, np.tanh(y), x), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-7)
    found[0][...] = 7  # what comes back is the caller's own
    assert not (x == 7).any()


@pytest.mark.parametrize("backend", ["cpu", "native"])
def test_a_called_graph_yields_anything(backend: str, tmp_path: Path) -> None:
    x = np.random.default_rng(6).standard_normal((5, 4)).astype(np.float32)
    found = cacheir.run_module(compiled(CALLED, backend, tmp_path), [x], backend=backend)
    y = np.tanh(x.astype(np.float64))
    wanted = (np.tanh(y), np.tanh(W.astype(np.float64)), -y - y - y, y + y, 2 * W, y)
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)

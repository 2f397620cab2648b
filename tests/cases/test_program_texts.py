"""Programs and templates from bug reports: StableHLO that no grammar mentions, hostile templates (A28, A29)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from case_files import gguf_twin

import cacheir
from cacheir.cli.main import run
from cacheir_importers.gguf.writer import write_gguf

Refused = Callable[..., str]
DAMAGED, UNSUPPORTED, REQUEST = 11, 4, 10

# What real printers write: bytes, bits, splats, a resource in the trailer, both forms of a reduction, comments, places.
PROGRAM = """// the first line is a comment
module @case attributes {mhlo.num_partitions = 1 : i32} {
  func.func public @main(%arg0: tensor<2x3xf32> loc("x")) -> (tensor<2xf32>, tensor<f32>, tensor<2x2xf32>, \
tensor<2xf32>, tensor<2xf32>, tensor<2xf32>) {
    %bytes = stablehlo.constant dense<"0x0000803F00000040"> : tensor<2xf32> loc(#loc1)
    %bits = stablehlo.constant dense<0x7F800000> : tensor<f32>
    %splat = stablehlo.constant dense<1.5> : tensor<2x2xf32>
    %held = stablehlo.constant dense_resource<w> : tensor<2xf32>
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %short = stablehlo.reduce(%arg0 init: %zero) applies stablehlo.add across dimensions = [1] : \
(tensor<2x3xf32>, tensor<f32>) -> tensor<2xf32> // after an operation
    %long = stablehlo.reduce(%arg0 init: %zero) across dimensions = [1] : \
(tensor<2x3xf32>, tensor<f32>) -> tensor<2xf32>
     reducer(%a: tensor<f32>, %b: tensor<f32>)  {
      %s = stablehlo.add %a, %b : tensor<f32> loc(fused<"f">["p"("q":1:2), callsite("r" at "s":3:4)])
      stablehlo.return %s : tensor<f32> loc(unknown)
    }
    return %bytes, %bits, %splat, %held, %short, %long : tensor<2xf32>, tensor<f32>, tensor<2x2xf32>, tensor<2xf32>, \
tensor<2xf32>, tensor<2xf32> loc(#loc)
  }
}
#loc = loc(unknown)
#loc1 = loc("file.py":7:0)
{-#
  dialect_resources: {
    builtin: {
      w: "0x040000000000803F00000040"
    }
  }
#-}
"""


def test_a28_a_program_as_printers_write_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.stablehlo").write_text(PROGRAM)
    assert run(["compile", str(tmp_path / "model.stablehlo"), "--output", str(tmp_path / "artifact")]) == 0, (
        capsys.readouterr().err
    )
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    found = cacheir.run_module(tmp_path / "artifact", {"arg0": x})
    expected = [[1.0, 2.0], np.inf, np.full((2, 2), 1.5), [1.0, 2.0], x.sum(1), x.sum(1)]
    for got, want in zip(found, expected, strict=True):
        np.testing.assert_array_equal(got, np.array(want, np.float32))


FAULTS: dict[str, tuple[str, str, int, tuple[str, ...]]] = {
    "a size that is open": (
        "func.func @main(%a: tensor<?x4xf32>) -> tensor<?x4xf32> {\n",
        "return %a : tensor<?x4xf32>\n}",
        UNSUPPORTED,
        ("model.stablehlo:1:", "tensor<?x4xf32>"),
    ),
    "an operation that nobody knows": (
        "func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> {\n",
        '  %0 = "stablehlo.nonsense"(%a) : (tensor<2xf32>) -> tensor<2xf32>\nreturn %0 : tensor<2xf32>\n}',
        UNSUPPORTED,
        ("model.stablehlo:2:", "stablehlo.nonsense is not supported"),
    ),
    "a resource without its bytes": (
        "func.func @main() -> tensor<2xf32> {\n",
        "%0 = stablehlo.constant dense_resource<w> : tensor<2xf32>\nreturn %0 : tensor<2xf32>\n}",
        DAMAGED,
        ("model.stablehlo:2:", "the resource 'w' is not in the file"),
    ),
    "half a program": (
        "func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> {\n",
        "%0 = stablehlo.add %a, %a : tensor<2xf32>\n",
        DAMAGED,
        ("model.stablehlo:",),
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a28_what_cannot_be_read_has_its_place(refused: Refused, tmp_path: Path, name: str) -> None:
    head, body, code, parts = FAULTS[name]
    (tmp_path / "model.stablehlo").write_text(head + body)
    refused(tmp_path / "model.stablehlo", code, *parts)


# What is wrong with its spelling is the file's fault, what it does when it runs is the request's.
TEMPLATES = {
    "subclasses": ("{{ ''.__class__.__mro__[1].__subclasses__() }}", REQUEST, "chat template"),
    "globals": (
        "{{ cycler.__init__.__globals__.os.system('touch ' + messages[0].content) }}",
        REQUEST,
        "chat template",
    ),
    "a long loop": ("{% for i in range(10**9) %}x{% endfor %}", REQUEST, "chat template"),
    "a long text": ("{{ 'a' * 10**9 }}", REQUEST, "chat template"),
    "its own objection": ("{{ raise_exception('no system role') }}", REQUEST, "no system role"),
    "a tag without end": ("{% if messages %}", DAMAGED, "chat template"),
}


def written(place: Path, tiny_folder: Path, folder: Callable[..., Path], template: str) -> Path:
    """The tiny model with ``template``, in the file's own metadata or in a tokenizer_config.json."""
    if place.suffix == ".gguf":
        metadata, tensors = gguf_twin(tiny_folder)
        library = json.loads((tiny_folder / "tokenizer.json").read_text())
        vocabulary = library["model"]["vocab"] | {token["content"]: token["id"] for token in library["added_tokens"]}
        merges = [" ".join(merge) if isinstance(merge, list) else merge for merge in library["model"]["merges"]]
        metadata |= {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": sorted(vocabulary, key=vocabulary.__getitem__),
            "tokenizer.ggml.token_type": [3] * 3 + [1] * (len(vocabulary) - 3),
            "tokenizer.ggml.merges": merges,
            "tokenizer.ggml.eos_token_id": 1,
            "tokenizer.chat_template": template,
        }
        write_gguf(place, metadata, tensors)
        return place
    path = folder()
    config = json.loads((path / "tokenizer_config.json").read_text())
    (path / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": template}))
    return path


@pytest.mark.parametrize(
    ("name", "form"),
    [*((name, "folder") for name in TEMPLATES), ("globals", "model.gguf"), ("a long text", "model.gguf")],
)
def test_a29_templates_of_a_model_run_in_a_sandbox(
    warm: None,
    tmp_path: Path,
    tiny_folder: Path,
    folder: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
    name: str,
    form: str,
) -> None:
    source, wanted, problem = TEMPLATES[name]
    path, marker = written(tmp_path / form, tiny_folder, folder, source), tmp_path / "marker"
    capsys.readouterr()
    began = time.process_time()
    code = run(["run", str(path), "--backend", "cpu", "--chat", "--prompt", str(marker), "--max-new-tokens", "1"])
    said = capsys.readouterr()
    assert (code, said.out) == (wanted, "")
    (line,) = [line for line in said.err.splitlines() if line.startswith("error: ")]
    assert problem in line and "Traceback" not in said.err
    assert time.process_time() - began < 20
    assert not marker.exists()


def test_a29_a_template_that_does_no_harm_is_rendered(
    tmp_path: Path, tiny_folder: Path, folder: Callable[..., Path]
) -> None:
    source = "{% for m in messages %}<|turn|>{{ m.content }}<|end|>{% endfor %}"
    made: list[Any] = []
    for form in ("folder", "model.gguf"):
        with cacheir.Runtime(written(tmp_path / form, tiny_folder, folder, source), "cpu") as runtime:
            made.append(runtime.chat_ids([{"role": "user", "content": "hello"}]))
    assert made[0] == made[1] and len(made[0]) > 2

"""`cacheir gguf` lists files that can be run and files that cannot (case A11), and prints nothing that they say raw."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cacheir.errors import MalformedModelError
from cacheir_importers.gguf.show_header import show_header
from cacheir_importers.gguf.writer import TensorData

Build = Callable[..., Path]


@pytest.fixture
def unknown(gguf_file: Build) -> Path:
    """A file that needs a tensor of the unknown type 156, with a name that would clear a screen."""
    path = gguf_file({"general.name": "a\x1b[2Jb" + "x" * 200}, {"\x1bextra": TensorData("I8", (8,), bytes(8))})
    content = path.read_bytes()
    for name, axes in ((b"extra", 1), (b"blk.0.ffn_up.weight", 2)):
        place = content.index(name) + len(name) + 4 + 8 * axes
        content = content[:place] + (156).to_bytes(4, "little") + content[place + 4 :]
    path.write_bytes(content)
    return path


def test_a11_every_tensor_is_listed(unknown: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show_header(unknown)
    shown = capsys.readouterr().out
    lines = shown.splitlines()
    assert lines[0].startswith("small.gguf: GGUF version 3, 18 values, 21 tensors, data from byte ")
    assert any(line.startswith("blk.0.ffn_up.weight  type 156 (unknown)  [96, 64]  ? bytes at ") for line in lines)
    assert any(line.startswith('"\\u001bextra"  type 156 (unknown)  [8]') for line in lines)
    assert any(line.startswith("blk.1.attn_k.weight  F32  [32, 64]  8,192 bytes at ") for line in lines)
    assert "\x1b" not in shown and max(map(len, lines)) < 300
    assert any(
        line.endswith(" in all]") and line.startswith("tokenizer.ggml.tokens (array of string) = [") for line in lines
    )


def test_json_has_everything(unknown: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show_header(unknown, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["files"] == ["small.gguf"] and found["version"] == 3
    assert found["metadata"]["llama.block_count"] == {"type": "u32", "value": 2}
    assert len(found["metadata"]["tokenizer.ggml.tokens"]["value"]) == 263
    types = {tensor["name"]: tensor["type"] for tensor in found["tensors"]}
    assert len(types) == 21 and types["\x1bextra"] == "type 156 (unknown)"


def test_numbers_that_json_cannot_say(gguf_file: Build, capsys: pytest.CaptureFixture[str]) -> None:
    show_header(gguf_file({"x.nan": float("nan"), "x.list": [float("inf"), 1.5]}), as_json=True)
    metadata = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["metadata"]
    assert metadata["x.nan"]["value"] == "nan" and metadata["x.list"]["value"] == ["inf", 1.5]


def test_a_damaged_file_is_refused_as_everywhere(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    with pytest.raises(MalformedModelError, match=r"a\.gguf: version at byte 4 needs 4 bytes"):
        show_header(tmp_path / "a.gguf")

"""What two artifacts do not have in common is told by section, and equal ones have no difference."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cacheir.artifact.artifact import Artifact
from cacheir.artifact.difference import SECTIONS, differences
from cacheir.compile import compile_model
from cacheir.plugins.installation import Installation

Compiled = Callable[..., Artifact]


@pytest.fixture
def compiled(cache: Path, installation: Installation, model: Path, tmp_path: Path) -> Compiled:
    def make(name: str, path: Path = model, **options: Any) -> Artifact:
        return compile_model(path, target="fake", output=tmp_path / name, installation=installation, **options)

    return make


def by_section(first: Artifact, second: Artifact) -> dict[str, dict[str, tuple[str | None, str | None]]]:
    found: dict[str, dict[str, tuple[str | None, str | None]]] = {}
    for change in differences(first, second):
        found.setdefault(change.section, {})[change.what] = (change.before, change.after)
    return found


def test_equal_compiles_have_no_difference(compiled: Compiled) -> None:
    assert differences(compiled("a"), compiled("b")) == ()


def test_a_pass_that_was_left_out(compiled: Compiled) -> None:
    found = by_section(compiled("a"), compiled("b", skip_passes=["fuse-swiglu"]))
    assert found["options"] == {"skip_passes": ("none", "fuse-swiglu")}
    before, after = found["passes"]["fuse-swiglu"]
    assert before is not None and before.startswith("changed") and after is None
    kernels = found["kernels"]
    assert kernels["%product (fused_swiglu) of @decoder_layer, decode"][1] is None
    assert kernels["%product (multiply) of @decoder_layer, decode"][0] is None
    assert any(what.startswith("@decoder_layer of decode") for what in found["graphs"])
    assert "model" not in found and "plugins" not in found and "weights" not in found
    assert list(found) == [section for section in SECTIONS if section in found]


def test_other_limits_and_a_forced_kernel(compiled: Compiled) -> None:
    found = by_section(compiled("a"), compiled("b", max_rows=2, kernels={"rms_norm": "reference"}))
    assert found["options"]["max_rows"] == ("8", "2")
    assert found["options"]["kernels"] == ("none", "rms_norm=reference")
    assert all(after == "its meaning" for what, (_, after) in found["kernels"].items() if "(rms_norm)" in what)
    before, after = found["sizes"]["arena of prefill, bytes"]
    assert before is not None and after is not None and int(before) > int(after)


def test_another_model(compiled: Compiled, write_fake: Callable[..., Path], tmp_path: Path) -> None:
    other = write_fake(tmp_path / "other" / "tiny.fake", kind="grouped")
    found = by_section(compiled("a"), compiled("b", path=other))
    assert "headers" in found["model"]
    weights = found["weights"]['stored "layers.0.attn.q"']
    assert weights[0] is not None and "q4_0" in weights[0] and weights[1] is not None and "f32 4096 B" in weights[1]
    before, after = found["sizes"]["weights, bytes"]
    assert before is not None and after is not None and int(before) < int(after)

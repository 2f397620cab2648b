"""A fault inside a third-party plugin is named with the plugin: one of plugins-example, spoilt in one place."""

from __future__ import annotations

from pathlib import Path

import pytest

from cacheir.bisection import bisect_model
from cacheir.testing import plugin_host

EXAMPLE = Path(__file__).parents[2] / "plugins-example" / "cacheir-drop-reshape" / "src" / "cacheir_drop_reshape.py"
RULE = 'if op.name == "reshape" and op.result.type == op.operands[0].type:'
FAULT = """if op.name == "add" and op.result.type == op.operands[1].type:
            # The mistake: a residual connection is no reshape, and what it adds is lost.
            return [op.operands[1]]
        """


@pytest.mark.parametrize("faulty", [True, False])
def test_a_third_party_pass_is_named(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faulty: bool) -> None:
    source = EXAMPLE.read_text(encoding="utf-8")
    assert source.count(RULE) == 1
    name = "third_party_faulty" if faulty else "third_party_sound"
    text = source.replace(RULE, FAULT + RULE) if faulty else source
    (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    installation = plugin_host("cacheir_cpu.plugin", "cacheir_importers.plugin", name)
    found = bisect_model(tiny, backend="cpu", installation=installation)
    if not faulty:
        assert found.finding is None
        return
    assert found.finding is not None
    assert (found.finding.kind, found.finding.name, found.finding.plugin) == ("rewrite", "drop-reshape", name)
    assert (found.finding.graph, found.finding.layer) == ("decoder_layer", 0)
    assert "add(" in found.finding.diff

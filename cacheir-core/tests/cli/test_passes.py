"""``cacheir passes`` says for which targets a pass is, whether or not one was named."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from cacheir.cli.passes import _because
from cacheir.pipeline.program import PipelineOptions, pipeline_order
from cacheir.plugins import PassSpec, Stage, hookimpl
from cacheir.testing import plugin_host


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("", "; for the targets cuda only"),
        ("cpu", "; skipped here: only for the targets cuda"),
        ("cuda", "no order declared: by name"),
    ],
)
def test_the_targets_of_a_pass(target: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def cacheir_register_passes() -> list[PassSpec]:
        return [PassSpec(name="limited", run="a:b", stage=Stage.TARGET, summary="", targets=("cuda",))]

    module = ModuleType("limited_plugin")
    module.cacheir_register_passes = hookimpl(cacheir_register_passes)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    order = pipeline_order(plugin_host(module.__name__).passes.contributions, PipelineOptions(target=target))
    (place,) = (place for place in order if place.name == "limited")
    assert _because(place, target).endswith(says)

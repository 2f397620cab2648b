"""The native backend over tiny models, held to equal bits: with activations in f32, and with rounded ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from cacheir.testing import BackendTests, PluginTests


class TestPlugin(PluginTests):
    plugin = "cacheir_native.plugin"


class TestPreciseBackend(BackendTests):
    plugin = "cacheir_native.plugin"
    backend = "native"
    options: ClassVar[Mapping[str, Any]] = {"precise": True}
    page_tokens = 16
    traces, trace_steps = 64, 10_000

    def test_it_states_bit(self) -> None:
        with self.open() as opened:
            assert opened.executor.capabilities().determinism == "bit"

    @pytest.mark.slow
    def test_the_engine_changes_nothing_for_long(self, decoder: str) -> None:
        assert self.check_traces(decoder, 300) > 10_000


class TestRoundedBackend(TestPreciseBackend):
    """Activations have 8 bits: 1 / 254 of a block's largest for each factor, over a few layers."""

    options: ClassVar[Mapping[str, Any]] = {}
    tolerance = 0.05

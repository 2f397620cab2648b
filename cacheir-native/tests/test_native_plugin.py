"""The native plugin registers one backend, and the backend's probe says why it cannot run."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from cacheir.errors import BackendUnavailable
from cacheir.plugins import resolve
from cacheir_native import plugin, probe


def test_probe_names_the_extension_that_is_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "EXTENSION", "cacheir_native._missing")
    reason = probe.why_unavailable()
    assert reason is not None
    assert "cacheir_native._missing is not built" in reason


def test_extension_is_where_the_probe_looks() -> None:
    assert importlib.util.find_spec(probe.EXTENSION) is not None


def test_probe_gives_another_reason_where_the_extension_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "EXTENSION", "json.decoder")  # some module that is there
    reason = probe.why_unavailable()
    assert reason is not None
    assert "no executor" in reason
    assert "not built" not in reason


def test_references_of_the_backend_resolve_to_the_probe() -> None:
    (backend,) = plugin.cacheir_register_backends()
    assert backend.name == "native"
    assert resolve(backend.probe) is probe.why_unavailable
    assert resolve(backend.executor) is probe.refuse_to_open


def test_opening_the_backend_raises_the_probes_reason() -> None:
    (backend,) = plugin.cacheir_register_backends()
    with pytest.raises(BackendUnavailable, match="cannot run") as caught:
        resolve(backend.executor)(object())
    assert caught.value.hint


def test_asking_twice_gives_equal_records() -> None:
    assert plugin.cacheir_register_backends() == plugin.cacheir_register_backends()
    assert plugin.cacheir_plugin_info() == plugin.cacheir_plugin_info()


def test_loading_the_plugin_imports_nothing_heavy() -> None:
    code = "import sys, cacheir_native.plugin; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert "cacheir_native" in loaded
    assert not {"numpy", "torch", "triton", "typer", "jinja2"} & set(loaded)

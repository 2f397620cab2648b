"""The author's test kit: subclass a class of checks, name the plugin, done. Each is imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cacheir.testing.backend_tests import BackendTests
    from cacheir.testing.family_tests import FamilyTests
    from cacheir.testing.hosts import plugin_host
    from cacheir.testing.importer_tests import ImporterTests
    from cacheir.testing.kernel_tests import KernelTests
    from cacheir.testing.pass_tests import PassTests
    from cacheir.testing.plugin_tests import PluginTests
    from cacheir.testing.quant_tests import QuantTests

__all__ = [
    "BackendTests",
    "FamilyTests",
    "ImporterTests",
    "KernelTests",
    "PassTests",
    "PluginTests",
    "QuantTests",
    "plugin_host",
]

_PLACES = {
    "BackendTests": "cacheir.testing.backend_tests:BackendTests",
    "FamilyTests": "cacheir.testing.family_tests:FamilyTests",
    "ImporterTests": "cacheir.testing.importer_tests:ImporterTests",
    "KernelTests": "cacheir.testing.kernel_tests:KernelTests",
    "PassTests": "cacheir.testing.pass_tests:PassTests",
    "PluginTests": "cacheir.testing.plugin_tests:PluginTests",
    "QuantTests": "cacheir.testing.quant_tests:QuantTests",
    "plugin_host": "cacheir.testing.hosts:plugin_host",
}


def __getattr__(name: str) -> Any:
    """Import what is named on first use (PEP 562)."""
    if name not in _PLACES:
        raise AttributeError(f"module 'cacheir.testing' has no attribute {name!r}")
    from cacheir.plugins.ref import import_target

    return import_target(_PLACES[name])

"""The author's test kit: subclass a class of checks, name the plugin, done. Each is imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cacheir.testing.family_tests import FamilyTests
    from cacheir.testing.hosts import plugin_host
    from cacheir.testing.kernel_tests import KernelTests
    from cacheir.testing.pass_tests import PassTests
    from cacheir.testing.plugin_tests import PluginTests

__all__ = ["FamilyTests", "KernelTests", "PassTests", "PluginTests", "plugin_host"]

_PLACES = {
    "FamilyTests": "cacheir.testing.family_tests:FamilyTests",
    "KernelTests": "cacheir.testing.kernel_tests:KernelTests",
    "PassTests": "cacheir.testing.pass_tests:PassTests",
    "PluginTests": "cacheir.testing.plugin_tests:PluginTests",
    "plugin_host": "cacheir.testing.hosts:plugin_host",
}


def __getattr__(name: str) -> Any:
    """Import what is named on first use (PEP 562)."""
    if name not in _PLACES:
        raise AttributeError(f"module 'cacheir.testing' has no attribute {name!r}")
    from cacheir.plugins.ref import import_target

    return import_target(_PLACES[name])

"""An installation for tests, which holds core and the plugins that the test names, and nothing from the environment."""

from __future__ import annotations

from cacheir.plugins.host import Host, HostOptions
from cacheir.plugins.installation import Installation


def plugin_host(*modules: str, strict: bool = True) -> Installation:
    """Core with the plugins ``modules`` (``module``, ``module:attribute`` or ``name=module``).

    ``strict`` makes any problem of a plugin a ``PluginLoadError``, so that a test does not pass without the plugin.
    """
    return Installation(Host(HostOptions(modules=modules, strict=strict, points=())))

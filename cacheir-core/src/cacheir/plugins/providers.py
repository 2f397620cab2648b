"""Which package of this tree has what: hints for names that are known and not installed."""

from __future__ import annotations

from collections.abc import Iterable

from cacheir.plugins.plugin import Plugin

# kind, name -> (plugin, distribution)
_PROVIDERS = {
    ("command", "serve"): ("server", "cacheir-server"),
    ("command", "make-tiny"): ("importers", "cacheir-importers"),
    ("backend", "cpu"): ("cpu", "cacheir-cpu"),
    ("backend", "native"): ("native", "cacheir-native"),
    ("backend", "cuda"): ("cuda", "cacheir-cuda"),
    ("importer", "huggingface"): ("importers", "cacheir-importers"),
    ("importer", "gguf"): ("importers", "cacheir-importers"),
    ("family", "llama"): ("importers", "cacheir-importers"),
    ("model", "smollm2"): ("importers", "cacheir-importers"),
}


def hint_for(kind: str, name: str, plugins: Iterable[Plugin]) -> str:
    """Where ``name`` would come from and why it is not here; "" where no package of the tree has it.

    The command installs from a checkout: nobody owns these packages' names on an index.
    """
    if (kind, name) not in _PROVIDERS:
        return ""
    plugin_name, distribution = _PROVIDERS[kind, name]
    for plugin in plugins:
        if plugin.name != plugin_name:
            continue
        if plugin.state == "blocked":
            return f"it is in {distribution}, which CACHEIR_PLUGINS or CACHEIR_BLOCK_PLUGINS leaves out"
        if plugin.problems:
            return f"it is in {distribution}, which is at fault: cacheir plugins doctor {plugin.name}"
        return f"it is in a later version of {distribution} than {plugin.version}"
    return f"it is in {distribution}: pip install ./{distribution} in a checkout of CacheIR"

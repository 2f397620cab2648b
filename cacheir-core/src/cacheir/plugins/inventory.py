"""What is installed, as rows: plugins with what they provide, hooks with who implements them, things of one kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cacheir.errors import CacheIRError
from cacheir.plugins.check_module import arguments, hook_specs
from cacheir.plugins.fault_text import fault_text
from cacheir.plugins.host import Host
from cacheir.plugins.installation import Installation
from cacheir.plugins.kinds import KINDS, Kind
from cacheir.plugins.plugin import Plugin
from cacheir.plugins.ref import resolve
from cacheir.plugins.specs import BackendSpec
from cacheir.quick_dataclass import dataclass


@dataclass(frozen=True, kw_only=True)
class PluginRow:
    """One plugin. ``provides`` counts its contributions by the plural of their kind; ``idle`` is backend -> reason."""

    plugin: Plugin
    summary: str
    provides: dict[str, int]
    idle: dict[str, str]

    def provides_text(self) -> str:
        """``1 backend (idle: no libcuda.so.1), 38 kernels``."""
        parts = []
        for kind in KINDS:
            count = self.provides.get(kind.plural, 0)
            if count:
                reasons = "; ".join(dict.fromkeys(self.idle.values())) if kind.name == "backend" else ""
                parts.append(
                    f"{count} {kind.name if count == 1 else kind.plural}" + (f" (idle: {reasons})" * bool(reasons))
                )
        return ", ".join(parts)


@dataclass(frozen=True, kw_only=True)
class HookRow:
    """One hook: its arguments, level, the hook API that first had it, and the plugins that implement it, in order."""

    name: str
    arguments: tuple[str, ...]
    level: str
    since: str
    summary: str
    implementers: tuple[str, ...]


def plugin_rows(installation: Installation) -> list[PluginRow]:
    """Every plugin, core first, after asking all of them for everything."""
    counts: dict[str, dict[str, int]] = {}
    for registry in installation.registries():
        for contribution in registry.contributions:
            of_plugin = counts.setdefault(contribution.plugin.name, {})
            of_plugin[registry.kind.plural] = of_plugin.get(registry.kind.plural, 0) + 1
    return [
        PluginRow(
            plugin=plugin,
            summary=_summary(installation.host, plugin),
            provides=counts.get(plugin.name, {}),
            idle=idle_backends(installation, plugin),
        )
        for plugin in installation.plugins
    ]


def idle_backends(installation: Installation, plugin: Plugin) -> dict[str, str]:
    """Backend -> why it cannot run here, for the backends of ``plugin`` that cannot."""
    reasons = {}
    for contribution in installation.backends.contributions:
        if contribution.plugin is plugin:
            reason = probe(contribution.spec)
            if reason is not None:
                reasons[contribution.spec.name] = reason
    return reasons


def probe(spec: BackendSpec) -> str | None:
    """Why a backend cannot run here, None where it can. A probe that raises is a reason too."""
    try:
        answer = resolve(spec.probe)()
    except CacheIRError as error:
        return str(error)
    # A probe looks at drivers and libraries, which fail in their own ways; listing must go on.
    except Exception as error:  # noqa: BLE001
        return f"its probe raised {type(error).__name__}: {fault_text(error)}"
    return None if answer is None else str(answer)


def hook_rows(installation: Installation) -> list[HookRow]:
    """Every hook, in the order in which ``hookspecs.py`` declares them."""
    return [
        HookRow(
            name=name,
            arguments=arguments(function),
            level=function.cacheir_level,  # type: ignore[attr-defined]
            since=".".join(map(str, function.cacheir_since)),  # type: ignore[attr-defined]
            summary=(function.__doc__ or "").strip().partition("\n")[0],
            implementers=tuple(plugin.name for plugin in installation.host.implementers(name)),
        )
        for name, function in hook_specs().items()
    ]


def kind_rows(installation: Installation, kind: Kind) -> list[dict[str, Any]]:
    """Everything of one kind: name, plugin, level, and what tells one from another."""
    extra: Callable[[Any], dict[str, Any]] = _EXTRA.get(kind.name, lambda spec: {})
    rows = []
    for contribution in installation.registry(kind).contributions:
        spec = contribution.spec
        rows.append(
            {"name": spec.name, "plugin": contribution.plugin.name, **extra(spec), "summary": _first_line(spec)}
        )
    return sorted(rows, key=lambda row: str(row["name"]))


_EXTRA: dict[str, Callable[[Any], dict[str, Any]]] = {
    "op": lambda spec: {"dialect": spec.dialect},
    "pass": lambda spec: {"stage": str(spec.stage), "default": spec.default},
    "kernel": lambda spec: {"op": spec.op, "target": spec.target, "rank": spec.rank},
    "backend": lambda spec: {"targets": list(spec.targets), "idle": probe(spec) or ""},
    "quant format": lambda spec: {"bits_per_weight": spec.bits_per_weight},
    "family": lambda spec: {"architectures": [*spec.architectures, *spec.gguf_architectures]},
    "model": lambda spec: {"distribution": spec.distribution, "license": spec.license},
}


def _first_line(spec: Any) -> str:
    text = getattr(spec, "summary", "") or getattr(spec, "help", "") or getattr(spec, "doc", "")
    return str(text).strip().partition("\n")[0]


def _summary(host: Host, plugin: Plugin) -> str:
    from cacheir.plugins.distributions import summary
    from cacheir.plugins.specs import PluginInfo

    info = host.info(plugin)
    if isinstance(info, PluginInfo):
        return info.summary
    return summary(plugin.folder) if plugin.folder else ""

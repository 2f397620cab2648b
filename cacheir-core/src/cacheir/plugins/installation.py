"""All registries of one host, as attributes: ``installation.passes["dead-code"]``."""

from __future__ import annotations

from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from cacheir.errors import PluginError
from cacheir.plugins import specs
from cacheir.plugins.host import Host, HostOptions
from cacheir.plugins.kinds import KINDS, Kind
from cacheir.plugins.plugin import Plugin
from cacheir.plugins.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cacheir.ir.graph import Op
    from cacheir.ir.opdef import OpDef


class Installation:
    """What is installed: one registry for each kind, filled on first use.

    Functions that need it take it as an argument, so that tests make their own; ``default()`` is the process's.
    """

    def __init__(self, host: Host) -> None:
        self.host = host

    @property
    def plugins(self) -> list[Plugin]:
        """Every plugin, loaded."""
        return self.host.load()

    def registry(self, kind: Kind) -> Registry[Any]:
        """The registry of ``kind``."""
        found = getattr(self, kind.attribute)
        assert isinstance(found, Registry)
        return found

    def registries(self) -> list[Registry[Any]]:
        """All registries, in the order of ``KINDS``."""
        return [self.registry(kind) for kind in KINDS]

    def observe(self, hook: str, **arguments: Any) -> None:
        """Tell every plugin's observer of ``hook``; one that raises is reported and passed over."""
        self.host.observe(hook, **arguments)

    def select_kernel(
        self, op: Op, candidates: Sequence[specs.KernelSpec], target: str, mode: str
    ) -> specs.KernelChoice | None:
        """The first plugin's choice of a kernel, None where none chooses.

        ``PluginError`` where the choice is not one of ``candidates``.
        """
        found = self.host.select("cacheir_select_kernel", op=op, candidates=candidates, target=target, mode=mode)
        if found is None:
            return None
        choice, plugin = found
        if isinstance(choice, specs.KernelChoice) and choice.kernel in candidates:
            return choice
        raise PluginError(
            f"plugin {plugin.label} chose for {op.name} what is none of the candidates: {choice!r}",
            hint=f"set CACHEIR_BLOCK_PLUGINS={plugin.name}",
        )

    def _registry(self, plural: str) -> Registry[Any]:
        return Registry(self.host, next(kind for kind in KINDS if kind.plural == plural))

    @cached_property
    def ops(self) -> Registry[OpDef]:
        return self._registry("ops")

    @cached_property
    def passes(self) -> Registry[specs.PassSpec]:
        return self._registry("passes")

    @cached_property
    def importers(self) -> Registry[specs.ImporterSpec]:
        return self._registry("importers")

    @cached_property
    def families(self) -> Registry[specs.FamilySpec]:
        return self._registry("families")

    @cached_property
    def models(self) -> Registry[specs.ModelSpec]:
        return self._registry("models")

    @cached_property
    def exporters(self) -> Registry[specs.ExporterSpec]:
        return self._registry("exporters")

    @cached_property
    def quant_formats(self) -> Registry[specs.QuantFormatSpec]:
        return self._registry("quant formats")

    @cached_property
    def unpackers(self) -> Registry[specs.UnpackerSpec]:
        return self._registry("unpackers")

    @cached_property
    def quantizers(self) -> Registry[specs.QuantSpec]:
        return self._registry("quantizers")

    @cached_property
    def kernels(self) -> Registry[specs.KernelSpec]:
        return self._registry("kernels")

    @cached_property
    def backends(self) -> Registry[specs.BackendSpec]:
        return self._registry("backends")

    @cached_property
    def samplers(self) -> Registry[specs.SamplerSpec]:
        return self._registry("samplers")

    @cached_property
    def tokenizers(self) -> Registry[specs.TokenizerSpec]:
        return self._registry("tokenizers")

    @cached_property
    def policies(self) -> Registry[specs.PolicySpec]:
        return self._registry("policies")

    @cached_property
    def logits_processors(self) -> Registry[specs.LogitsProcessorSpec]:
        return self._registry("logits processors")

    @cached_property
    def grammars(self) -> Registry[specs.GrammarSpec]:
        return self._registry("grammars")

    @cached_property
    def tool_parsers(self) -> Registry[specs.ToolParserSpec]:
        return self._registry("tool parsers")

    @cached_property
    def commands(self) -> Registry[specs.CommandSpec]:
        return self._registry("commands")

    @cached_property
    def routes(self) -> Registry[specs.RouteSpec]:
        return self._registry("routes")

    @cached_property
    def checks(self) -> Registry[specs.CheckSpec]:
        return self._registry("checks")

    @cached_property
    def benchmarks(self) -> Registry[specs.BenchmarkSpec]:
        return self._registry("benchmarks")

    @cached_property
    def peers(self) -> Registry[specs.PeerSpec]:
        return self._registry("peers")


@cache
def default() -> Installation:
    """The process's installation, chosen by the CACHEIR_* variables. Made once, importing nothing."""
    return Installation(Host(HostOptions.from_environment()))

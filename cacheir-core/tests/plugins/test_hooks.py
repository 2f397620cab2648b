"""One test for each hook, named after it: what an implementation returns arrives, what it is given is given."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cacheir.ir import Graph
from cacheir.plugins import KernelChoice, PassRecord, PassSpec, PluginInfo, Stage, hookspecs
from cacheir.plugins.check_module import hook_specs
from cacheir.plugins.installation import Installation
from cacheir.plugins.kinds import KINDS

Make = Callable[..., Installation]


@pytest.fixture
def plugin(write_module: Callable[..., str], installed: Make) -> Callable[[str], Installation]:
    """``plugin(source)``: an installation with core and a plugin of this source."""

    def make(source: str) -> Installation:
        return installed(write_module("one_plugin", source), strict=True)

    return make


def registered(installation: Installation, attribute: str, name: str) -> Any:
    """The record called ``name``, which must come from the plugin."""
    registry = getattr(installation, attribute)
    assert registry.provider(name).name == "one_plugin"
    return registry[name]


def source(hook: str, record: str) -> str:
    """A plugin module that implements one register hook with one record."""
    return f"""
        from cacheir.plugins import *

        @hookimpl
        def {hook}():
            return [{record}]
    """


def test_cacheir_plugin_info(plugin: Any) -> None:
    installation = plugin(
        """
        from cacheir.plugins import PluginInfo, hookimpl

        @hookimpl
        def cacheir_plugin_info():
            return PluginInfo(title="One", summary="The one plugin.")
        """
    )
    (found,) = [found for found in installation.plugins if found.name == "one_plugin"]
    assert installation.host.info(found) == PluginInfo(title="One", summary="The one plugin.")


def test_cacheir_register_ops(plugin: Any) -> None:
    installation = plugin(
        """
        from cacheir.plugins import hookimpl

        @hookimpl
        def cacheir_register_ops():
            from cacheir.ir import OpDef, Operand

            yield OpDef(name="twice", dialect="nn", operands=(Operand("x", "any"),), results=("out",),
                        infer=lambda types, attrs: types, doc="2 x", decompose="one_plugin:decompose")
        """
    )
    assert registered(installation, "ops", "twice").doc == "2 x"


def test_cacheir_register_passes(plugin: Any) -> None:
    record = 'PassSpec(name="rest", run="one_plugin:rest", stage=Stage.MODE, summary="Does nothing.")'
    assert registered(plugin(source("cacheir_register_passes", record)), "passes", "rest").stage is Stage.MODE


def test_cacheir_register_importers(plugin: Any) -> None:
    record = 'ImporterSpec(name="npy", summary="", run="one_plugin:read", suffixes=(".npy",))'
    assert registered(plugin(source("cacheir_register_importers", record)), "importers", "npy").suffixes == (".npy",)


def test_cacheir_register_families(plugin: Any) -> None:
    record = """FamilySpec(name="toy", summary="", architectures=("ToyForCausalLM",), gguf_architectures=("toy",),
        config="one_plugin:a", gguf_config="one_plugin:b", names="one_plugin:c")"""
    installation = plugin(source("cacheir_register_families", record))
    family = registered(installation, "families", "toy")
    assert installation.families.find("huggingface:ToyForCausalLM") is family
    assert installation.families.find("gguf:toy") is family
    assert installation.families.find("gguf:ToyForCausalLM") is None


def test_cacheir_register_models(plugin: Any) -> None:
    record = 'ModelSpec(name="toy", summary="", find="one_plugin:find", distribution="toy", license="MIT")'
    assert registered(plugin(source("cacheir_register_models", record)), "models", "toy").license == "MIT"


def test_cacheir_register_exporters(plugin: Any) -> None:
    record = 'ExporterSpec(name="count", summary="", run="one_plugin:count", suffix=".txt")'
    assert registered(plugin(source("cacheir_register_exporters", record)), "exporters", "count").suffix == ".txt"


def test_cacheir_register_quant_formats(plugin: Any) -> None:
    record = 'QuantFormatSpec(name="half8", summary="", block=32, block_bytes=18, unpack="one_plugin:unpack")'
    found = registered(plugin(source("cacheir_register_quant_formats", record)), "quant_formats", "half8")
    assert found.bits_per_weight == 4.5


def test_cacheir_register_unpackers(plugin: Any) -> None:
    record = 'UnpackerSpec(name="awq", summary="", run="one_plugin:unpack")'
    assert (
        registered(plugin(source("cacheir_register_unpackers", record)), "unpackers", "awq").run == "one_plugin:unpack"
    )


def test_cacheir_register_quantizers(plugin: Any) -> None:
    record = 'QuantSpec(name="all-q8", summary="", formats=("q8_0",), plan="one_plugin:plan")'
    found = registered(plugin(source("cacheir_register_quantizers", record)), "quantizers", "all-q8")
    assert found.formats == ("q8_0",)


def test_cacheir_register_kernels(plugin: Any) -> None:
    record = 'KernelSpec(name="toy.add", op="add", target="toy", entry="one_plugin:add", dtypes=("f32",))'
    installation = plugin(source("cacheir_register_kernels", record))
    assert registered(installation, "kernels", "toy.add").op == "add"


def test_cacheir_select_kernel(plugin: Any) -> None:
    installation = plugin(
        """
        from cacheir.plugins import KernelChoice, KernelSpec, hookimpl

        @hookimpl
        def cacheir_register_kernels():
            for name in ("toy.slow", "toy.fast"):
                yield KernelSpec(name=name, op="add", target="toy", entry="one_plugin:add")

        @hookimpl
        def cacheir_select_kernel(op, candidates, mode):
            if mode == "decode":
                return KernelChoice(kernel=candidates[-1], reason=f"{op} timed at 3 ns")
        """
    )
    candidates = tuple(installation.kernels[name] for name in ("toy.slow", "toy.fast"))
    choice = installation.select_kernel("add", candidates, "toy", "decode")  # type: ignore[arg-type]
    assert choice == KernelChoice(kernel=candidates[1], reason="add timed at 3 ns")
    assert installation.select_kernel("add", candidates, "toy", "prefill") is None  # type: ignore[arg-type]


def test_cacheir_register_backends(plugin: Any) -> None:
    record = """BackendSpec(name="toy", summary="", targets=("toy.fast", "toy.slow"), row_classes=(1, 8),
        executor="one_plugin:Executor", probe="one_plugin:probe")"""
    found = registered(plugin(source("cacheir_register_backends", record)), "backends", "toy")
    assert found.targets == ("toy.fast", "toy.slow")
    assert found.row_classes == (1, 8)


def test_cacheir_register_samplers(plugin: Any) -> None:
    record = 'SamplerSpec(name="it", summary="", factory="one_plugin:it")'
    assert registered(plugin(source("cacheir_register_samplers", record)), "samplers", "it").name == "it"


def test_cacheir_register_tokenizers(plugin: Any) -> None:
    record = 'TokenizerSpec(name="it", summary="", load="one_plugin:it")'
    assert registered(plugin(source("cacheir_register_tokenizers", record)), "tokenizers", "it").name == "it"


def test_cacheir_register_policies(plugin: Any) -> None:
    record = 'PolicySpec(name="it", summary="", factory="one_plugin:it")'
    assert registered(plugin(source("cacheir_register_policies", record)), "policies", "it").name == "it"


def test_cacheir_register_logits_processors(plugin: Any) -> None:
    record = 'LogitsProcessorSpec(name="it", summary="", factory="one_plugin:it")'
    assert (
        registered(plugin(source("cacheir_register_logits_processors", record)), "logits_processors", "it").name == "it"
    )


def test_cacheir_register_grammars(plugin: Any) -> None:
    record = 'GrammarSpec(name="it", summary="", compile="one_plugin:it")'
    assert registered(plugin(source("cacheir_register_grammars", record)), "grammars", "it").name == "it"


def test_cacheir_register_tool_parsers(plugin: Any) -> None:
    record = 'ToolParserSpec(name="it", summary="", factory="one_plugin:it")'
    assert registered(plugin(source("cacheir_register_tool_parsers", record)), "tool_parsers", "it").name == "it"


def test_cacheir_register_commands(plugin: Any) -> None:
    record = 'CommandSpec(name="it", help="Do it.", app="one_plugin:it")'
    assert registered(plugin(source("cacheir_register_commands", record)), "commands", "it").name == "it"


def test_cacheir_register_checks(plugin: Any) -> None:
    record = 'CheckSpec(name="it", run="one_plugin:it")'
    assert registered(plugin(source("cacheir_register_checks", record)), "checks", "it").name == "it"


def test_cacheir_register_benchmarks(plugin: Any) -> None:
    record = 'BenchmarkSpec(name="it", summary="", run="one_plugin:it")'
    assert registered(plugin(source("cacheir_register_benchmarks", record)), "benchmarks", "it").name == "it"


def test_cacheir_register_peers(plugin: Any) -> None:
    record = 'PeerSpec(name="it", summary="", probe="one_plugin:p", run="one_plugin:it")'
    assert registered(plugin(source("cacheir_register_peers", record)), "peers", "it").name == "it"


def test_cacheir_register_routes(plugin: Any) -> None:
    record = 'RouteSpec(method="GET", path="/toy", handler="one_plugin:toy")'
    assert registered(plugin(source("cacheir_register_routes", record)), "routes", "GET /toy").path == "/toy"


OBSERVER = """
    from cacheir.plugins import hookimpl

    seen = []

    @hookimpl
    def {hook}({arguments}):
        seen.append(({arguments},))
"""


def observed(plugin: Any, hook: str, arguments: str, **given: Any) -> list[tuple[Any, ...]]:
    """What an observer of ``hook`` that asks for ``arguments`` is given when it is told of ``given``."""
    installation = plugin(OBSERVER.format(hook=hook, arguments=arguments))
    installation.observe(hook, **given)
    import one_plugin  # type: ignore[import-not-found]

    seen: list[tuple[Any, ...]] = one_plugin.seen
    return seen


GRAPH = Graph("g", (), (), (), (), ())
RECORD = PassRecord(
    name="rest", plugin="core", stage=Stage.MODE, mode="decode", outcome="unchanged", before="a", after="a", seconds=0.5
)


def test_cacheir_pass_starting(plugin: Any) -> None:
    spec = PassSpec(name="rest", run="one_plugin:rest", stage=Stage.MODE, summary="")
    seen = observed(plugin, "cacheir_pass_starting", "mode, spec", spec=spec, graph=GRAPH, mode="decode")
    assert seen == [("decode", spec)]


def test_cacheir_pass_done(plugin: Any) -> None:
    assert observed(plugin, "cacheir_pass_done", "record, graph", record=RECORD, graph=GRAPH) == [(RECORD, GRAPH)]


def test_cacheir_compile_done(plugin: Any) -> None:
    seen = observed(plugin, "cacheir_compile_done", "artifact", artifact=Path("out"), records=(RECORD,))
    assert seen == [(Path("out"),)]


def test_cacheir_request_done(plugin: Any) -> None:
    assert observed(plugin, "cacheir_request_done", "stats", stats="the statistics") == [("the statistics",)]


def test_every_hook_has_a_test_named_after_it() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    for name in hook_specs():
        assert f"\ndef test_{name}(" in text, f"{name} has no test"


def test_every_kind_has_a_hook_and_every_register_hook_a_kind() -> None:
    register = {name for name in vars(hookspecs) if name.startswith("cacheir_register_")}
    assert {kind.hook_name for kind in KINDS} == register


def test_every_registry_is_an_attribute_of_the_installation(installed: Make) -> None:
    installation = installed()
    assert [registry.kind for registry in installation.registries()] == list(KINDS)


def test_hooks_take_what_their_family_says() -> None:
    for name, function in hook_specs().items():
        arguments = function.__code__.co_varnames[: function.__code__.co_argcount]
        registers = name == "cacheir_plugin_info" or name.startswith("cacheir_register_")
        assert bool(arguments) is not registers, name
        assert function.__doc__


def test_records_that_hooks_give_are_frozen_and_keyword_only() -> None:
    from cacheir.plugins import specs

    for name in specs.__all__:
        cls = getattr(specs, name)
        if dataclasses.is_dataclass(cls):
            assert cls.__dataclass_params__.frozen, name  # type: ignore[attr-defined]
            assert all(field.kw_only for field in dataclasses.fields(cls)), name

"""Registries: lookup by name, errors for unknown names, and clashes that cost the later plugin's contribution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cacheir.errors import PluginConflictError, UsageError
from cacheir.plugins.installation import Installation

Make = Callable[..., Installation]
Write = Callable[..., str]

SAMPLERS = """
    from cacheir.plugins import SamplerSpec, hookimpl

    @hookimpl
    def cacheir_register_samplers():
        for name in {names}:
            yield SamplerSpec(name=name, summary=__name__, factory="a:b")
"""


def test_two_plugins_that_clash_on_a_name(write_module: Write, installed: Make, reports: Any) -> None:
    first = write_module("alpha", SAMPLERS.format(names=["shared", "only-alpha"]))
    second = write_module("beta", SAMPLERS.format(names=["only-beta", "shared", "after"]))
    installation = installed(second, first)  # the order of discovery does not matter, the order of names does
    assert installation.samplers["shared"].summary == "alpha"
    assert installation.samplers.names() == ("after", "only-alpha", "only-beta", "shared")
    ((plugin, sentence),) = reports
    assert plugin == "beta"
    assert "sampler 'shared' is left out" in sentence and "'alpha'" in sentence
    (problem,) = installation.samplers.provider("only-beta").problems
    assert "CACHEIR_BLOCK_PLUGINS=beta" in problem.hint and "CACHEIR_BLOCK_PLUGINS=alpha" in problem.hint
    assert installation.samplers.provider("only-beta").state == "loaded"


def test_a_clash_in_strict_mode(write_module: Write, installed: Make) -> None:
    first = write_module("alpha", SAMPLERS.format(names=["shared"]))
    installation = installed(first, write_module("beta", SAMPLERS.format(names=["shared"])), strict=True)
    with pytest.raises(PluginConflictError, match=r"'beta'.*'shared'.*'alpha'"):
        installation.samplers.names()


def test_names_that_differ_in_a_dash_are_one_name(write_module: Write, installed: Make, reports: Any) -> None:
    installation = installed(write_module("alpha", SAMPLERS.format(names=["top-p", "top_p"])))
    assert installation.samplers["top_p"] is installation.samplers["top-p"]
    assert len(installation.samplers) == 1
    assert "it registers that name twice" in reports[0][1]


def test_a_clash_with_core(write_module: Write, installed: Make, reports: Any) -> None:
    source = """
        from cacheir.plugins import CommandSpec, hookimpl

        @hookimpl
        def cacheir_register_commands():
            yield CommandSpec(name="run", help="Mine.", app="a:b")
    """
    installation = installed(write_module("aaa", source))
    assert installation.commands["run"].help != "Mine."
    assert [plugin for plugin, _ in reports] == ["aaa"]


def test_two_families_that_claim_one_architecture(write_module: Write, installed: Make, reports: Any) -> None:
    source = """
        from cacheir.plugins import FamilySpec, hookimpl

        @hookimpl
        def cacheir_register_families():
            yield FamilySpec(name=__name__, summary="", architectures=("A", __name__), gguf_architectures=(),
                             config="a:b", gguf_config="a:b", names="a:b")
    """
    installation = installed(write_module("one_family", source), write_module("two_family", source))
    assert installation.families.names() == ("one_family",)
    assert "family 'two_family' is left out" in reports[0][1] and "'A'" in reports[0][1]


def test_an_unknown_name(write_module: Write, installed: Make) -> None:
    installation = installed(write_module("alpha", SAMPLERS.format(names=["greedy", "top-k"])))
    with pytest.raises(UsageError, match="there is no sampler 'gredy'") as caught:
        installation.samplers["gredy"]
    assert caught.value.hint == "did you mean 'greedy'?"
    with pytest.raises(UsageError) as caught:
        installation.samplers["x"]
    assert caught.value.hint == "there are: greedy, top-k"
    with pytest.raises(UsageError) as caught:
        installation.policies["x"]
    assert caught.value.hint == "no installed plugin registers policies"
    assert installation.samplers.find("x") is None
    assert "x" not in installation.samplers


def test_a_registry_is_a_collection(write_module: Write, installed: Make) -> None:
    installation = installed(write_module("alpha", SAMPLERS.format(names=["b", "a"])))
    assert [spec.name for spec in installation.samplers] == ["b", "a"]
    assert list(installation.samplers.by_name()) == ["b", "a"]
    assert [spec.name for spec in installation.samplers.where(lambda spec: spec.name == "a")] == ["a"]
    assert installation.samplers.contribution("a").plugin.name == "alpha"


def test_plugins_are_asked_once(write_module: Write, installed: Make) -> None:
    source = """
        from cacheir.plugins import hookimpl

        asked = []

        @hookimpl
        def cacheir_register_samplers():
            asked.append(1)
            return []
    """
    installation = installed(write_module("counting", source))
    for _ in range(3):
        assert len(installation.samplers) == 0
        assert installation.samplers.find("x") is None
    import counting  # type: ignore[import-not-found]

    assert counting.asked == [1]


def test_where_an_unknown_name_would_come_from(write_module: Write, installed: Make) -> None:
    with pytest.raises(UsageError) as caught:
        installed().backends["cuda"]
    assert caught.value.hint == "it is in cacheir-cuda: pip install ./cacheir-cuda in a checkout of CacheIR"
    broken = f"cuda={write_module('broken_cuda', '1 / 0')}"
    with pytest.raises(UsageError) as caught:
        installed(broken).backends["cuda"]
    assert caught.value.hint == "it is in cacheir-cuda, which is at fault: cacheir plugins doctor cuda"
    with pytest.raises(UsageError) as caught:
        installed(broken, block=("cuda",)).backends["cuda"]
    assert caught.value.hint == "it is in cacheir-cuda, which CACHEIR_PLUGINS or CACHEIR_BLOCK_PLUGINS leaves out"

"""The kit is tested on plugins that are bad on purpose: each check must catch its own culprit, and pass a good one."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cacheir.errors import PluginLoadError
from cacheir.testing import PluginTests, plugin_host

GOOD = """
    from cacheir.plugins import SamplerSpec, hookimpl

    def make(params): ...

    @hookimpl
    def cacheir_register_samplers():
        yield SamplerSpec(name="toy", summary="", factory="{module}:make")
"""

# check -> a plugin that it must catch, and what it says
CULPRITS = {
    "test_imports_cheaply": [
        ("import numpy" + GOOD, "imports numpy"),
        ("import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass" + GOOD, "CPU time"),
        ("raise OSError('no')", "cannot be imported"),
    ],
    "test_prints_nothing": [("print('hello')" + GOOD, "prints 'hello'")],
    "test_works_with_this_hook_api": [
        ("CACHEIR_HOOK_API = (2, 0)" + GOOD, "hook API 2.0"),
        (GOOD.replace("samplers", "sampler"), "did you mean 'cacheir_register_samplers'"),
        ("x = 1", "implements no hook"),
    ],
    "test_hooks_give_records": [
        (GOOD.replace('yield SamplerSpec(name="toy", summary="", factory="{module}:make")', "yield 3"), "gave int"),
        (GOOD.replace('"toy"', '"Toy"'), "lower case"),
    ],
    "test_hooks_give_the_same_twice": [
        (GOOD.replace('"toy"', 'f"toy{next(numbers)}"') + "\n    numbers = iter(range(99))", "other records"),
        (GOOD.replace('"{module}:make"', "lambda params: None"), "other records"),
    ],
    "test_every_reference_resolves": [(GOOD.replace(":make", ":absent"), "absent")],
    "test_clashes_with_nothing_in_core": [
        (
            """
    from cacheir.plugins import CommandSpec, hookimpl

    @hookimpl
    def cacheir_register_commands():
        yield CommandSpec(name="run", help="Mine.", app="{module}:app")
    """,
            "'core'",
        )
    ],
}

CASES = [(check, source, says) for check, culprits in CULPRITS.items() for source, says in culprits]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    monkeypatch.syspath_prepend(tmp_path)

    def make(source: str) -> str:
        name = f"kit_plugin_{abs(hash(source)) % 10**9}"
        head, newline, body = source.partition("\n    ")
        text = head + newline.strip(" ") + textwrap.dedent("    " + body if newline else body)
        (tmp_path / f"{name}.py").write_text(text.replace("{module}", name))
        return name

    yield make
    for name in [name for name in sys.modules if name.startswith("kit_plugin_")]:
        del sys.modules[name]


def kit_for(module: str) -> PluginTests:
    return type("Tests", (PluginTests,), {"plugin": module})()  # type: ignore[no-any-return]


def checks() -> list[str]:
    return [name for name in dir(PluginTests) if name.startswith("test_")]


@pytest.mark.parametrize("check", checks())
def test_a_good_plugin_passes(check: str, write: Callable[[str], str]) -> None:
    getattr(kit_for(write(GOOD)), check)()


@pytest.mark.parametrize(
    "check, source, says", CASES, ids=[f"{check}-{number}" for number, (check, *_) in enumerate(CASES)]
)
def test_a_culprit_is_caught(check: str, source: str, says: str, write: Callable[[str], str]) -> None:
    tests = kit_for(write(source))
    with pytest.raises((AssertionError, Exception)) as caught:
        getattr(tests, check)()
    assert says in str(caught.value)


def test_every_check_has_a_culprit() -> None:
    assert set(checks()) == set(CULPRITS)


class TestCore(PluginTests):
    """Core is held to the same rules as everyone."""

    plugin = "cacheir.builtin"


def test_plugin_host_sees_nothing_of_the_environment(
    write: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CACHEIR_PLUGIN_MODULES", "not_there")
    installation = plugin_host(write(GOOD))
    assert [plugin.distribution for plugin in installation.plugins] == ["cacheir-core", "CACHEIR_PLUGIN_MODULES"]
    assert "toy" in installation.samplers


def test_plugin_host_is_strict(write: Callable[[str], str]) -> None:
    with pytest.raises(PluginLoadError, match="ZeroDivisionError"):
        plugin_host(write("1 / 0")).plugins  # noqa: B018

"""Runs all checks of a class of the kit by hand, and says which of them fail: for plugins that are bad on purpose."""

from __future__ import annotations

import copy
import importlib
import inspect
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cacheir.plugins.scaffold import write_plugin


class Metafunc:
    """What a class's ``pytest_generate_tests`` is given: notes the values of each parameter."""

    def __init__(self, names: list[str]) -> None:
        self.fixturenames = names
        self.values: dict[str, list[Any]] = {}

    def parametrize(self, name: str, values: Any, ids: Any = None) -> None:
        self.values[name] = list(values)


@pytest.fixture
def complaints(tmp_path: Path) -> Callable[..., dict[str, str]]:
    """``complaints(tests, case=...)``: check -> what it says, of those that fail. Keywords are other fixtures.

    ``only`` is the one check that is run.
    """

    def run(tests: Any, only: str = "", **fixtures: Any) -> dict[str, str]:
        found: dict[str, str] = {}
        for check in [only] if only else sorted(name for name in dir(tests) if name.startswith("test_")):
            function = getattr(tests, check)
            for number, arguments in enumerate(_calls(tests, function, fixtures)):
                if "tmp_path" in arguments:
                    arguments["tmp_path"] = tmp_path / f"{check}{number}"
                    arguments["tmp_path"].mkdir()
                try:
                    function(**arguments)
                except pytest.skip.Exception:
                    continue
                except Exception as error:
                    found[check] = f"{type(error).__name__}: {error}"
        return found

    return run


def _calls(tests: Any, function: Callable[..., None], fixtures: dict[str, Any]) -> Iterator[dict[str, Any]]:
    names = list(inspect.signature(function).parameters)
    metafunc = Metafunc(names)
    if hasattr(tests, "pytest_generate_tests"):
        tests.pytest_generate_tests(metafunc)
    given = {"tmp_path": None, **fixtures}
    for values in itertools.product(*metafunc.values.values()):
        chosen = {**given, **dict(zip(metafunc.values, values))}
        yield {name: chosen[name] for name in names}


@pytest.fixture(scope="session")
def scaffolded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., ModuleType]]:
    """``scaffolded("importer")``: the module of a plugin that ``cacheir plugins new`` wrote; ``submodule`` of it."""
    folder = tmp_path_factory.mktemp("scaffolded")

    def make(kind: str, submodule: str = "") -> ModuleType:
        name = f"kit-{kind}"
        source = folder / f"cacheir-{name}" / "src"
        if not source.exists():
            write_plugin(kind, name, folder)
            sys.path.insert(0, str(source))
        module = f"cacheir_{name.replace('-', '_')}"
        return importlib.import_module(f"{module}.{submodule}" if submodule else module)

    before = list(sys.path)
    yield make
    sys.path[:] = before
    for name in [name for name in sys.modules if name.startswith("cacheir_kit_")]:
        del sys.modules[name]


@pytest.fixture
def good_backend(scaffolded: Any) -> Any:
    """The executor class of the backend that ``cacheir plugins new backend`` writes."""
    return scaffolded("backend", "executor").Executor


@pytest.fixture
def check(good_backend: Any, complaints: Any) -> Callable[..., dict[str, str]]:
    """``check(make)``: the complaints about ``make(good_backend)``, seen on one decoder with two KV groups."""

    from cacheir.runtime.executor import ExecutorOptions
    from cacheir.testing import BackendTests

    def run(make: Callable[[Any], Any], only: str = "") -> dict[str, str]:
        executor_class = make(good_backend)

        class Checks(BackendTests):
            plugin = "cacheir_kit_backend.plugin"
            backend = "kit-backend"
            traces = 1
            shrinks = False

            def pytest_generate_tests(self, metafunc: Any) -> None:
                if "decoder" in metafunc.fixturenames:
                    metafunc.parametrize("decoder", ["two-classes-window"])

            def tiny(self, decoder: str = "two-classes-window", changed: Mapping[str, Any] | None = None) -> Any:
                made = copy.copy(super().tiny(decoder, changed))
                made.unloaded = lambda **options: executor_class(  # type: ignore[method-assign]
                    ExecutorOptions(**{"threads": 1, **options})
                )
                return made

        found: dict[str, str] = complaints(Checks(), only=only)
        return found

    return run


@pytest.fixture
def plugin_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """``plugin_of(cacheir_register_importers=[spec])``: the name of a plugin whose hooks give these records."""
    from cacheir.plugins import hookimpl

    def make(**hooks: list[Any]) -> str:
        name = f"cacheir_bad_plugin_{next(_numbers)}"
        module = ModuleType(name)
        for hook, records in hooks.items():
            function = _giving(records)
            function.__name__ = hook
            setattr(module, hook, hookimpl(function))
        monkeypatch.setitem(sys.modules, name, module)
        return name

    return make


_numbers = itertools.count()


def _giving(records: list[Any]) -> Callable[[], list[Any]]:
    def hook() -> list[Any]:
        return records

    return hook

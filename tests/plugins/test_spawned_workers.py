"""Plugins in child processes: what entry points name is there however a child starts, what a call registered is not."""

from __future__ import annotations

import multiprocessing
import sys
from types import ModuleType

import pytest

from cacheir.artifact.compatibility import find_backend
from cacheir.errors import BackendUnavailable
from cacheir.plugins import BackendSpec, hookimpl
from cacheir.plugins.installation import default
from cacheir.testing.hosts import plugin_host

METHODS = multiprocessing.get_all_start_methods()


def names(queue: object) -> None:
    """The backends that a child sees, and what it says of one that it does not."""
    try:
        find_backend(default(), "only-here")
        said = ""
    except BackendUnavailable as error:
        said = f"{error} {error.hint}"
    queue.put((sorted(default().backends.names()), said))  # type: ignore[attr-defined]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("method", METHODS)
def test_e03_entry_points_are_known_in_every_child(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("registered_by_a_call")
    spec = BackendSpec(name="only-here", summary="", targets=("only-here",), executor="a.b:c", probe=lambda: None)
    module.cacheir_register_backends = hookimpl(  # type: ignore[attr-defined]
        lambda: [spec], specname="cacheir_register_backends"
    )
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert find_backend(plugin_host(module.__name__), "only-here") is spec
    context = multiprocessing.get_context(method)
    queue = context.SimpleQueue()
    child = context.Process(target=names, args=(queue,))
    child.start()
    found, said = queue.get()
    child.join(60)
    assert child.exitcode == 0
    assert {"cpu", "native"} <= set(found) and found == sorted(default().backends.names())
    assert "no installed plugin has a backend 'only-here'" in said and "entry point" in said

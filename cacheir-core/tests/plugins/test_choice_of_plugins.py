"""Which plugins a host takes: all, those that are allowed, none that is blocked, and one of each name."""

from __future__ import annotations

from typing import Any

import pytest

from cacheir.errors import UsageError
from cacheir.plugins.distributions import EntryPoint
from cacheir.plugins.host import HostOptions, discover

POINTS = (
    EntryPoint("cpu", "plugin_of_cpu", "cacheir-cpu", "0.1.0", ""),
    EntryPoint("cuda", "plugin_of_cuda", "cacheir-cuda", "0.1.0", ""),
)


def states(**options: Any) -> dict[str, str]:
    found = discover(HostOptions(**{"points": POINTS, **options}))
    return {name: plugin.state for name, plugin in found.items()}


def test_all() -> None:
    assert states() == {"core": "found", "cpu": "found", "cuda": "found"}


def test_allowed_ones_and_core() -> None:
    assert states(allow=("cpu",)) == {"core": "found", "cpu": "found", "cuda": "blocked"}
    assert states(allow=()) == {"core": "found", "cpu": "blocked", "cuda": "blocked"}


def test_blocked_ones() -> None:
    assert states(block=("cuda", "unknown", "core")) == {"core": "found", "cpu": "found", "cuda": "blocked"}


def test_an_unknown_name_that_is_allowed() -> None:
    with pytest.raises(UsageError, match=r"'cudda'.*did you mean 'cuda'"):
        states(allow=("cpu", "cudda"))


def test_modules_have_names() -> None:
    assert set(states(points=(), modules=("native=a.b", "c.d"))) == {"core", "native", "c.d"}


def test_a_module_that_is_installed_as_well_counts_once() -> None:
    assert set(states(modules=("plugin_of_cpu",))) == {"core", "cpu", "cuda"}


def test_two_packages_with_one_plugin_name() -> None:
    points = (*POINTS, EntryPoint("cpu", "other", "other-cpu", "3", ""))
    found = discover(HostOptions(points=points))
    assert found["cpu"].distribution == "cacheir-cpu"
    assert found["cpu@other-cpu"].state == "failed"
    assert "'cpu' is taken by cacheir-cpu 0.1.0" in found["cpu@other-cpu"].problems[0].sentence


def test_nobody_takes_cores_name() -> None:
    found = discover(HostOptions(points=(EntryPoint("core", "other", "evil", "1", ""),)))
    assert found["core"].target == "cacheir.builtin"
    assert found["core@evil"].state == "failed"

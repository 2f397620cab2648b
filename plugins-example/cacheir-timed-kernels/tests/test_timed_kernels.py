"""The plugin does what every plugin must, and its choice is in the schedule with its reason."""

import json

import pytest
from cacheir.errors import UsageError
from cacheir.plugins import KernelSpec
from cacheir.testing import PluginTests, plugin_host
from cacheir_timed_kernels import read_times

KERNELS = [KernelSpec(name=name, op="linear", target="cpu.numpy", entry="a:b") for name in ("fast", "slow", "new")]


class TestPlugin(PluginTests):
    plugin = "cacheir_timed_kernels"


@pytest.fixture
def select(monkeypatch, tmp_path):
    """`select(times, mode)`: the choice among all kernels with `times` in the file."""

    def choose(times, mode="decode", kernels=KERNELS):
        path = tmp_path / f"{abs(hash(str(times)))}.json"
        path.write_text(times if isinstance(times, str) else json.dumps(times))
        monkeypatch.setenv("TIMED_KERNELS_FILE", str(path))
        host = plugin_host("cacheir_timed_kernels")
        return host.select_kernel(op=None, candidates=kernels, target="cpu", mode=mode)

    return choose


def test_the_fastest_wins_and_says_why(select):
    choice = select({"cpu": {"decode": {"slow": 2e-5, "fast": 1e-5}}})
    assert choice.kernel.name == "fast"
    assert choice.reason == "measured 1e-05 s, the least of 2"


@pytest.mark.parametrize(
    "times", [{}, {"cpu": {"decode": {"fast": 1e-5}}}, {"cpu": {"prefill": {"slow": 2e-5, "fast": 1e-5}}}]
)
def test_without_two_measured_kernels_others_choose(select, times):
    assert select(times) is None


def test_without_a_file_others_choose(monkeypatch):
    monkeypatch.delenv("TIMED_KERNELS_FILE", raising=False)
    host = plugin_host("cacheir_timed_kernels")
    assert host.select_kernel(op=None, candidates=KERNELS, target="cpu", mode="decode") is None


@pytest.mark.parametrize("text", ["", "[]", '{"cpu": 3}', '{"cpu": {"decode": {"fast": "soon"}}}'])
def test_a_bad_file_is_named(text, tmp_path):
    (tmp_path / "times.json").write_text(text)
    with pytest.raises(UsageError, match="holds no times"):
        read_times(str(tmp_path / "times.json"))

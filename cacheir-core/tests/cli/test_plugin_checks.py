"""Core's checks between plugins: an order that cannot be met, a kernel for an op that nobody defines."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cacheir.cli.plugin_checks import kernel_ops, pass_order
from cacheir.testing import plugin_host


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    """``plugin(source)`` makes the module ``checked_plugin``."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(source: str) -> str:
        text = "from cacheir.plugins import KernelSpec, PassSpec, Stage, hookimpl\n" + textwrap.dedent(source)
        (tmp_path / "checked_plugin.py").write_text(text)
        return "checked_plugin"

    yield write
    sys.modules.pop("checked_plugin", None)


def test_core_alone() -> None:
    assert pass_order(plugin_host()).ok
    assert kernel_ops(plugin_host()).ok


@pytest.mark.parametrize(
    "order, says",
    [
        ("requires=('not-there',)", "requires 'not-there'"),
        ("after=('dead-code',), before=('infer-shapes',)", "circle"),
    ],
)
def test_an_order_that_cannot_be_met(order: str, says: str, plugin: Callable[[str], str]) -> None:
    module = plugin(
        f"""
        @hookimpl
        def cacheir_register_passes():
            yield PassSpec(name="stray", run="a:b", stage=Stage.LOGICAL, summary="", {order})
        """
    )
    result = pass_order(plugin_host(module))
    assert not result.ok and says in result.detail and result.hint


def test_a_kernel_for_no_op(plugin: Callable[[str], str]) -> None:
    module = plugin(
        """
        @hookimpl
        def cacheir_register_kernels():
            yield KernelSpec(name="stray.kernel", op="no_such_op", target="cpu.numpy", entry="a:b")
        """
    )
    result = kernel_ops(plugin_host(module))
    assert not result.ok and "stray.kernel of checked_plugin for 'no_such_op'" in result.detail

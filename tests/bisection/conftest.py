"""A tiny model, an installation of core, NumPy and the importers, and the neighbour ``planted`` made importable."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cacheir.plugins.installation import Installation
from cacheir.testing import plugin_host
from cacheir_importers.tiny import write_tiny

_spec = importlib.util.spec_from_file_location("planted", Path(__file__).with_name("planted.py"))
assert _spec is not None and _spec.loader is not None
sys.modules["planted"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(sys.modules["planted"])


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Compiled programs of these tests go to a cache of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CACHEIR_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def installation() -> Installation:
    return plugin_host("cacheir_cpu.plugin", "cacheir_importers.plugin")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama of four layers."""
    from cacheir_importers.tiny_config import TinyShape

    folder = tmp_path_factory.mktemp("models") / "tiny"
    write_tiny(folder, shape=TinyShape(layers=4))
    return folder

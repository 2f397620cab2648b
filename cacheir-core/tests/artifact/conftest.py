"""Fake models on disk, and installations that can compile them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cacheir.formats.table import core_formats
from cacheir.ir.types import QuantType
from cacheir.plugins.installation import Installation
from cacheir.schedule.record_json import to_json
from cacheir.testing.hosts import plugin_host
from cacheir.testing.tiny_decoders import tiny_decoders
from cacheir.weights.sources import stored_bytes

PLUGIN = Path(__file__).with_name("fake_backend.py")

Make = Callable[..., Installation]


@pytest.fixture
def plugin_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The fake plugin as a module of its own that this test may edit."""
    folder = tmp_path / "modules"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    file = folder / "fake_backend.py"
    file.write_text(PLUGIN.read_text("utf-8"), "utf-8")
    yield file
    sys.modules.pop("fake_backend", None)


@pytest.fixture
def make_installation(plugin_file: Path) -> Make:
    """A new installation of core and the fake plugin, which is imported again, as in another process."""

    def make(*more: str) -> Installation:
        sys.modules.pop("fake_backend", None)
        return plugin_host("fake=fake_backend", *more)

    return make


@pytest.fixture
def installation(make_installation: Make) -> Installation:
    return make_installation()


@pytest.fixture
def imports() -> Callable[[], list[Path]]:
    """The models that the fake importer has opened since it was imported."""
    return lambda: list(sys.modules["fake_backend"].IMPORTS)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder that settings name."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("CACHEIR_CACHE_DIR", str(folder))
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model with quantised weights in two classes of layers."""
    return write_model(tmp_path / "model" / "tiny.fake")


@pytest.fixture
def write_fake() -> Callable[..., Path]:
    """``write_fake(path, kind="quantised", seed=0)``: equal kinds have equal headers."""
    return write_model


def write_model(path: Path, *, kind: str = "quantised", seed: int = 0, words: tuple[str, ...] = ("a", "b")) -> Path:
    decoder = tiny_decoders()[kind]
    sources: dict[str, Any] = {}
    data = b""
    random = np.random.default_rng(seed)
    for key, type_ in decoder.weights.items():
        format_ = type_.format if isinstance(type_, QuantType) else type_.dtype
        shape = tuple(size.constant for size in type_.shape)
        nbytes = stored_bytes(format_, shape, core_formats())
        place = {"file": "", "tensor": f"t.{key}", "offset": len(data), "nbytes": nbytes}
        sources[key] = {**place, "format": format_, "shape": list(shape)}
        data += random.integers(0, 60, nbytes, np.uint8).tobytes()
    header = json.dumps({"spec": to_json(decoder.spec), "sources": sources, "words": list(words)}).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
    return path

"""``cacheir`` as a process of its own, with plugins from modules and a cache of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cacheir.formats.table import core_formats
from cacheir.ir.types import QuantType
from cacheir.schedule.record_json import to_json
from cacheir.testing.tiny_decoders import tiny_decoders
from cacheir.weights.sources import stored_bytes

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    """A folder on the command's path."""
    folder = tmp_path / "modules"
    folder.mkdir()
    return folder


@pytest.fixture
def cacheir(tmp_path: Path, modules: Path) -> Run:
    """``cacheir("plugins", "list", plugins="good,faulty")``: core and these modules as plugins, nothing else."""

    def run(*arguments: str, plugins: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("CACHEIR_")}
        environment |= {
            "PYTHONPATH": os.pathsep.join([str(modules), *(path for path in sys.path if path)]),
            "CACHEIR_CACHE_DIR": str(tmp_path / "cache"),
            "CACHEIR_PLUGIN_MODULES": plugins,
            # What else is installed here is no matter of core's tests.
            "CACHEIR_PLUGINS": ",".join(["core", *plugins.split(",")] if plugins else ["core"]),
            **variables,
        }
        command = [sys.executable, "-m", "cacheir.cli.main", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)

    return run


@pytest.fixture
def write(modules: Path) -> Callable[[str, str], None]:
    """``write("good", source)`` makes a module."""

    def make(name: str, source: str) -> None:
        (modules / f"{name}.py").write_text(textwrap.dedent(source), encoding="utf-8")

    return make


@pytest.fixture
def fake_model(modules: Path, tmp_path: Path) -> Path:
    """A model of two classes of layers and a window, for the plugin ``fake_backend``, which can be imported."""
    shutil.copy(Path(__file__).parents[1] / "artifact" / "fake_backend.py", modules / "fake_backend.py")
    decoder = tiny_decoders()["two-classes-window"]
    sources, data = {}, b""
    for key, type_ in decoder.weights.items():
        format_ = type_.format if isinstance(type_, QuantType) else type_.dtype
        shape = tuple(size.constant for size in type_.shape)
        nbytes = stored_bytes(format_, shape, core_formats())
        place = {"file": "", "tensor": key, "offset": len(data), "nbytes": nbytes, "format": format_}
        sources[key] = {**place, "shape": list(shape)}
        data += np.zeros(nbytes, np.uint8).tobytes()
    header = json.dumps({"spec": to_json(decoder.spec), "sources": sources, "words": ["a"]}).encode()
    model = tmp_path / "tiny.fake"
    model.write_bytes(len(header).to_bytes(8, "little") + header + data)
    return model


@pytest.fixture
def compiled(cacheir: Run, fake_model: Path, tmp_path: Path) -> Path:
    """``fake_model`` as an artifact."""
    place = tmp_path / "artifact"
    done = cacheir("compile", str(fake_model), "--target", "fake", "--output", str(place), plugins="fake_backend")
    assert done.returncode == 0, done.stderr
    return place

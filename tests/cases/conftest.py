"""How the cases are asked: small models to damage, and ``refused``, which holds every command to the same contract."""

from __future__ import annotations

import importlib.util
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType

import pytest

from cacheir import Runtime
from cacheir.cli.main import run
from cacheir_importers.tiny import write_tiny

ROOT = Path(__file__).resolve().parents[2]
MAX_GROWTH, MAX_SECONDS = 300 << 20, 2.0


def _load(name: str, path: Path) -> ModuleType:
    """A module of tests under a name of its own: pytest's importlib mode puts no folder of tests on the path."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# The importers' own tests have builders of small models; these tests damage the same ones.
_builders = _load("small_models", ROOT / "cacheir-importers" / "tests" / "conftest.py")
tiny_folder, folder, edit, change_tensors = (
    _builders.tiny_folder,
    _builders.folder,
    _builders.edit,
    _builders.change_tensors,
)
gguf_file = _builders.gguf_file
_load("case_files", Path(__file__).with_name("case_files.py"))


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Compiled programs of these tests go to a cache of their own."""
    with pytest.MonkeyPatch.context() as patch:
        cache = tmp_path_factory.mktemp("cache")
        patch.setenv("CACHEIR_CACHE_DIR", str(cache))
        yield cache


@pytest.fixture(scope="session")
def warm(own_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Everything that a compile imports is imported, so that what a test allocates is the test's."""
    write_tiny(tmp_path_factory.mktemp("warm") / "model")
    assert (
        run(["compile", str(tmp_path_factory.getbasetemp() / "warm0" / "model"), "--output", str(own_cache / "w")]) == 0
    )


def contents(place: Path) -> dict[str, bytes]:
    """Every file under a folder."""
    return {
        str(file.relative_to(place)): file.read_bytes()
        for file in sorted(place.rglob("*"))
        if file.is_file() and not file.is_symlink()
    }


Refused = Callable[..., str]


@pytest.fixture
def refused(warm: None, capsys: pytest.CaptureFixture[str], tmp_path_factory: pytest.TempPathFactory) -> Refused:
    """``refused(path, code, *parts)``: what ``compile`` and ``inspect`` say about the model at ``path``.

    Both must end with ``code``, in one line that holds all of ``parts``, without a traceback, soon, in little memory,
    and with nothing written: neither beside the model, nor an artifact, nor a program in the cache.
    """

    def ask(path: Path, code: int, *parts: str) -> str:
        out = tmp_path_factory.mktemp("refused")
        place = path if path.is_dir() else path.parent
        before = contents(place)
        lines = set()
        for words in (("compile", str(path), "--output", str(out / "artifact")), ("inspect", str(path))):
            capsys.readouterr()
            peak, seconds = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
            assert run(list(words)) == code
            seconds = time.process_time() - seconds
            growth = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) << 10
            said = capsys.readouterr()
            assert said.out == "" and "Traceback" not in said.err
            (line,) = [line for line in said.err.splitlines() if line.startswith("error: ")]
            assert growth < MAX_GROWTH and seconds < MAX_SECONDS, (growth, seconds)
            lines.add(line)
        assert contents(place) == before
        assert list(out.iterdir()) == []
        (line,) = lines
        for part in parts:
            assert part in line, line
        return line

    return ask


@pytest.fixture
def accepted(warm: None, capsys: pytest.CaptureFixture[str], tmp_path_factory: pytest.TempPathFactory) -> Refused:
    """``accepted(path)``: ``compile`` takes the model; gives what it says on standard error."""

    def ask(path: Path) -> str:
        capsys.readouterr()
        out = tmp_path_factory.mktemp("accepted") / "artifact"
        code = run(["compile", str(path), "--output", str(out)])
        said = capsys.readouterr()
        assert code == 0, said.err
        return said.err

    return ask


@pytest.fixture
def logits() -> Callable[..., object]:
    """``logits(path, ids)``: f32 [len(ids), V], the prompt's first half at once and the rest token by token."""
    import numpy as np

    def ask(path: Path, ids: list[int], **options: object) -> object:
        with Runtime(path, backend="cpu", **options) as runtime, runtime.session() as session:  # type: ignore[arg-type]
            made = []
            session.append(ids[: len(ids) // 2])
            made.append(session.logits())
            for token in ids[len(ids) // 2 :]:
                session.append([token])
                made.append(session.logits())
            return np.array(made)

    return ask


@pytest.fixture(scope="session")
def opened_files() -> Iterator[list[str]]:
    """The paths that this process opens or lists, by Python's audit events."""
    seen: list[str] = []
    watching = True

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if watching and event in ("open", "os.listdir", "os.scandir") and arguments:
            seen.append(str(arguments[0]))

    sys.addaudithook(hook)  # there is no way to take one back, so it is told to look away
    yield seen
    watching = False


@pytest.fixture
def environ() -> Mapping[str, str]:
    """The environment of a child that uses the cache of these tests."""
    import os

    return dict(os.environ)

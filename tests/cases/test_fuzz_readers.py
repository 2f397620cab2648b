"""The fuzzer of `make soak`: a moment of it finds nothing in the readers, and it finds what is planted in others."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).resolve().parents[2] / "benchmarks" / "soak"
pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the fuzzer watches its children in /proc")

# Readers with a fault each, which shows now and then.
PLANTED = """
import os, time
from dataclasses import dataclass
from random import Random

from cacheir.errors import MalformedModelError


@dataclass
class Reader:
    fault: object
    prepare = staticmethod(lambda folder: lambda random: ("file", bytes([random.randrange(256)])))

    def read(self, folder, name):
        value = (folder / name).read_bytes()[0]
        if value % 2 and value < 200:
            raise MalformedModelError("an odd number")
        if value > 200:
            self.fault()


def hang():
    while True:
        pass


kept = []
seen = []


def grow():
    seen.append(1)
    if len(seen) == 25:  # what a process takes at its beginning does not count
        kept.append(b"x" * (400 << 20))


READERS = {
    "sound": Reader(lambda: None),
    "crash": Reader(lambda: 1 // 0),
    "hang": Reader(hang),
    "growth": Reader(grow),
    "signal": Reader(lambda: os.abort()),
}
"""


def fuzz(folder: Path, tmp_path: Path, *words: str) -> tuple[int, str, Path]:
    """Exit code, what was said, and where files that did harm are kept."""
    found = tmp_path / "found"
    command = [
        sys.executable,
        str(folder / "fuzz_readers.py"),
        "--out",
        str(tmp_path / "last.txt"),
        "--found",
        str(found),
    ]
    done = subprocess.run([*command, *words], capture_output=True, text=True, check=False, timeout=300)
    return done.returncode, done.stdout + done.stderr, found


@pytest.mark.parametrize("name", ["gguf", "safetensors", "npz", "onnx", "stablehlo"])
def test_half_a_second_finds_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the child of the fuzzer does, with a new seed, in this process."""
    monkeypatch.syspath_prepend(SOAK)
    import fuzz_readers

    (tmp_path / "beat").write_bytes(bytes(64))
    (tmp_path / "files").mkdir()
    seed = secrets.token_hex(4)
    worker = fuzz_readers.Worker(name, seed, tmp_path / "files", tmp_path / "beat")
    worker.run(0, 0.5)
    assert capsys.readouterr().out == "DONE\n", seed
    # A fuzzer whose files are all refused at the first byte, or all fine, tests nothing.
    assert worker.refused > 5 and (worker.accepted or worker.refused < 200), seed


def test_what_is_planted_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "planted"
    folder.mkdir()
    shutil.copy(SOAK / "fuzz_readers.py", folder)
    (folder / "readers.py").write_text(PLANTED)
    faults = {"crash": "CRASH", "hang": "HANG", "growth": "GROWTH", "signal": "ended with -6"}
    code, lines, found = fuzz(folder, tmp_path, "--seconds", "4", "--readers", ",".join(["sound", *faults]))
    assert code == 1, lines
    for name, said in faults.items():
        assert any(line.startswith(f"{name}: ") and said in line for line in lines.splitlines()), lines
    assert {path.name.partition("-")[0] for path in found.iterdir()} == set(faults)  # the sound one is in none

"""docs/walk.md shows what the commands on it print now; ``pytest tests/walk --accept`` writes it anew.

The blocks of the page that begin with ``$ cacheir`` are run one after another in an empty folder, with core, the NumPy
backend and the importers. What differs between machines and runs (hashes, times) is not compared, and kept on the page.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "walk.md"
BLOCK = re.compile(r"^```console\n\$ (cacheir [^\n]*)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
CUT = re.compile(r" \| (head|tail) -(\d+)$")

# Runs every command in one process, and gives [exit code, standard output] of each.
_RUN = """
import contextlib, io, json, shlex, sys
from cacheir.cli.main import run
answers = []
for line in json.load(sys.stdin):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = run(shlex.split(line)[1:])
    answers.append([code, out.getvalue()])
json.dump(answers, sys.stdout)
"""


def answers(commands: list[str], folder: Path) -> list[str]:
    """What each command prints on standard output; all of them succeed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CACHEIR_")}
    environment |= {"CACHEIR_CACHE_DIR": str(folder / "cache"), "CACHEIR_PLUGINS": "cpu,importers", "COLUMNS": "120"}
    place = folder / "walk"
    place.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", _RUN],
        input=json.dumps([CUT.sub("", command) for command in commands]),
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    printed = []
    for command, (code, text) in zip(commands, json.loads(done.stdout), strict=True):
        assert code == 0, f"{command} exits with {code}: {done.stderr}"
        printed.append(_cut(command, text))
    return printed


def test_the_page_shows_what_commands_print(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    text = PAGE.read_text(encoding="utf-8")
    shown = BLOCK.findall(text)
    printed = answers([command for command, _ in shown], tmp_path)
    if request.config.getoption("--accept"):
        fresh = iter(printed)
        PAGE.write_text(BLOCK.sub(lambda found: _block(found, next(fresh)), text), encoding="utf-8")
        return
    for (command, on_page), now in zip(shown, printed, strict=True):
        assert _plain(on_page) == _plain(now), f"{command}: docs/walk.md is of before; pytest tests/walk --accept"


def test_the_page_goes_through_every_step() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert len(BLOCK.findall(text)) >= 10
    assert text.count("```console") == len(BLOCK.findall(text)), "a block has no command of ours in its first line"
    for step in ("importer", "builder", "passes", "kernel", "memory", "artifact", "executor"):
        assert re.search(rf"^## .*{step}", text, flags=re.MULTILINE | re.IGNORECASE), f"no heading about the {step}"


def test_what_is_not_compared() -> None:
    assert _plain("program   d209d08f4001cff2, written\n") == _plain("program   0123456789abcdef, written\n")
    assert _plain("done in 2.0 s") == _plain("done in 13.7 s")
    assert _plain("%q: f32[T, 64] = linear") != _plain("%q: f32[T, 32] = linear")
    assert _plain("add   1") != _plain("add   2")


def _cut(command: str, text: str) -> str:
    """``| head -N`` and ``| tail -N``, which the command itself does not see."""
    cut = CUT.search(command)
    if cut is None:
        return text
    lines, count = text.splitlines(keepends=True), int(cut[2])
    return "".join(lines[:count] if cut[1] == "head" else lines[-count:])


def _block(found: re.Match[str], now: str) -> str:
    """The block with what is printed now; as it is where only hashes and times are others."""
    same = _plain(found[2]) == _plain(now)
    return f"```console\n$ {found[1]}\n{found[2] if same else now}```"


def _plain(text: str) -> str:
    text = re.sub(r"\b(?=[0-9a-f]*\d)[0-9a-f]{12,64}\b", "HASH", text)
    text = re.sub(r"\b\d+(\.\d+)? (s|ms|tokens/s)\b", r"TIME \2", text)
    return "\n".join(line.rstrip() for line in text.splitlines())

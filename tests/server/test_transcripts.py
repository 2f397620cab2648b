"""The curl transcripts of docs/server.md, run as they stand there: what comes back has the shape that is shown."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "server.md"
# Of these the page's own values must come back; of all others only the type.
FIXED = {"object", "role", "type", "param", "code", "finish_reason", "status", "model", "index", "message", "backend"}
# Keys that are tokens, so that another processor's rounding may give others.
OPEN = {"top_logprobs"}

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


def transcripts() -> list[tuple[str, str]]:
    """Every command of the page with what it shows below it."""
    section = PAGE.read_text(encoding="utf-8").partition("## Transcripts\n")[2].partition("\n## ")[0]
    found = []
    for block in section.split("\n    $ ")[1:]:
        lines = [line.removeprefix("    ") for line in block.split("\n\n")[0].splitlines()]
        # A command goes on behind a backslash, and as long as a quote is open.
        end = next(number for number in range(1, len(lines) + 1) if _is_whole("\n".join(lines[:number])))
        found.append(("\n".join(lines[:end]), "\n".join(lines[end:])))
    return found


def _is_whole(command: str) -> bool:
    return command.count("'") % 2 == 0 and not command.endswith("\\")


COMMANDS = transcripts()


def test_the_page_has_one_for_every_route_that_answers() -> None:
    shown = {match for command, _ in COMMANDS for match in re.findall(r"http://127\.0\.0\.1:8000(/\S*)", command)}
    assert shown == {
        "/v1/models",
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/responses",
        "/v1/cacheir/batch_completions",
        "/tokenize",
        "/detokenize",
        "/health",
        "/metrics",
    }
    assert any('"stream": true' in command for command, _ in COMMANDS)


@pytest.mark.parametrize(("command", "shown"), COMMANDS, ids=range(len(COMMANDS)))
def test_a_transcript_is_true(served: Any, command: str, shown: str) -> None:
    command = command.replace("http://127.0.0.1:8000", served.url)
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    if shown.startswith("data: "):
        _compare_streams(done.stdout, shown)
    elif shown.startswith("{"):
        _compare(json.loads(done.stdout), json.loads(shown), "the answer")
    else:
        assert done.stdout.strip() == shown.strip()


def _compare_streams(made: str, shown: str) -> None:
    expected = shown.strip().splitlines()
    found = [line for line in made.splitlines() if line]
    if "..." in expected:
        place = expected.index("...")
        more = len(found) - len(expected) + 1
        assert more >= 0
        expected[place : place + 1] = [expected[place - 1]] * more
    assert len(found) == len(expected)
    for number, (one, other) in enumerate(zip(found, expected)):
        if other == "data: [DONE]":
            assert one == other
        else:
            _compare(
                json.loads(one.removeprefix("data: ")), json.loads(other.removeprefix("data: ")), f"event {number}"
            )


def _compare(made: Any, shown: Any, where: str, key: str = "") -> None:
    numbers = (int, float)
    if isinstance(shown, numbers) and not isinstance(shown, bool):
        assert isinstance(made, numbers) and not isinstance(made, bool), where
    else:
        assert type(made) is type(shown), f"{where} is {made!r}, and the page shows {shown!r}"
    if isinstance(shown, dict):
        if key not in OPEN:
            assert list(made) == list(shown), where
            for name, value in shown.items():
                _compare(made[name], value, f"{where}.{name}", name)
    elif isinstance(shown, list):
        assert bool(made) == bool(shown), where
        for number, value in enumerate(made):
            _compare(value, shown[min(number, len(shown) - 1)], f"{where}[{number}]", key)
    elif key in FIXED:
        assert made == shown, f"{where} is {made!r}, and the page shows {shown!r}"


def test_the_comparison_sees_what_differs() -> None:
    page = {"object": "list", "data": [{"id": "a", "n": 1, "ok": True, "none": None}]}
    _compare({"object": "list", "data": [{"id": "b", "n": 2.5, "ok": False, "none": None}] * 2}, page, "")
    for wrong in (
        {"object": "other", "data": page["data"]},
        {"object": "list", "data": []},
        {"object": "list"},
        {"object": "list", "data": [{"id": 1, "n": 1, "ok": True, "none": None}]},
        {"object": "list", "data": [{"id": "a", "n": True, "ok": True, "none": None}]},
        {"object": "list", "data": [{"id": "a", "n": 1, "ok": True, "none": 0}]},
        {"object": "list", "data": [{"id": "a", "n": 1, "ok": True, "none": None, "more": 1}]},
    ):
        with pytest.raises(AssertionError):
            _compare(wrong, page, "")

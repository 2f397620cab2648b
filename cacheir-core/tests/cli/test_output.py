"""Tables are aligned, JSON is JSON, progress goes to stderr, colour only to terminals."""

from __future__ import annotations

import io
import json

import pytest

from cacheir.cli.output import colour_states, print_json, print_table, say, table, wants_colour


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_table_is_aligned() -> None:
    text = table(
        ("NAME", "COUNT", "WHAT"), [("a", 1, "one"), ("longer", 20, ""), ("b", 300, "line\nbreak")], right=("COUNT",)
    )
    assert text.split("\n") == [
        "NAME    COUNT  WHAT",
        "a           1  one",
        "longer     20",
        "b         300  line break",
    ]


def test_a_table_without_rows() -> None:
    assert table(("A", "B"), []) == "A  B"


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"b": [1, 2.5], "a": "é"})
    out = capsys.readouterr().out
    assert json.loads(out) == {"a": "é", "b": [1, 2.5]}
    assert out.index('"a"') < out.index('"b"') and "é" in out


def test_what_is_no_json() -> None:
    with pytest.raises(ValueError, match="JSON"):
        print_json({"x": float("nan")})


def test_colour_is_for_terminals(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert wants_colour(Terminal())
    assert not wants_colour(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not wants_colour(Terminal())
    print_table(("STATE",), [("failed",)])
    assert capsys.readouterr().out == "STATE\nfailed\n"


def test_colour_marks_whole_words() -> None:
    assert colour_states("x  FAIL  unfailed failed") == "x  \x1b[31mFAIL\x1b[0m  unfailed \x1b[31mfailed\x1b[0m"


def test_progress_is_a_line_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    say("compiling")
    assert capsys.readouterr() == ("", "compiling\n")

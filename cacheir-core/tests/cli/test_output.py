"""Tables are aligned, JSON is JSON, progress goes to stderr, colour only to terminals."""

from __future__ import annotations

import io
import json

import pytest

from cacheir.cli.output import colour_states, print_json, print_table, progress, table, wants_colour


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


def test_progress_on_a_terminal_is_one_line() -> None:
    out = Terminal()
    with progress("compiling", out):
        assert out.getvalue() == "compiling ..."
    assert out.getvalue() == "compiling ... 0.0 s\n"


def test_progress_in_a_log_is_a_line_each() -> None:
    out = io.StringIO()
    with progress("compiling", out):
        pass
    with pytest.raises(KeyError), progress("reading", out):
        raise KeyError
    assert out.getvalue().splitlines() == ["compiling ...", "compiling: 0.0 s", "reading ...", "reading: failed"]

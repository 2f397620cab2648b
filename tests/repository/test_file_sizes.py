"""A source file has one subject: at most 400 lines, and a first line that says what it is."""

from __future__ import annotations

import re
from pathlib import Path

MAX_LINES = 400


def test_no_source_file_is_longer_than_the_limit(source_files: list[Path], root: Path) -> None:
    long = {
        str(path.relative_to(root)): lines
        for path in source_files
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > MAX_LINES
    }
    assert not long


def test_no_kernel_source_is_longer_than_the_limit_and_each_says_what_it_is(root: Path) -> None:
    """C++ and CUDA C++, headers too: the first line is a comment."""
    sources = [path for part in ("cuh", "cu", "cpp", "h", "hpp") for path in root.glob(f"cacheir-*/cpp/**/*.{part}")]
    assert len(sources) > 50
    lines = {str(path.relative_to(root)): path.read_text(encoding="utf-8").splitlines() for path in sources}
    assert not {name: len(text) for name, text in lines.items() if len(text) > MAX_LINES}
    assert not {name: text[0] for name, text in lines.items() if not text[0].startswith("//")}


def test_the_first_line_is_a_docstring_sentence(source_files: list[Path], root: Path) -> None:
    """An empty __init__.py says nothing and needs no sentence."""
    bad = {
        str(path.relative_to(root)): lines[0]
        for path in source_files
        if (lines := path.read_text(encoding="utf-8").splitlines()) and not is_sentence(lines[0])
    }
    assert not bad


def is_sentence(line: str) -> bool:
    """Whether a line opens a docstring and says something whole: a sentence, or the head of a list."""
    return re.match(r'"""(``|[A-Za-z]).*[.?:](\s|"|$)', line) is not None


def test_no_file_name_hides_what_is_in_it(source_files: list[Path], root: Path) -> None:
    vague = {"utils", "util", "helpers", "helper", "misc", "common", "stuff"}
    numbered = re.compile(r".*_[2-9]")  # the second half of something
    bad = [str(p.relative_to(root)) for p in source_files if p.stem in vague or numbered.fullmatch(p.stem)]
    assert not bad

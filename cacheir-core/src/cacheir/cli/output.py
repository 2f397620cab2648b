"""What commands print: aligned tables or JSON on standard output, progress on standard error."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any, TextIO

# States that a reader looks for, and their ANSI colours. Colour is never the only sign of anything.
_COLOURS = {"ok": "32", "loaded": "32", "FAIL": "31", "failed": "31", "incompatible": "31", "slow": "33", "idle": "33"}


def print_json(value: Any, out: TextIO | None = None) -> None:
    """Print ``value`` as indented JSON with sorted keys; NaN and infinities are errors, as they are no JSON."""
    print(json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False), file=out or sys.stdout)


def table(headings: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[str] = ()) -> str:
    """An aligned table without boxes, one line a row, two spaces between columns.

    ``right`` names the headings whose columns are aligned to the right: numbers. A line break in a cell becomes a
    space, so that a row stays a line.
    """
    cells = [[str(heading) for heading in headings], *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headings))]
    lines = []
    for row in cells:
        padded = (
            cell.rjust(width) if heading in right else cell.ljust(width)
            for cell, width, heading in zip(row, widths, headings)
        )
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def print_table(headings: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[str] = ()) -> None:
    """Print a table, its states in colour where standard output is a terminal."""
    text = table(headings, rows, right=right)
    print(colour_states(text) if wants_colour(sys.stdout) else text)


def wants_colour(stream: TextIO) -> bool:
    """Whether ``stream`` is a terminal whose user has not asked for plain text (``NO_COLOR``)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def colour_states(text: str) -> str:
    """``text`` with the words that are states in colour, where they stand alone between spaces."""
    lines = []
    for line in text.split("\n"):
        words = line.split(" ")
        lines.append(" ".join(f"\x1b[{_COLOURS[word]}m{word}\x1b[0m" if word in _COLOURS else word for word in words))
    return "\n".join(lines)


def say(text: str) -> None:
    """A line of progress on standard error."""
    print(text, file=sys.stderr, flush=True)


def size_text(nbytes: float) -> str:
    """A size for people, in units of 1000: ``12.6 MB``."""
    for unit in ("B", "kB", "MB"):
        if nbytes < 1000:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1000
    return f"{nbytes:.1f} GB"


def memory_text(nbytes: float) -> str:
    """A size of memory for people, in units of 1024 as ``--memory`` takes them: ``2.0GiB``."""
    for unit in ("B", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f}{unit}" if unit == "B" else f"{nbytes:.1f}{unit}"
        nbytes /= 1024
    return f"{nbytes:.1f}GiB"


def _cell(value: object) -> str:
    return " ".join(str(value).split("\n"))

"""The spelling of a diff in passes/: a call that changed as one above it did stands in one line instead of two.

A step that gives every layer's call new operands removes and adds a line for each layer. In the file the first such
call has both lines, and each further one a line that begins with ``~`` and holds the new call. Its old call is that of
the nearest call above that is spelt alike, with the names and numbers replaced that differ between the two new ones.
Where this would not give the old line back exactly, both lines stand. Heads of hunks count the lines of the whole diff.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby

from cacheir.errors import ArtifactDamagedError

_CALL = " = call @"
_HEAD_LINES = 2
# How many times its own length the line may have that a ``~`` line stands for: a small file must not fill the memory.
_MOST_GROWTH = 8
_TOKEN = re.compile(r"%[\w.-]+|\w+ = \d+")


def fold_diff(diff: str) -> str:
    """The text of the file for a unified ``diff``; ``unfold_diff`` gives the diff back."""
    lines = diff.splitlines(keepends=True)
    folded = "".join([*lines[:_HEAD_LINES], *(line for block in _blocks(lines) for line in _fold_block(block))])
    return folded if "\n~" in folded and unfold_diff(folded) == diff else diff


def unfold_diff(text: str) -> str:
    """The unified diff that a file of passes/ tells. ArtifactDamagedError for a ``~`` line that follows from none."""
    lines = text.splitlines(keepends=True)
    return "".join([*lines[:_HEAD_LINES], *(line for block in _blocks(lines) for line in _unfold_block(block))])


def _blocks(lines: Sequence[str]) -> Iterator[list[str]]:
    """The lines behind the head, in runs of changed ones and of others."""
    for _, block in groupby(lines[_HEAD_LINES:], key=lambda line: line[:1] in ("-", "+", "~")):
        yield list(block)


def _fold_block(block: list[str]) -> list[str]:
    removed, added = ([line[1:] for line in block if line[0] == sign] for sign in "-+")
    old_calls, new_calls = ([at for at, line in enumerate(part) if _CALL in line] for part in (removed, added))
    if len(old_calls) < 2 or len(old_calls) != len(new_calls):
        return block
    lines: list[str] = []
    pairs: dict[str, tuple[str, str]] = {}
    old_at = new_at = 0
    for old_call, new_call in zip(old_calls, new_calls):
        lines += ["-" + line for line in removed[old_at:old_call]] + ["+" + line for line in added[new_at:new_call]]
        old, new = removed[old_call], added[new_call]
        lines += ["~" + new] if _old_call(new, pairs) == old else ["-" + old, "+" + new]
        pairs[_shape(new)] = (old, new)
        old_at, new_at = old_call + 1, new_call + 1
    lines += ["-" + line for line in removed[old_at:]] + ["+" + line for line in added[new_at:]]
    return lines if any(line[0] == "~" for line in lines) else block


def _unfold_block(block: list[str]) -> list[str]:
    if not any(line[0] == "~" for line in block):
        return block
    removed: list[str] = []
    added: list[str] = []
    pairs: dict[str, tuple[str, str]] = {}
    for number, line in enumerate(block):
        sign, text = line[0], line[1:]
        if sign == "-":
            removed.append(text)
            continue
        if sign == "~":
            old = _old_call(text, pairs)
            if old is None:
                raise ArtifactDamagedError(
                    f"a diff has the line {line.strip()[:80]!r}, and no call above it in the hunk changed alike",
                    hint="compile the model again",
                )
            removed.append(old)
            pairs[_shape(text)] = (old, text)
        elif _CALL in text and number and block[number - 1][0] == "-":
            pairs[_shape(text)] = (block[number - 1][1:], text)
        added.append(text)
    return ["-" + line for line in removed] + ["+" + line for line in added]


def _old_call(new: str, pairs: dict[str, tuple[str, str]]) -> str | None:
    """What stood before ``new``, if it changed as the last call of its shape did; None where there is none.

    None as well for a line that is ``_MOST_GROWTH`` times as long.
    """
    if (pair := pairs.get(_shape(new))) is None:
        return None
    old, like = pair
    replaced = dict(zip(_TOKEN.findall(like), _TOKEN.findall(new)))
    length = len(old) + sum(len(replaced.get(token, token)) - len(token) for token in _TOKEN.findall(old))
    if length > _MOST_GROWTH * len(new):
        return None
    return _TOKEN.sub(lambda match: replaced.get(match[0], match[0]), old)


def _shape(line: str) -> str:
    """The line without names and numbers of attributes: what the calls of one layer graph have in common."""
    return _TOKEN.sub("%", line)

"""A folded diff says in one line what two say, and gives both back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cacheir.artifact.folded_diff import fold_diff, unfold_diff
from cacheir.errors import ArtifactDamagedError
from cacheir.pipeline.diff import text_diff

HEAD = "--- before step\n+++ after step\n@@ -1,4 +1,4 @@\n"
CALLS = """\
 graph @main {
-  %h.1: f32[T, 8] = call @layer(%h.0, %rows) {layer = 0}
+  %h.1: f32[T, 8], %kv.1: kv = call @layer(%h.0, %kv) {layer = 0}
{second}\
"""


def step_diff(windows: list[bool], *, odd: int = -1) -> str:
    """A step's diff over calls of two layer graphs; the call ``odd`` keeps an operand that the others lose."""
    old, new = ["graph @main {"], ["module m", "graph @main {"]
    for layer, local in enumerate(windows):
        callee, cache = ("local", "near") if local else ("global", "kv")
        here = f"%{cache}.{layer}" if layer else f"%{cache}"
        rows = ", %rows, %other" if layer == odd else ", %rows"
        old.append(f"  %h.{layer + 1}: f32[T, 8] = call @{callee}(%h.{layer}{rows}) {{layer = {layer}}}")
        results = f"%h.{layer + 1}: f32[T, 8], %{cache}.{layer + 1}: kv"
        new.append(f"  {results} = call @{callee}(%h.{layer}, {here}) {{layer = {layer}}}")
    old, new = [*old, "  yield %h", "}"], [*new, "  yield %h, %kv", "}"]
    return text_diff(*("".join(line + "\n" for line in part) for part in (old, new)), old="before s", new="after s")


@given(st.lists(st.booleans(), max_size=12), st.integers(-1, 12))
def test_each_call_more_is_one_line_more(windows: list[bool], odd: int) -> None:
    diff = step_diff(windows, odd=odd)
    folded = fold_diff(diff)
    assert unfold_diff(folded) == diff
    whole = len(set(windows)) + 2  # the first of each layer graph, the odd one, and the one that follows it
    assert len(diff.splitlines()) - len(folded.splitlines()) >= max(0, len(windows) - whole)


@given(st.lists(st.sampled_from("abc %x.1 call"), max_size=30).map("".join), st.text("=%@ .\n~+-ac1", max_size=60))
def test_any_diff_comes_back(before: str, after: str) -> None:
    diff = text_diff(before + "\n", after + "\n", old="before", new="after")
    assert unfold_diff(fold_diff(diff)) == diff


def test_the_folded_text() -> None:
    second = "-  %h.2: f32[T, 8] = call @layer(%h.1, %rows) {layer = 1}\n"
    second += "+  %h.2: f32[T, 8], %kv.2: kv = call @layer(%h.1, %kv.1) {layer = 1}\n"
    lines = CALLS.replace("{second}", second).splitlines(keepends=True)
    diff = HEAD + "".join([lines[0], lines[1], lines[3], lines[2], lines[4]])
    assert fold_diff(diff) == HEAD + "".join([*lines[:3], "~" + lines[4][1:]])


def test_a_line_that_changed_otherwise_stays_whole() -> None:
    diff = step_diff([True] * 4, odd=2)
    assert [line[0] for line in fold_diff(diff).splitlines() if "= call @" in line] == list("-+~-+-+")


@pytest.mark.parametrize("above", ["", "-  a\n+  b\n", "-  %a = call @f(%b)\n+  %a = call @g(%b)\n"])
def test_a_line_that_follows_from_none_is_damage(above: str) -> None:
    with pytest.raises(ArtifactDamagedError, match="no call above"):
        unfold_diff(f"{HEAD}{above}~  %b = call @f(%c)\n")


def test_a_line_that_stands_for_a_far_longer_one_is_damage() -> None:
    """Quadratic in the file's size otherwise: 60,000 operands, each replaced by a long name."""
    operands, name = ", ".join(["%a"] * 60_000), "%" + "b" * 60_000
    block = f"-  %x = call @f({operands})\n+  %x = call @f(%a)\n~  %x = call @f({name})\n"
    with pytest.raises(ArtifactDamagedError, match="no call above"):
        unfold_diff(HEAD + block)

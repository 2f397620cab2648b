"""Stop strings over token borders: what is delivered never depends on the pieces, and nothing held back leaks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cacheir.runtime.stop_strings import StopStrings, cut_at_stop

SHORT = st.text(alphabet="abc", min_size=1, max_size=5)


def deliver(pieces: list[str], stops: list[str]) -> tuple[list[str], bool]:
    search = StopStrings(stops)
    out = [search.push(piece) for piece in pieces]
    return [*out, search.finish()], search.stopped


def split(text: str, borders: list[int]) -> list[str]:
    places = sorted({0, len(text), *(border % (len(text) + 1) for border in borders)})
    return [text[start:stop] for start, stop in zip(places, places[1:])]


@given(
    text=st.text(alphabet="abc", max_size=40), stops=st.lists(SHORT, max_size=4), borders=st.lists(st.integers(0, 99))
)
def test_pieces_are_searched_like_the_whole(text: str, stops: list[str], borders: list[int]) -> None:
    whole = cut_at_stop(text, stops)
    out, stopped = deliver(split(text, borders), stops)
    assert "".join(out) == (text if whole is None else whole)
    assert stopped == (whole is not None)


@given(text=st.text(alphabet="abc", max_size=40), stops=st.lists(SHORT, max_size=4))
def test_the_first_complete_stop_counts(text: str, stops: list[str]) -> None:
    """Against a search that grows the text character by character."""
    expected = None
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            expected = text[: end - max(map(len, ending))]
            break
    assert cut_at_stop(text, stops) == expected


@given(text=st.text(alphabet="abc", max_size=30), stops=st.lists(SHORT, min_size=1, max_size=3))
def test_nothing_is_held_back_without_need(text: str, stops: list[str]) -> None:
    search = StopStrings(stops)
    seen = ""
    for character in text:
        seen += character
        search.push(character)
        if search.stopped:
            return
        held = search._held
        assert seen.endswith(held)
        assert not held or any(stop.startswith(held) and len(stop) > len(held) for stop in stops)


@pytest.mark.parametrize(
    ("stops", "text"),
    [
        (["DEFG"], "abc"),
        (["GHij"], "abcDEF"),
        (["bc"], "a"),
        (["ab"], ""),
        (["zz"], "abcDEFGHij"),
        (["ijk"], "abcDEFGHij"),
        (["DEFGHijk", "EF"], "abcD"),
    ],
)
def test_case_d04(stops: list[str], text: str) -> None:
    """Case D04: the pieces 'ab', 'cD', 'EF', 'GH', 'ij'."""
    out, _ = deliver(["ab", "cD", "EF", "GH", "ij"], stops)
    assert "".join(out) == text


def test_a_stop_of_one_wide_character() -> None:
    assert deliver(["ab", "c😀", "d"], ["😀"]) == (["ab", "c", "", ""], True)

"""Text out of ids as they come: characters over token borders, bytes that are no text, the dummy prefix."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cacheir.runtime.detokenize import Detokenizer


def stream(tokenizer, ids, *, at_start=False):
    detokenizer = Detokenizer(tokenizer, at_start=at_start)
    return [*(detokenizer.push((token,)) for token in ids), detokenizer.finish()]


@given(ids=st.lists(st.integers(0, 259), max_size=40))
def test_pieces_are_the_whole(fake, ids):
    tokenizer = fake.ByteTokenizer()
    assert "".join(stream(tokenizer, ids)) == tokenizer.decode(ids)


@given(text=st.text(max_size=30), borders=st.lists(st.integers(0, 120)))
def test_no_replacement_character_in_the_middle_of_a_text(fake, text, borders):
    """Every piece of a whole text is whole characters of it, in whatever groups its bytes come."""
    data = text.encode()
    places = sorted({0, len(data), *(border % (len(data) + 1) for border in borders)})
    detokenizer = Detokenizer(fake.ByteTokenizer())
    pieces = [detokenizer.push(data[start:stop]) for start, stop in zip(places, places[1:])]
    assert detokenizer.finish() == ""
    assert "".join(pieces) == text


@pytest.mark.parametrize("text", ["😀", "👨‍👩‍👧", "ที่", "é", "é"])
def test_case_b28_split_characters(fake, text):
    data = list(text.encode())
    assert "".join(stream(fake.ByteTokenizer(), data)) == text
    for cut in range(1, len(data)):
        pieces = stream(fake.ByteTokenizer(), data[:cut])
        assert "�" not in "".join(pieces[:-1])
        assert pieces[-1] in ("", "�")
        assert "".join(pieces) == bytes(data[:cut]).decode(errors="replace")


@pytest.mark.parametrize(
    ("at_start", "strips", "text"),
    [(True, True, "hello"), (True, False, " hello"), (False, True, " hello"), (False, False, " hello")],
)
def test_the_dummy_prefix_goes_only_where_a_text_begins(fake, at_start, strips, text):
    tokenizer = fake.ByteTokenizer(strips_leading_space=strips)
    assert "".join(stream(tokenizer, b" hello", at_start=at_start)) == text


def test_one_space_goes_and_no_more(fake):
    assert "".join(stream(fake.ByteTokenizer(strips_leading_space=True), b"  a", at_start=True)) == " a"
    assert "".join(stream(fake.ByteTokenizer(strips_leading_space=True), b"a b", at_start=True)) == "a b"

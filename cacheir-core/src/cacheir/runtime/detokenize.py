"""Text out of token ids as they come: a character that is split over tokens waits until it is whole."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from functools import cached_property

from cacheir.runtime.tokenizer import Tokenizer

_DECODER = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """Turns ids into pieces of text; the pieces joined are the text of all ids.

    A character whose bytes are not complete yet is held back, so U+FFFD stands only for bytes that can be no
    character any more, and once for a character that ``finish`` cuts short. ``at_start`` says that no text stands
    before the first id: there a tokenizer with a dummy prefix loses the one space that it put there itself.
    """

    def __init__(self, tokenizer: Tokenizer, *, at_start: bool = False) -> None:
        self._tokenizer = tokenizer
        self._open = False  # whether the decoder may hold the beginning of a character
        self._strip = at_start and tokenizer.strips_leading_space

    @cached_property
    def _decoder(self) -> codecs.IncrementalDecoder:
        """Made for the first character beyond ASCII, which many an answer never has."""
        return _DECODER("replace")

    def push(self, ids: Iterable[int]) -> str:
        """The text that ``ids`` complete, "" where the last character is still open."""
        found = b"".join(map(self._tokenizer.token_bytes, ids))
        if found.isascii() and not self._open:  # the rule, and much cheaper than the decoder
            text = found.decode("ascii")
        else:
            text = self._decoder.decode(found)
            # An empty piece leaves an open character open.
            self._open = not found or found[-1] >= 0x80
        return self._stripped(text) if self._strip else text

    def finish(self) -> str:
        """What was held back: U+FFFD where the last character stayed open, else ""."""
        return self._stripped(self._decoder.decode(b"", final=True)) if self._open else ""

    def _stripped(self, text: str) -> str:
        if self._strip and text:
            self._strip = False
            return text.removeprefix(" ")
        return text

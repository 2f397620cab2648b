"""Stands in where a model came without a tokenizer: ids in and ids out, and every text a refusal that says so."""

from __future__ import annotations

from collections.abc import Sequence

from cacheir.errors import RequestError


class NoTokenizer:
    """Knows all ids of the model and the text of none."""

    special_ids: frozenset[int] = frozenset()
    strips_leading_space = False

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Refuses."""
        raise RequestError("this model came without a tokenizer", hint="give token ids: Runtime.generate_ids")

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """No id has a text."""
        return ""

    def token_bytes(self, token: int) -> bytes:
        """No id has a text."""
        return b""

    def token_id(self, text: str) -> int | None:
        """No text has an id."""
        return None

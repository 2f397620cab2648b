"""What the runtime needs of a tokenizer; ``TokenizerSpec.load(source: TokenizerSource) -> Tokenizer`` makes one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Tokenizer(Protocol):
    """Text to ids and back. It never adds BOS or EOS by itself: the caller does, from ``GenerationDefaults``.

    ``vocab_size`` counts the ids it knows (a model's vocabulary may be padded beyond). ``special_ids`` are control
    tokens, which ``decode`` leaves out unless asked for.
    """

    vocab_size: int
    special_ids: frozenset[int]

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Ids of ``text``. Text that looks like a control token stays text, unless ``special``."""
        ...

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Text of ``ids``; bytes that are not UTF-8 become U+FFFD."""
        ...

    def token_bytes(self, token: int) -> bytes:
        """The bytes that ``token`` adds to a text, ``b""`` for a control token or an id it does not know.

        Joining them over a text's ids and decoding as UTF-8 gives the text (up to one leading space where
        ``strips_leading_space``).
        """
        ...

    @property
    def strips_leading_space(self) -> bool:
        """Whether ``decode`` drops one space at the very start (SentencePiece's dummy prefix)."""
        ...

    def token_id(self, text: str) -> int | None:
        """The id of the token spelt exactly ``text`` (``<|im_end|>``), None where there is none."""
        ...

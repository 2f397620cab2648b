"""How SentencePiece spells text: a space is U+2581, and a byte that no piece holds is the token ``<0x0A>``."""

from __future__ import annotations

from collections.abc import Callable

WORD_START = "\u2581"


def byte_token(byte: int) -> str:
    """The text of the token of one byte."""
    return f"<0x{byte:02X}>"


def piece_bytes(mark: str = WORD_START, content: str = " ", *, byte_fallback: bool = True) -> Callable[[str], bytes]:
    """The bytes that a piece stands for: ``mark`` means ``content``; with ``byte_fallback`` ``<0x0A>`` is one byte."""

    def spell(text: str) -> bytes:
        if byte_fallback and len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
            try:
                return bytes([int(text[3:5], 16)])
            except ValueError:
                pass  # not a byte token after all: its text is meant
        return text.replace(mark, content).encode("utf-8")

    return spell

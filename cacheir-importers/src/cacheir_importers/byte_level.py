"""The map of byte-level BPE: each byte is written as one printable character, so that any bytes are a token's text.

Source: the GPT-2 encoder. Printable Latin-1 characters stand for themselves, the other 68 bytes for U+0100 on.
"""

from __future__ import annotations


def _byte_characters() -> tuple[str, ...]:
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    characters, next_free = [], 0x100
    for byte in range(256):
        if byte in printable:
            characters.append(chr(byte))
        else:
            characters.append(chr(next_free))
            next_free += 1
    return tuple(characters)


BYTE_CHARACTERS: tuple[str, ...] = _byte_characters()

# For str.translate: the character of a byte becomes the Latin-1 character of that byte, so that encoding to Latin-1
# gives the bytes.
_TO_LATIN_1 = {ord(character): byte for byte, character in enumerate(BYTE_CHARACTERS)}


def to_bytes(text: str) -> bytes:
    """The bytes that a byte-level token stands for; a character that stands for no byte gives its UTF-8.

    Such characters occur only in tokens that were added beside the vocabulary, whose text is meant as it is.
    """
    if all(ord(character) in _TO_LATIN_1 for character in text):
        return text.translate(_TO_LATIN_1).encode("latin-1")
    return text.encode("utf-8")


def from_bytes(raw: bytes) -> str:
    """The text of a byte-level token that stands for ``raw``."""
    return "".join(BYTE_CHARACTERS[byte] for byte in raw)

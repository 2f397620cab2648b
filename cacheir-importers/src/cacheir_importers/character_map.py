"""The map of characters that a SentencePiece model applies to a text before it is split (``precompiled_charsmap``).

Source: SentencePiece's ``normalizer.cc`` and the double-array trie of Darts-clone: the longest key that the rest of the
text begins with is replaced. The tokenizers library has the same map, but drops what follows a mapped character within
one grapheme (U+00B2 U+0322 becomes "2"), so it is read here.
"""

from __future__ import annotations

import re
import struct

from cacheir.errors import MalformedModelError

_PRINTABLE = range(0x20, 0x7F)
# Printable ASCII up to the last character before another one, with which it might be one key.
_PLAIN = re.compile(r"[ -~]+(?![^ -~])")
_LABEL, _LEAF, _VALUE = 0x800000FF, 1 << 8, 0x7FFFFFFF


class CharacterMap:
    """``apply`` maps a text. MalformedModelError, which begins with ``place``, for bytes that are no map."""

    def __init__(self, content: bytes, place: str) -> None:
        size = struct.unpack_from("<I", content)[0] if len(content) >= 4 else 0
        if size % 4 or not 0 < size <= len(content) - 4:
            raise MalformedModelError(f"{place}: precompiled_charsmap says that its trie has {size} bytes")
        self._place = place
        self._units = struct.unpack_from(f"<{size // 4}I", content, 4)
        self._texts = content[4 + size :]
        self._plain = self._ascii_table()

    def apply(self, text: str) -> str:
        """``text`` with every longest key replaced."""
        made, position = [], 0
        while position < len(text):
            plain = _PLAIN.match(text, position) if self._plain is not None else None
            if plain:
                made.append(plain.group().translate(self._plain or {}))
                position = plain.end()
                continue
            length, replacement = self._longest(text, position)
            made.append(text[position] if replacement is None else replacement)
            position += max(length, 1)
        return "".join(made)

    def _longest(self, text: str, start: int) -> tuple[int, str | None]:
        """How many characters from ``start`` on the longest key has, and what takes its place; 0 and None for none."""
        node, length, value = self._offset(self._unit(0)), 0, -1
        for position in range(start, len(text)):
            for byte in text[position].encode("utf-8"):
                node ^= byte
                unit = self._unit(node)
                if unit & _LABEL != byte:
                    return length, None if value < 0 else self._text(value)
                node ^= self._offset(unit)
            # A key is whole characters: what ends inside one can be no key.
            if unit & _LEAF:
                length, value = position - start + 1, self._unit(node) & _VALUE
        return length, None if value < 0 else self._text(value)

    def _ascii_table(self) -> dict[int, str] | None:
        """What becomes of each printable ASCII character by itself, None where two of them may be one key."""
        table, root = {}, self._offset(self._unit(0))
        for first in _PRINTABLE:
            unit = self._unit(root ^ first)
            if unit & _LABEL != first:
                continue
            node = root ^ first ^ self._offset(unit)
            if any(self._unit(node ^ second) & _LABEL == second for second in _PRINTABLE):
                return None
            if unit & _LEAF:
                table[first] = self._text(self._unit(node) & _VALUE)
        return table

    def _unit(self, index: int) -> int:
        # A unit outside the array is one that no label can be equal to.
        return self._units[index] if index < len(self._units) else 1 << 31

    @staticmethod
    def _offset(unit: int) -> int:
        return (unit >> 10) << ((unit & 1 << 9) >> 6)

    def _text(self, start: int) -> str:
        end = self._texts.find(b"\0", start)
        if not 0 <= start < len(self._texts) or end < 0:
            raise MalformedModelError(f"{self._place}: precompiled_charsmap points at byte {start}, outside its texts")
        try:
            return self._texts[start:end].decode("utf-8")
        except UnicodeDecodeError as error:
            raise MalformedModelError(f"{self._place}: precompiled_charsmap has a text that is not UTF-8") from error

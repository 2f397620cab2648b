"""A tokenizer of the `tokenizers` library behind the interface that the runtime needs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from cacheir.errors import RequestError

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class LibraryTokenizer:
    """Text to ids and back, as ``cacheir.runtime.tokenizer.Tokenizer`` says.

    ``vocab_size`` is the highest id plus one: ids may have gaps, and none that is known may lie beyond it.
    ``literal`` holds the text of tokens that stand beside the vocabulary and mean their own characters; of these,
    ``control`` are the ids of control tokens, and ``unknown`` is the id that stands for text the vocabulary cannot
    spell, if there is one. ``to_bytes`` gives the bytes of every other token's text, ``from_byte`` the text of the
    token of one byte.
    """

    def __init__(
        self,
        library: Tokenizer,
        *,
        vocab_size: int,
        literal: Mapping[int, str],
        control: Collection[int],
        to_bytes: Callable[[str], bytes],
        from_byte: Callable[[int], str],
        unknown: int | None = None,
        strips_leading_space: bool = False,
    ) -> None:
        # A length limit or padding in tokenizer.json is for training batches: it would cut prompts without a word.
        library.no_truncation()
        library.no_padding()
        self._library = library
        self._lock = threading.Lock()  # encode_special_tokens is one switch for all threads
        self._literal = dict(literal)
        self._to_bytes = to_bytes
        self._from_byte = from_byte
        self._unknown = unknown
        self._bytes: dict[int, bytes] = {}
        self._strips_leading_space = strips_leading_space
        self.special_ids: frozenset[int] = frozenset(control)
        self.vocab_size: int = vocab_size

    @property
    def strips_leading_space(self) -> bool:
        """Whether ``decode`` drops one space at the very start (SentencePiece's dummy prefix)."""
        return self._strips_leading_space

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Ids of ``text``. Text that looks like a control token stays text, unless ``special``."""
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise RequestError(f"the text holds half a surrogate pair at character {error.start}") from error
        with self._lock:
            if self._library.encode_special_tokens == special:
                self._library.encode_special_tokens = not special  # True means: encode them like any text
            ids: list[int] = self._library.encode(text, add_special_tokens=False).ids
        return ids if special else self._without_control(ids)

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Text of ``ids``; bytes that are not UTF-8 become U+FFFD."""
        raw = b"".join(map(self.token_bytes if skip_special else self._bytes_with_control, ids))
        if self._strips_leading_space and raw.startswith(b" "):
            raw = raw[1:]
        return raw.decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes:
        """The bytes that ``token`` adds to a text, ``b""`` for a control token or an id that is not known."""
        known = self._bytes.get(token)
        if known is None:
            known = b"" if token in self.special_ids else self._spell(token)
            self._bytes[token] = known
        return known

    def token_id(self, text: str) -> int | None:
        """The id of the token spelt exactly ``text``, None where there is none."""
        found: int | None = self._library.token_to_id(text)
        return found

    def _bytes_with_control(self, token: int) -> bytes:
        return self._spell(token) if token in self.special_ids else self.token_bytes(token)

    def _spell(self, token: int) -> bytes:
        if token in self._literal:
            return self._literal[token].encode("utf-8")
        text = self._library.id_to_token(token) if 0 <= token < self.vocab_size else None
        return b"" if text is None else self._to_bytes(text)

    def _without_control(self, ids: list[int]) -> list[int]:
        """The ids with each control token written out byte by byte.

        Merges, or a word that is a token as a whole, can spell a control token out of plain text.
        """
        found = self.special_ids.intersection(ids) - {self._unknown}
        if not found:
            return ids
        spelt: list[int] = []
        for token in ids:
            spelt += self._byte_ids(token) if token in found else [token]
        return spelt

    def _byte_ids(self, token: int) -> list[int]:
        ids = []
        for byte in self._spell(token):
            found = self.token_id(self._from_byte(byte))
            if found is None or found in self.special_ids:
                raise RequestError(
                    f"the text spells the control token {self._library.id_to_token(token)!r}, and this tokenizer has no"
                    " other way to write it"
                )
            ids.append(found)
        return ids
